"""The wait for a connection before the pool: nobody is lost in it, whoever gives up and when."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from resilient_mw.core import ports
from resilient_mw_integrations._httpx_gate import AsyncGate, AsyncGateBody, Gate, GateBody


class Body(httpx.ByteStream):
    """A body that counts how often it is closed."""

    def __init__(self) -> None:
        super().__init__(b"x")
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


class Inner:
    """A transport that notes how many requests are in it."""

    def __init__(self) -> None:
        self.seen: list[httpx.Request] = []
        self.error: BaseException | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if self.error is not None:
            raise self.error
        return httpx.Response(200, stream=Body())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)


def request(pool: float | None = None) -> httpx.Request:
    return httpx.Request("GET", "http://prices.test/", extensions={"timeout": {"pool": pool}})


def async_gate(connections: int = 1) -> Any:
    return AsyncGate(Inner(), connections, AsyncGateBody, httpx.PoolTimeout)


async def test_a_turn_that_comes_when_its_waiter_is_cancelled_is_handed_on() -> None:
    gate = async_gate()
    first = await gate.handle_async_request(request())
    second = asyncio.ensure_future(gate.handle_async_request(request()))
    third = asyncio.ensure_future(gate.handle_async_request(request()))
    await asyncio.sleep(0)
    await first.stream.aclose()  # The turn is the second's ...
    second.cancel()  # ... who does not know it yet.
    await asyncio.wait_for(third, 1)
    assert second.cancelled()
    assert len(gate.inner.seen) == 2


async def test_who_has_given_up_is_passed_over() -> None:
    gate = async_gate()
    first = await gate.handle_async_request(request())
    with pytest.raises(httpx.PoolTimeout, match="all 1 connections of the pool are in use"):
        await gate.handle_async_request(request(0.01))
    third = asyncio.ensure_future(gate.handle_async_request(request()))
    await asyncio.sleep(0)
    await first.stream.aclose()
    await asyncio.wait_for(third, 1)


async def test_a_failure_and_a_second_close_give_one_turn() -> None:
    gate = async_gate()
    gate.inner.error = asyncio.CancelledError()
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await gate.handle_async_request(request())
    gate.inner.error = None
    response = await gate.handle_async_request(request())
    for _ in range(3):
        await response.stream.aclose()
    first, second = await gate.handle_async_request(request()), None
    with pytest.raises(httpx.PoolTimeout):
        second = await gate.handle_async_request(request(0.01))
    assert second is None
    await first.stream.aclose()


async def test_no_more_are_let_in_than_there_are_connections() -> None:
    gate = async_gate(3)
    inside = 0

    async def one() -> None:
        nonlocal inside
        response = await gate.handle_async_request(request())
        inside += 1
        assert inside <= 3
        await asyncio.sleep(0.001)
        inside -= 1
        await response.stream.aclose()

    await asyncio.gather(*(one() for _ in range(30)))
    assert len(gate.inner.seen) == 30


def test_threads_wait_for_their_turn() -> None:
    gate: Any = Gate(Inner(), 1, GateBody, httpx.PoolTimeout)
    first = gate.handle_request(request())
    with pytest.raises(httpx.PoolTimeout, match="all 1 connections of the pool are in use"):
        gate.handle_request(request(0.01))
    threading.Timer(0.05, first.stream.close).start()
    gate.handle_request(request(5.0)).stream.close()
    first.stream.close()
    gate.inner.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        gate.handle_request(request())
    gate.inner.error = None
    gate.handle_request(request(0.01))
    with pytest.raises(httpx.PoolTimeout):
        gate.handle_request(request(0.01))


async def test_an_async_pool_tells_how_long_its_connections_are_waited_for() -> None:
    gate = async_gate()
    waits = gate._waits
    first = await gate.handle_async_request(request())
    assert waits.waits() == (1, 0, 0.0)
    second = asyncio.ensure_future(gate.handle_async_request(request()))
    await asyncio.sleep(0.02)
    came, waiting, waited = waits.waits()
    assert (came, waiting) == (1, 1)
    assert waited > 0.01
    await first.stream.aclose()
    await second
    assert waits.waits()[:2] == (2, 0)
    gives_up = asyncio.ensure_future(gate.handle_async_request(request()))
    await asyncio.sleep(0)
    gives_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    assert waits.waits()[:2] == (3, 0)


def test_a_sync_pool_tells_how_long_its_connections_are_waited_for() -> None:
    gate: Any = Gate(Inner(), 1, GateBody, httpx.PoolTimeout)
    first = gate.handle_request(request())
    with pytest.raises(httpx.PoolTimeout):
        gate.handle_request(request(0.02))
    came, waiting, waited = gate._waits.waits()
    assert (came, waiting) == (2, 0)
    assert 0.01 < waited < 5.0
    first.stream.close()
    gate.handle_request(request(0.02))
    assert gate._waits.waits() == (3, 0, waited)
    assert gate._waits in ports.pool_sources()
