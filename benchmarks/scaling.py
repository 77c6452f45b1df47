"""Show that a request costs the same however many waiters, routes and tenants there are, and what a waiting one holds.

    python benchmarks/scaling.py [--only WORD]

Instructions per request by callgrind (it needs valgrind), the same number on a busy machine: each case runs in processes of
its own, with a few of the thing and with very many. Then the memory of 10,000 requests that wait for a slot, less that of as
many plain tasks. Exit status 1: a cost grows by more than a fifth, or a waiting request holds 4 KiB or more.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import inspect
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FEW, MORE = 100, 600
MOST_GROWTH = 0.2
WAITING = 10_000
MOST_HELD = 4096
HOUR = 3600.0

Step = Callable[[], Any]
PATIENT: dict[str, Any] = {
    "max_wait": HOUR, "wait_share": 1.0, "deadline_default": 2 * HOUR, "deadline_maximum": 2 * HOUR,
}  # fmt: skip


def _waiting(count: int) -> tuple[Any, Any, list[Any]]:
    """Return a guard with a full queue of so many, the entry of a route, and the list of those who get a slot."""
    from resilient_mw import ServerPolicy
    from resilient_mw.core.marks import Mark
    from resilient_mw.runtime.guard import guard_of

    guard = guard_of(ServerPolicy(limit=1, queue=count, name="scaling", **PATIENT))
    entry = guard.entries.get("/item", Mark())
    granted: list[Any] = []
    for _ in range(count + 1):
        _queue(guard, entry, granted)
    return guard, entry, granted


def _queue(guard: Any, entry: Any, granted: list[Any]) -> None:
    now = guard.clock.now()
    waiter = guard.arrive(entry, now, now + HOUR).waiter
    if waiter is not None:
        guard.attach(waiter, functools.partial(granted.append, waiter))


def refused(count: int) -> Step:
    """A request is refused while so many wait."""
    guard, entry, granted = _waiting(count)
    return lambda: _queue(guard, entry, granted)


def handed_over(count: int) -> Step:
    """A slot comes back, the next of so many waiters gets it, another one queues."""
    guard, entry, granted = _waiting(count)

    def step() -> None:
        guard.end(entry, 1, "completed", 0.01)
        guard.begin(granted.pop())
        _queue(guard, entry, granted)

    return step


def left(count: int) -> Step:
    """The newest of so many waiters leaves, another one queues."""
    guard, entry, _ = _waiting(count)

    def step() -> None:
        now = guard.clock.now()
        guard.leave(next(reversed(guard.controller.classes[entry.rank].queue)))
        guard.arrive(entry, now, now + HOUR)

    return step


def _through(app: Any, **policy: Any) -> Step:
    from run import AsgiMiddleware, receive, scope, send

    middleware = AsgiMiddleware(app, limit=1000, name="scaling", **policy)

    def step() -> Any:
        return middleware({**scope(), "path": "/last/7", "raw_path": b"/last/7"}, receive, send)

    return step


def rules(count: int) -> Step:
    """A request takes the last of so many rules."""
    from run import raw_asgi

    from resilient_mw import RouteRule

    paths = [f"/rule{number}/{{id}}" for number in range(count - 1)]
    return _through(raw_asgi, routes=[RouteRule(path) for path in (*paths, "/last/{id}")])


class Instead:
    """Answers at once, and shows the application whose routes count: its own look-up is not ours to measure."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from run import raw_asgi

        await raw_asgi(scope, receive, send)


