"""Run random sequences against the ASGI middleware, with every invariant checked after each.

    python -m tests.asgi.fuzz 17                      # the sequence of seed 17, printed
    python -m tests.asgi.fuzz --first 0 --count 5000  # many of them

Exit status 1: something did not hold; the seed and the sequence are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from resilient_mw.core.events import Refused
from tests.asgi.fuzz_checks import objections
from tests.asgi.fuzz_make import make
from tests.asgi.fuzz_world import World
from tests.runtime.virtual_time import VirtualClock, VirtualLoop

COLLECT_EVERY = 50
"""Sequences between two garbage collections, which show what nobody retrieved, awaited or let go."""
COUNT_EVERY = 1_000
"""Sequences between two counts of live objects."""
WARM_UP = 50


class SequenceFailed(AssertionError):
    """Something did not hold; the text names the seed, what it was, and the sequence."""


def play(seed: int, seen: Counter[str], *, collect: bool = False) -> None:
    """Run one sequence in a loop of its own.

    Args:
        seed: which one.
        seen: counts what happened, so that the caller can see that everything did.
        collect: collect garbage afterwards, while the loop can still complain.

    Raises:
        SequenceFailed: something did not hold.
    """
    plan = make(seed)
    clock = VirtualClock()
    loop = VirtualLoop(clock, plan.early)
    found: list[str] = []
    loop.set_exception_handler(lambda _, context: found.append(f"the loop complains: {context!r}"))
    unraisable = sys.unraisablehook
    sys.unraisablehook = lambda each: found.append(f"not raised: {each.exc_value!r} in {each.object!r}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loop.run_until_complete(_play(World(plan, loop, clock), found, seen))
            if collect:
                gc.collect()
                loop.run_until_complete(asyncio.sleep(0))
        found += [f"a warning: {each.message}" for each in caught]
    finally:
        sys.unraisablehook = unraisable
        loop.close()
    if found:
        text = "\n".join(f"  - {each}" for each in found)
        raise SequenceFailed(f"seed {seed} (python -m tests.asgi.fuzz {seed}):\n{text}\n{plan}")


async def _play(world: World, found: list[str], seen: Counter[str]) -> None:
    await world.play()
    found += objections(world)
    seen["requests"] += len(world.wires)
    for wire in world.wires:
        status = next((each["status"] for _, each in wire.out if "status" in each), None)
        seen[f"status {status}"] += 1
        if isinstance(wire.raised, asyncio.CancelledError):
            seen["cancelled by the server"] += 1
    for handling in world.handlings.values():
        seen[f"ended by {handling.record.reason or 'itself'}"] += 1
    seen.update(each.reason.value for each in world.events if isinstance(each, Refused))
    seen["left while waiting"] += sum(each.left for each in world.guards[0].snapshot().routes)
    streams = world.guards[0].snapshot().streams
    for stream in streams.routes if streams is not None else ():
        seen["streams"] += sum(stream.ended.values())
    seen["reloaded"] += world.plan.reload_at is not None
    seen["sections"] += sum(handling.had_sections for handling in world.handlings.values())
    seen["late"] += sum(each.late for each in world.guards[0].snapshot().routes)


def live_objects() -> Counter[str]:
    """Count the objects of ours that are alive, by type."""
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    ours = ("resilient_mw", "tests.asgi")
    # In some class of others it is a property, hence the `str`.
    return Counter(kind.__name__ for kind in kinds if str(kind.__module__).startswith(ours))


def run(first: int, count: int, say: Callable[[str], Any] = lambda _: None) -> Counter[str]:
    """Run `count` sequences, and return what was seen.

    Raises:
        SequenceFailed: something did not hold.
    """
    seen: Counter[str] = Counter()
    baseline: Counter[str] | None = None
    for number in range(1, count + 1):
        seed = first + number - 1
        collects = number % COLLECT_EVERY == 0
        try:
            play(seed, seen, collect=collects)
        except SequenceFailed as failure:
            raise _blamed(seed, failure) if collects else failure from None
        if number == WARM_UP:
            baseline = live_objects()
        elif baseline is not None and (number % COUNT_EVERY == 0 or number == count):
            grown = live_objects() - baseline
            if grown:
                raise SequenceFailed(
                    f"more objects are alive after seed {seed} than after {WARM_UP}: {grown}"
                )
            say(f"{number} sequences, {seen['requests']} requests")
    return seen


def _blamed(last: int, failure: SequenceFailed) -> SequenceFailed:
    """Find the sequence that left what a collection has found."""
    for seed in range(last - COLLECT_EVERY + 1, last + 1):
        try:
            play(seed, Counter(), collect=True)
        except SequenceFailed as own:
            return own
    return failure


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seed", nargs="?", type=int, help="run this one alone and print it")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--count", type=int, default=5_000, help="how many sequences (default 5000)")
    options = parser.parse_args()
    try:
        if options.seed is not None:
            print(make(options.seed))
            seen: Counter[str] = Counter()
            play(options.seed, seen, collect=True)
        else:
            gc.collect()
            gc.freeze()
            seen = run(options.first, options.count, print)
    except SequenceFailed as failure:
        print(failure)
        return 1
    print(", ".join(f"{name} {count}" for name, count in sorted(seen.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
