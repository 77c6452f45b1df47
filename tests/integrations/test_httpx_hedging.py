"""Hedges over real sockets: the faster attempt is delivered, the other one is ended, and nothing of it is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from time import monotonic, sleep
from typing import Any

import pytest

from resilient_mw.calls import HedgePolicy
from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.call_snapshot import HedgeSnapshot
from resilient_mw.runtime.dependency_owner import owner_of
from tests.integrations.hedge_server import HedgeServer, eventually
from tests.integrations.httpx_wires import Wire, every_wire


def hedged(server: HedgeServer, **fields: Any) -> Dependency:
    return Dependency(
        "prices",
        server.origin + "/*",
        **{
            "hedge": HedgePolicy(delay=0.05),
            "bulkhead": 2,
            "timeout": 20.0,
            "connect_timeout": 10.0,
            **fields,
        },
    )


def first_slow(number: int) -> float:
    return 5.0 if number == 1 else 0.0


def in_use(dependency: Dependency) -> int:
    return owner_of(dependency).state.in_use


def hedges(dependency: Dependency) -> HedgeSnapshot:
    figures = dependency.snapshot().hedges
    assert figures is not None
    return figures


def flights() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("resilient_mw: attempt")]


def settled(wire: Wire, true: Callable[[], bool], seconds: float = 3.0) -> bool:
    """Let whatever is under way go on until something is true."""
    until = monotonic() + seconds
    while not true() and monotonic() < until:
        wire.run(asyncio.sleep(0.005)) if wire.is_async else sleep(0.005)
    return true()


@pytest.fixture
def server() -> Iterator[HedgeServer]:
    with HedgeServer(first_slow) as made:
        yield made


@every_wire
def test_a_slow_attempt_is_beaten_by_its_hedge_and_its_connection_closed(
    wire: Wire, server: HedgeServer
) -> None:
    dependency = hedged(server)
    wire.open([dependency], limits=wire.lib.Limits(max_connections=2))
    began = monotonic()
    assert wire.get(server.origin + "/a").text == "2"
    assert monotonic() - began < 2.0
    assert settled(wire, lambda: in_use(dependency) == 0)
    assert settled(wire, lambda: server.hung_up == [1]), "the loser's connection is still open"
    figures = dependency.snapshot()
    assert figures.attempts == {"2xx": 1, "lost": 1}
    assert figures.retries == 0
    assert (hedges(dependency).made, hedges(dependency).won, dict(hedges(dependency).refused)) == (1, 1, {})
    held = [wire.send("GET", server.origin + "/a") for _ in range(2)]  # Both places of the pool are free.
    assert [response.status_code for response in held] == [200, 200]
    for response in held:
        wire.close(response)
    assert eventually(lambda: not flights()), "a thread is left"


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_hedge_for_which_there_is_no_thread_costs_the_call_nothing(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, begun = threading.Thread.start, []

    def scarce(thread: threading.Thread) -> None:
        if thread.name.startswith("resilient_mw: attempt"):
            begun.append(thread)
            if len(begun) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    with HedgeServer(lambda number: 0.3) as server:
        wire = Wire((library, "sync"))
        dependency = hedged(server)
        wire.open([dependency])
        monkeypatch.setattr(threading.Thread, "start", scarce)
        assert wire.get(server.origin + "/a").text == "1"
        assert len(begun) == 2
        assert in_use(dependency) == 0
        assert dependency.snapshot().attempts == {"2xx": 1, "timeout": 1}
        assert dependency.snapshot().breaker == "closed"
        wire.shut()


@every_wire
def test_the_first_attempt_may_still_win(wire: Wire) -> None:
    with HedgeServer(lambda number: 1.0 if number == 1 else 9.0) as server:
        dependency = hedged(server, hedge=HedgePolicy(delay=0.5))
        wire.open([dependency])
        assert wire.get(server.origin + "/a").text == "1"
        assert settled(wire, lambda: server.hung_up == [2])
        assert settled(wire, lambda: in_use(dependency) == 0)
        assert (hedges(dependency).made, hedges(dependency).won) == (1, 0)


@every_wire
def test_a_body_that_streams_is_the_winners_and_the_slot_its_own(wire: Wire, server: HedgeServer) -> None:
    dependency = hedged(server)
    wire.open([dependency])
    response = wire.send("GET", server.origin + "/a")
    assert settled(wire, lambda: in_use(dependency) == 1), "the loser's slot comes back before the body ends"
    assert wire.read(response) == b"2"
    assert in_use(dependency) == 0


@every_wire
def test_what_has_a_side_effect_is_never_hedged(wire: Wire) -> None:
    with HedgeServer(lambda number: 0.15) as server:
        dependency = hedged(server)
        wire.open([dependency])
        assert wire.request("POST", server.origin + "/a", content=b"x").status_code == 200
        assert wire.request("PATCH", server.origin + "/a").status_code == 200
        stream = _parts() if not wire.is_async else _async_parts()
        assert wire.request("GET", server.origin + "/a", content=stream).status_code == 200
        assert wire.request("PUT", server.origin + "/a", content=b"x").status_code == 200
        assert len(server.requests) == 4
        assert hedges(dependency).made == 0
        assert dict(hedges(dependency).refused) == {"unsafe": 3, "body": 1}


def _parts() -> Iterator[bytes]:
    yield b"x"


async def _async_parts() -> Any:
    yield b"x"


@every_wire
def test_a_keyed_request_is_hedged_with_the_same_key(wire: Wire, server: HedgeServer) -> None:
    dependency = hedged(server, idempotency_key="Idempotency-Key")
    wire.open([dependency])
    assert wire.request("POST", server.origin + "/a").text == "2"
    keys = [
        line for head in server.requests for line in head.splitlines() if b"idempotency-key" in line.lower()
    ]
    assert len(keys) == 2
    assert keys[0] == keys[1]


@every_wire
def test_hedges_stay_within_the_budget(wire: Wire) -> None:
    with HedgeServer(lambda number: 0.03) as server:
        retry = RetryPolicy(budget_ratio=0.2, budget_per_second=0.0)
        dependency = hedged(server, hedge=HedgePolicy(delay=0.005), retry=retry, bulkhead=20)
        wire.open([dependency])
        for _ in range(20):
            assert wire.get(server.origin + "/a").status_code == 200
        made = hedges(dependency)
        assert 1 <= made.made <= 4
        assert 10 <= made.refused["budget"] <= 20 - made.made  # some are answered before
        assert len(server.requests) <= 24


@every_wire
def test_a_failing_attempt_is_not_the_end_while_another_flies(wire: Wire) -> None:
    with HedgeServer(
        lambda number: {1: 0.12, 2: 0.3}.get(number, 0.0), lambda number: 503 if number == 1 else 200
    ) as server:
        dependency = hedged(server)
        wire.open([dependency])
        response = wire.get(server.origin + "/a")
        assert (response.status_code, response.text) == (200, "2")
        assert settled(wire, lambda: in_use(dependency) == 0)
        assert dependency.snapshot().attempts == {"5xx": 1, "2xx": 1}


@every_wire
def test_when_all_have_failed_the_rules_of_retries_apply(wire: Wire) -> None:
    with HedgeServer(lambda number: 0.12, lambda number: 503 if number < 3 else 200) as server:
        retry = RetryPolicy(attempts=3, backoff_base=0.0)
        dependency = hedged(server, retry=retry)
        wire.open([dependency])
        assert wire.get(server.origin + "/a").status_code == 200
        assert dependency.snapshot().retries == 1
        assert settled(wire, lambda: in_use(dependency) == 0)


@every_wire
def test_attempts_that_time_out_end_the_call(wire: Wire) -> None:
    with HedgeServer(lambda number: 5.0) as server:
        dependency = hedged(server, timeout=0.3, retry=None)
        wire.open([dependency])
        began = monotonic()
        with pytest.raises(wire.lib.TimeoutException):
            wire.get(server.origin + "/a")
        assert monotonic() - began < 3.0
        assert settled(wire, lambda: in_use(dependency) == 0)
        assert settled(wire, lambda: sorted(server.hung_up) == [1, 2])
        assert dependency.snapshot().attempts == {"timeout": 2}


@every_wire
def test_a_foreign_transport_is_hedged_too(wire: Wire) -> None:
    calls: list[Any] = []
    over = threading.Event()

    async def slow(request: Any) -> Any:
        calls.append(request)
        await asyncio.sleep(10.0 if len(calls) == 1 else 0.0)
        return wire.lib.Response(200)

    def slow_sync(request: Any) -> Any:
        calls.append(request)
        if len(calls) == 1:
            over.wait(10.0)
        return wire.lib.Response(200)

    dependency = Dependency("prices", "http://prices/*", hedge=HedgePolicy(delay=0.05))
    wire.open([dependency], wire.handler(slow if wire.is_async else slow_sync))
    try:
        assert wire.get("http://prices/a").status_code == 200
        assert len(calls) == 2
        assert wire.is_async or in_use(dependency) == 1
    finally:
        over.set()
    assert settled(wire, lambda: in_use(dependency) == 0), (
        "a loser that cannot be ended gives its slot back at its end"
    )
    assert hedges(dependency).won == 1


@every_wire
def test_a_loser_that_answers_late_is_closed(wire: Wire) -> None:
    made: list[Any] = []

    def answer() -> Any:
        response = wire.lib.Response(200, content=_async_parts() if wire.is_async else _parts())
        made.append(response)
        return response

    async def stubborn(request: Any) -> Any:
        if not calls:
            calls.append(request)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.3)
        return answer()

    def slow(request: Any) -> Any:
        if not calls:
            calls.append(request)
            sleep(0.3)
        return answer()

    calls: list[Any] = []
    dependency = Dependency("prices", "http://prices/*", hedge=HedgePolicy(delay=0.05))
    wire.open([dependency], wire.handler(stubborn if wire.is_async else slow))
    assert wire.get("http://prices/a").content == b"x"
    assert settled(wire, lambda: in_use(dependency) == 0)
    assert len(made) == 2
    assert all(response.is_closed for response in made)


ANYTHING: ContextVar[str] = ContextVar("ANYTHING", default="")


@every_wire
def test_attempts_see_the_context_of_the_caller(wire: Wire, server: HedgeServer) -> None:
    seen: list[str] = []

    def trace(event: str, info: object) -> None:
        if event == "http11.send_request_headers.started":
            seen.append(ANYTHING.get())

    async def async_trace(event: str, info: object) -> None:
        trace(event, info)

    ANYTHING.set("of the caller")
    wire.open([hedged(server)])
    wire.get(server.origin + "/a", extensions={"trace": async_trace if wire.is_async else trace})
    assert seen == ["of the caller"] * 2


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_cancelled_caller_leaves_nothing(library: str, cancels: int, attempts: int) -> None:
    with HedgeServer(lambda number: 30.0) as server:
        wire = Wire((library, "async"))
        hedge = HedgePolicy(delay=0.05 if attempts == 2 else 20.0)
        dependency = hedged(server, timeout=30.0, total_timeout=60.0, hedge=hedge)
        wire.open([dependency], limits=wire.lib.Limits(max_connections=2))
        token = ANYTHING.set("before")

        async def play() -> set[asyncio.Task[Any]]:
            before = asyncio.all_tasks()
            task = asyncio.ensure_future(wire.client.get(server.origin + "/a"))
            while len(server.requests) < attempts:  # noqa: ASYNC110  the server is a thread
                await asyncio.sleep(0.005)
            for _ in range(cancels):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert in_use(dependency) == 0
            await asyncio.sleep(0.1)
            return asyncio.all_tasks() - before

        assert wire.run(play()) == set()
        assert settled(wire, lambda: len(server.hung_up) == attempts)
        assert ANYTHING.get() == "before"
        ANYTHING.reset(token)
        assert not wire.pool().connections
        assert dependency.snapshot().attempts == {"cancelled": attempts}
        wire.shut()


@every_wire
def test_the_quantile_decides_once_enough_is_known(wire: Wire) -> None:
    with HedgeServer(lambda number: 8.0 if number == 21 else 0.01) as server:
        dependency = hedged(server, hedge=HedgePolicy(quantile=0.9, minimum_samples=20))
        wire.open([dependency])
        for _ in range(20):
            wire.get(server.origin + "/a")
        known = hedges(dependency)
        assert known.refused["samples"] == 20
        assert known.made == 0
        assert known.delay is not None
        assert 0.01 <= known.delay < 2.0
        began = monotonic()
        wire.get(server.origin + "/a")
        assert monotonic() - began < 5.0
        assert hedges(dependency).won == 1