def starlette_routes(count: int) -> Step:
    """A request takes the last of so many routes of a Starlette application."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    async def endpoint(request: Any) -> None:
        raise NotImplementedError

    paths = [f"/route{number}/{{id}}" for number in range(count - 1)]
    return _through(Instead(Starlette(routes=[Route(path, endpoint) for path in (*paths, "/last/{id}")])))


def tenants(count: int) -> Step:
    """Requests of so many tenants in turn come and go."""
    from resilient_mw import ServerPolicy
    from resilient_mw.core.marks import Mark
    from resilient_mw.runtime.guard import guard_of

    guard = guard_of(ServerPolicy(limit=1000, name="scaling", **PATIENT))
    entry = guard.entries.get("/item", Mark())
    arrive: Any = guard.arrive

    def names() -> Iterator[str]:
        while True:
            for number in range(count):
                yield f"tenant{number}"

    name = names()

    def step() -> None:
        now = guard.clock.now()
        tenant = next(name)
        arrive(entry, now, now + HOUR, tenant=tenant)
        guard.end(entry, 1, "completed", 0.01, tenant)

    for _ in range(count):
        step()
    return step


def _knows_tenants() -> bool:
    from resilient_mw.runtime.guard import Guard

    return "tenant" in inspect.signature(Guard.arrive).parameters


CASES: dict[str, tuple[Callable[[int], Step], int]] = {
    "refused while others wait": (refused, 100_000),
    "a slot handed to the next waiter": (handed_over, 100_000),
    "a waiter leaves": (left, 100_000),
    "the last of the route rules": (rules, 10_000),
    "the last route of a Starlette application": (starlette_routes, 10_000),
    "tenants": (tenants, 100_000),
}


async def repeat(case: str, size: int, times: int) -> None:
    """Take a case's step so many times, and have callgrind count those only."""
    step = CASES[case][0](size)
    for _ in range(50):
        await _taken(step)
    gc.collect()
    gc.disable()  # when it comes round is chance
    _instrument("on")
    for _ in range(times):
        await _taken(step)
    _instrument("off")


async def _taken(step: Step) -> None:
    result = step()
    if result is not None:
        await result


def _instrument(state: str) -> None:
    subprocess.run(["callgrind_control", "-i", state, str(os.getpid())], check=True, capture_output=True)


def count(case: str, size: int, times: int) -> int:
    """Return the instructions of so many steps, and of turning the count on and off."""
    command = [
        "valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null", sys.executable,
        str(Path(__file__)), "--repeat", case, str(size), str(times),
    ]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None or done.returncode:
        raise SystemExit(f"callgrind did not count {case!r}:\n{done.stderr}")
    return int(found[1])


def per_step(case: str, size: int) -> float:
    """Return the instructions of one step."""
    return (count(case, size, MORE) - count(case, size, FEW)) / (MORE - FEW)


async def held(*, ours: bool) -> float:
    """Return the bytes that one of many waiting requests holds, beside its scope."""
    from run import AsgiMiddleware, scope, send

    async def never() -> Any:
        await asyncio.get_running_loop().create_future()

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    app: Any = plain
    if ours:
        app = AsgiMiddleware(plain, limit=1, queue=WAITING, name="held", **PATIENT)
    tasks = [asyncio.create_task(app(scope(), never, send))]  # takes the slot
    await asyncio.sleep(0.01)
    scopes = [scope() for _ in range(WAITING)]
    gc.collect()
    tracemalloc.start()
    tasks += [asyncio.create_task(app(each, never, send)) for each in scopes]
    await asyncio.sleep(0)
    await asyncio.sleep(0.5)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] / WAITING
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return held


def _held(who: str) -> float:
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "--held", who], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only the cases whose name holds this word")
    parser.add_argument("--repeat", nargs=3, metavar=("CASE", "SIZE", "TIMES"), help=argparse.SUPPRESS)
    parser.add_argument("--held", choices=("ours", "plain"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.repeat is not None:
        case, size, times = options.repeat
        asyncio.run(repeat(case, int(size), int(times)))
        return 0
    if options.held is not None:
        print(asyncio.run(held(ours=options.held == "ours")))
        return 0
    if shutil.which("callgrind_control") is None:
        parser.error("valgrind is not installed")
    return report(options.only)


def report(only: str) -> int:
    """Measure, and print the tables."""
    failed = False
    print(f"{'instructions per request':<44}{'10':>9}{'many':>9}{'(many)':>10}{'growth':>9}", flush=True)
    for case, (_, many) in CASES.items():
        if only not in case:
            continue
        if case == "tenants" and not _knows_tenants():
            print(f"{case:<44}   left out: admission knows no tenants")
            continue
        small, large = per_step(case, 10), per_step(case, many)
        growth = large / small - 1
        failed = failed or growth > MOST_GROWTH
        print(f"{case:<44}{small:9,.0f}{large:9,.0f}{many:10,}{growth:9.0%}", flush=True)
    if only not in "memory":
        return int(failed)
    ours, plain = _held("ours"), _held("plain")
    failed = failed or ours - plain >= MOST_HELD
    print(
        f"\nbytes of a waiting request: {ours:,.0f}; of a plain task: {plain:,.0f}; added: {ours - plain:,.0f}"
    )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
