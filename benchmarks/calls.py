"""Measure what a call to a dependency costs beyond its transport, beside the peers.

    python benchmarks/calls.py [--rounds N]

CPU time per call on an in-memory transport, rounds interleaved so that a drift of the machine hits everybody alike;
medians. The request is made outside of the measure. Read what is added, and the ratios: absolute figures belong to the
machine.

What is measured of ours is the whole stack: deadline header, retries with their budget, breaker, bulkhead, throttle,
counters. The peers are wrapped around the client's own call, since that is how they are used.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pybreaker
import tenacity
from httpx_retries import RetryTransport

from resilient_mw import Dependency
from resilient_mw.calls import ThrottlePolicy
from resilient_mw_integrations.httpx import AsyncResilientTransport, ResilientTransport

CALLS = 2_000
URL = "http://prices/items/7"

Case = Callable[[], float]


class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes from elsewhere, in one piece, as one from the network does."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"ok"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"ok"


class Memory(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers at once; the body is a stream, or complete with the head."""

    def __init__(self, *, streamed: bool) -> None:
        self.streamed = streamed

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Stream()) if self.streamed else httpx.Response(200, content=b"ok")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)


class NoOp(httpx.BaseTransport, httpx.AsyncBaseTransport):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.inner.handle_request(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self.inner.handle_async_request(request)


def requests() -> list[httpx.Request]:
    return [httpx.Request("GET", URL, headers={"accept": "*/*", "user-agent": "bench"}) for _ in range(CALLS)]


def sync(transport: Any, call: Callable[[Any, httpx.Request], httpx.Response] | None = None) -> Case:
    """Return a case: CPU microseconds per call."""
    call = call or (lambda transport, request: transport.handle_request(request))

    def run() -> float:
        made = requests()
        began = time.process_time()
        for request in made:
            call(transport, request).read()
        return (time.process_time() - began) / CALLS * 1e6

    return run


def aio(transport: Any, call: Callable[[Any, httpx.Request], Any] | None = None) -> Case:
    """Return a case: CPU microseconds per call, from one task."""
    call = call or (lambda transport, request: transport.handle_async_request(request))

    async def run() -> float:
        made = requests()
        began = time.process_time()
        for request in made:
            await (await call(transport, request)).aread()
        return (time.process_time() - began) / CALLS * 1e6

    return lambda: asyncio.run(run())


def ours(kind: Any, inner: Any) -> Any:
    dependency = Dependency("prices", match="http://prices/*", bulkhead=100, throttle=ThrottlePolicy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It has no connections to bound.
        return kind([dependency], inner)


breaker = pybreaker.CircuitBreaker(fail_max=5, reset_timeout=60)
retry = {"stop": tenacity.stop_after_attempt(2), "wait": tenacity.wait_random_exponential(0.1, 2)}


@tenacity.retry(**retry)
@breaker
def peers(transport: Any, request: httpx.Request) -> httpx.Response:
    return transport.handle_request(request)


@tenacity.retry(**retry)
async def async_peers(transport: Any, request: httpx.Request) -> httpx.Response:
    with breaker.calling():  # its own async call needs Tornado
        return await transport.handle_async_request(request)


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=15, help="rounds of every case (default: 15)")
    rounds = arguments.parse_args().rounds
    whole, streamed = Memory(streamed=False), Memory(streamed=True)
    cases: dict[str, tuple[Case, str | None]] = {
        "sync transport": (sync(whole), None),
        "sync no-op wrapper": (sync(NoOp(whole)), "sync transport"),
        "sync resilient_mw": (sync(ours(ResilientTransport, whole)), "sync transport"),
        "sync httpx-retries": (sync(RetryTransport(whole)), "sync transport"),
        "sync tenacity + pybreaker": (sync(whole, peers), "sync transport"),
        "sync transport, streamed body": (sync(streamed), None),
        "sync resilient_mw, streamed body": (
            sync(ours(ResilientTransport, streamed)),
            "sync transport, streamed body",
        ),
        "async transport": (aio(whole), None),
        "async no-op wrapper": (aio(NoOp(whole)), "async transport"),
        "async resilient_mw": (aio(ours(AsyncResilientTransport, whole)), "async transport"),
        "async httpx-retries": (aio(RetryTransport(whole)), "async transport"),
        "async tenacity + pybreaker": (aio(whole, async_peers), "async transport"),
        "async transport, streamed body": (aio(streamed), None),
        "async resilient_mw, streamed body": (
            aio(ours(AsyncResilientTransport, streamed)),
            "async transport, streamed body",
        ),
    }
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(1, rounds + 1):
        print(f"\rround {number} of {rounds}", end="", file=sys.stderr, flush=True)
        for name, (case, _) in cases.items():
            seen[name].append(case())
    print(file=sys.stderr)
    print(f"{'CPU µs per call, median of ' + str(rounds):<40}{'total':>8}{'added':>8}")
    for name, (_, base) in cases.items():
        total = statistics.median(seen[name])
        if base is None:
            print(f"{name:<40}{total:8.2f}")
            continue
        added = statistics.median(a - b for a, b in zip(seen[name], seen[base], strict=True))
        print(f"{name:<40}{total:8.2f}{added:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
