"""On the wire both ways of a call are one as well: equal requests, answers, errors and figures, in threads and in tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import Any

import httpx
import pytest

from resilient_mw.calls.attempt import ShortAttempt
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.key import IdempotencyKeys
from resilient_mw.calls.throttle import ThrottlePolicy
from resilient_mw.runtime.context import CURRENT, NO_REQUEST, RequestContext
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw_integrations.httpx import AsyncResilientTransport, ResilientTransport
from tests.parity.test_short_way import plain
from tests.runtime.virtual_time import VirtualClock

SEEDS, CALLS = 24, 40
ALIKE = ("content-length", "transfer-encoding")

Answer = Callable[[], httpx.Response]


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in pieces, and may break."""

    def __init__(self, *, breaks: bool) -> None:
        self.breaks = breaks

    def __iter__(self) -> Iterator[bytes]:
        yield b"one"
        if self.breaks:
            raise httpx.ReadError("cut off")
        yield b"two"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


class Silent(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request body that can be sent once."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"sent"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"sent"


def _fails(error: type[Exception]) -> Answer:
    def answer() -> httpx.Response:
        raise error("no answer")

    return answer


ANSWERS: dict[str, Answer] = {
    "whole": lambda: httpx.Response(200, content=b"ok"),
    "pieces": lambda: httpx.Response(200, stream=Pieces(breaks=False)),
    "breaks": lambda: httpx.Response(200, stream=Pieces(breaks=True)),
    "nothing": lambda: httpx.Response(204),
    "elsewhere": lambda: httpx.Response(301, headers={"location": "http://else/"}),
    "missing": lambda: httpx.Response(404, content=b"no"),
    "ill": lambda: httpx.Response(503, content=b"no"),
    "refused": lambda: httpx.Response(
        503, headers={"x-refusal-reason": "queue_full"}, stream=Pieces(breaks=False)
    ),
    "error": _fails(httpx.ReadError),
    "timeout": _fails(httpx.ConnectTimeout),
    "mistake": _fails(httpx.LocalProtocolError),
    "fault": _fails(ZeroDivisionError),
}
WELL = ["whole"] * 6 + ["pieces"] * 4 + ["nothing", "elsewhere", "missing"]


class Counting(DependencyOwner):
    """Counts the calls that went the short way."""

    shorts = 0

    def begin_short(self, attempt: ShortAttempt, total: float, latest: float | None) -> float:
        timeout = super().begin_short(attempt, total, latest)
        self.shorts += timeout > 0
        return timeout


class World:
    """A transport on one of the ways, what it sends, and what comes of it."""

    def __init__(self, seed: int, *, short: bool) -> None:
        self.random, luck = Random(f"wire/{seed}"), Random(f"wired/{seed}")
        self.clock = VirtualClock()
        self.dependency = Dependency(
            "prices",
            "http://prices/*",
            timeout=luck.choice([2.0, 3.0]),
            retry=RetryPolicy(attempts=2, backoff_base=0.0, budget_per_second=0.5),
            breaker=BreakerPolicy(
                window=8, minimum_calls=4, open_for=1.0, slow_after=luck.choice([None, 1.0])
            ),
            bulkhead=4,
            throttle=luck.choice([None, ThrottlePolicy(per_second=0.5)]),
            idempotency_key=luck.choice([None, IdempotencyKeys(version=4)]),
            deadline_header=luck.choice([None, "X-Request-Timeout-Ms", "X-Request-Timeout-Ms"]),
        )
        self.owner = Counting(self.dependency, self.clock, Random(seed))
        self.dependency.owner.append(self.owner)
        if not short:
            self.owner.short = None
        self.log: list[object] = []
        self.illness = 0.0

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Note a request as it is on the wire, and answer it."""
        timeouts = {
            name: None if at is None else round(at, 6) for name, at in request.extensions["timeout"].items()
        }
        lines = [line for line in request.headers.raw if line[0].lower().decode() not in ALIKE]
        self.log += [request.method, lines, timeouts, sorted(set(request.extensions) - {"timeout", "trace"})]
        self.clock.move_to(
            self.clock.now() + self.random.choice([0.0, 0.01, 0.1, 1.5 if self.illness else 0.2])
        )
        ill = self.random.random() < self.illness
        return ANSWERS[self.random.choice([*ANSWERS] if ill else WELL)]()

    def request(self) -> httpx.Request:
        """Return the next request, and let it be made for somebody."""
        random = self.random
        self.clock.move_to(self.clock.now() + random.choice([0.0, 0.05, 0.7]))
        if random.random() < 0.1:
            self.illness = random.choice([0.0, 0.0, 0.3, 0.9])
        left = random.choice([None, None, 0.008, 0.5, 60.0])
        CURRENT.set(NO_REQUEST if left is None else RequestContext(self.clock.now() + left, self.clock))
        headers = random.choice(
            [
                {},
                {},
                {},
                {"X-Request-Timeout-Ms": "700"},
                {"X-Retry-Owner": "edge"},
                {"Idempotency-Key": '"k"'},
            ]
        )
        limits = random.choice([None, {"connect": 5.0, "read": 0.3, "write": None, "pool": 5.0}])
        return httpx.Request(
            random.choice(["GET", "GET", "HEAD", "POST"]),
            "http://prices/1",
            headers={"accept": "*/*", **headers},
            stream=Silent() if random.random() < 0.1 else httpx.ByteStream(b""),
            extensions={"own": 1} | ({} if limits is None else {"timeout": dict(limits)}),
        )

    def told(self, outcome: object) -> None:
        """Note what a call came to."""
        if isinstance(outcome, BaseException):
            cause = outcome.__cause__
            phase = getattr(outcome, "phase", None)
            outcome = (
                type(outcome).__name__,
                str(outcome),
                phase,
                None if cause is None else type(cause).__name__,
            )
        self.log.append(outcome)
        self.log.append(plain(self.owner.snapshot()))


def _by_thread(seed: int, *, short: bool) -> list[object]:
    world = World(seed, short=short)
    transport = ResilientTransport([world.dependency], httpx.MockTransport(world.answer))
    for _ in range(CALLS):
        request = world.request()
        before = _state_of(request)
        try:
            response = transport.handle_request(request)
            world.told((response.status_code, response.read()))
        except Exception as error:  # noqa: BLE001  whatever it is, it is compared
            world.told(error)
        world.log.append(_state_of(request) == before)
    assert world.owner.state.in_use == 0
    assert (world.owner.shorts > 0) is short
    return world.log


def _by_task(seed: int, *, short: bool) -> list[object]:
    async def play() -> list[object]:
        world = World(seed, short=short)
        transport = AsyncResilientTransport([world.dependency], httpx.MockTransport(world.answer))
        for _ in range(CALLS):
            request = world.request()
            before = _state_of(request)
            try:
                response = await transport.handle_async_request(request)
                world.told((response.status_code, await response.aread()))
            except Exception as error:  # noqa: BLE001  whatever it is, it is compared
                world.told(error)
            world.log.append(_state_of(request) == before)
        assert world.owner.state.in_use == 0
        assert (world.owner.shorts > 0) is short
        return world.log

    return asyncio.run(play())


def _state_of(request: httpx.Request) -> Any:
    """Return what a caller sees of his request, which is not changed but for the key that it was given."""
    extensions = {name: value for name, value in request.extensions.items() if name != "idempotency_key"}
    return request.method, request.url, request.headers.raw, request.stream, extensions


@pytest.mark.parametrize("seed", range(SEEDS))
def test_equal_calls_are_equal_on_the_wire(seed: int) -> None:
    token = CURRENT.set(NO_REQUEST)
    try:
        long = _by_thread(seed, short=False)
        assert _by_thread(seed, short=True) == long
        assert _by_task(seed, short=False) == long
        assert _by_task(seed, short=True) == long
    finally:
        CURRENT.reset(token)
    assert False not in long, "the request of a caller was changed"


def test_threads_on_both_ways_at_once_lose_no_figure() -> None:
    answers = [httpx.codes.OK, httpx.codes.OK, httpx.codes.OK, httpx.codes.NOT_FOUND]
    dependency = Dependency("prices", "http://prices/*", retry=None, bulkhead=64, throttle=ThrottlePolicy())
    transport = ResilientTransport(
        [dependency],
        httpx.MockTransport(
            lambda request: httpx.Response(answers[len(request.url.query) % 4], content=b"ok")
        ),
    )
    looks: list[int] = []

    def call(thread: int) -> None:
        for number in range(200):
            request = httpx.Request("GET", f"http://prices/?{'x' * number}", stream=httpx.ByteStream(b""))
            transport.handle_request(request).read()
            if number % 50 == thread:
                looks.append(sum(dependency.snapshot().seconds.counts))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    snapshot = dependency.snapshot()
    assert looks
    assert (snapshot.calls, snapshot.in_use) == (1600, 0)
    assert snapshot.attempts == {"2xx": 1200, "4xx": 400}
    assert sum(snapshot.seconds.counts) == sum(snapshot.budgets.counts) == 1600
