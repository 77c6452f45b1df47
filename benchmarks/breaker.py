"""Measure what a circuit breaker adds to a call that succeeds, beside its peers.

    python benchmarks/breaker.py [--rounds N]

As a decorator of a function that does nothing, sync and async; CPU time per call, in process, rounds interleaved so that a
drift of the machine hits everybody alike; medians. Ours runs with a window of time and slow calls on, and once without.
Read the ratios: absolute figures belong to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import aiobreaker
import circuitbreaker
import pybreaker
from purgatory import AsyncCircuitBreakerFactory, SyncCircuitBreakerFactory

from resilient_mw import BreakerPolicy
from resilient_mw.runtime.circuit import CircuitBreaker

CALLS = 20_000
PLAIN, FULL, COUNTED, BEST = (
    "plain call",
    "ours, window of time, slow calls on",
    "ours, last 20",
    "circuitbreaker",
)

Sync = Callable[[], object]
Async = Callable[[], Awaitable[object]]


def nothing() -> None:
    """Succeed."""


async def nothing_later() -> None:
    """Succeed."""


def ours(name: str, **policy: Any) -> CircuitBreaker:
    return CircuitBreaker(name, BreakerPolicy(**policy))


def sync_cases() -> dict[str, Sync]:
    return {
        PLAIN: nothing,
        FULL: ours("full", window_seconds=10.0, slow_after=1.0)(nothing),
        COUNTED: ours("counted")(nothing),
        BEST: circuitbreaker.circuit(nothing),
        "purgatory": SyncCircuitBreakerFactory()("purgatory")(nothing),
        "aiobreaker": aiobreaker.CircuitBreaker(fail_max=5, timeout_duration=timedelta(seconds=30))(nothing),
        "pybreaker": pybreaker.CircuitBreaker(fail_max=5)(nothing),
    }


def async_cases() -> dict[str, Async]:
    return {
        PLAIN: nothing_later,
        FULL: ours("full-async", window_seconds=10.0, slow_after=1.0)(nothing_later),
        COUNTED: ours("counted-async")(nothing_later),
        BEST: circuitbreaker.circuit(nothing_later),
        "purgatory": AsyncCircuitBreakerFactory()("purgatory")(nothing_later),
        "aiobreaker": aiobreaker.CircuitBreaker(fail_max=5, timeout_duration=timedelta(seconds=30))(
            nothing_later
        ),
    }


def time_sync(function: Sync) -> float:
    begun = time.process_time()
    for _ in range(CALLS):
        function()
    return (time.process_time() - begun) / CALLS


def time_async(function: Async) -> float:
    async def run() -> float:
        begun = time.process_time()
        for _ in range(CALLS):
            await function()
        return (time.process_time() - begun) / CALLS

    return asyncio.run(run())


def report(title: str, figures: dict[str, list[float]]) -> float:
    """Print a table; return what ours adds, of what the fastest peer adds."""
    each = {name: statistics.median(values) for name, values in figures.items()}
    added = {name: seconds - each[PLAIN] for name, seconds in each.items()}
    print(f"\n{title:<40}{'us a call':>10}{'added':>10}{'of the fastest peer':>22}")
    for name, seconds in each.items():
        ratio = "" if name == PLAIN else f"{added[name] / added[BEST]:.2f}"
        print(f"  {name:<38}{seconds * 1e6:>10.3f}{added[name] * 1e6:>10.3f}{ratio:>22}")
    return added[FULL] / added[BEST]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="how often each case is measured (default 15)")
    rounds = parser.parse_args().rounds
    in_turn, later = sync_cases(), async_cases()
    sync_figures: dict[str, list[float]] = {name: [] for name in in_turn}
    async_figures: dict[str, list[float]] = {name: [] for name in later}
    for _ in range(rounds):
        for name, function in in_turn.items():
            sync_figures[name].append(time_sync(function))
        for name, coroutine in later.items():
            async_figures[name].append(time_async(coroutine))
    worst = max(report("sync", sync_figures), report("async", async_figures))
    return 0 if worst < 1.0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
