"""Callers that wait for a slot: woken by threads and by tasks, and nothing is lost when they give up."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from resilient_mw import Dependency
from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.runtime.dependency_owner import owner_of
from resilient_mw_integrations.httpx import AsyncResilientTransport, ResilientTransport

URL = "http://prices/1"


def _dependency(**bulkhead: Any) -> Dependency:
    policy = BulkheadPolicy(**{"limit": 1, "max_wait": 5.0, "queue": 8, **bulkhead})
    return Dependency("prices", "http://prices/*", retry=None, timeout=10.0, bulkhead=policy)


def _line(dependency: Dependency) -> int:
    line = owner_of(dependency).state.line
    assert line is not None
    return line.waiting


def _until(dependency: Dependency, waiting: int) -> None:
    end = time.monotonic() + 5
    while _line(dependency) != waiting:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_threads_take_turns() -> None:
    dependency = _dependency()
    most, now, lock = 0, 0, threading.Lock()

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1
        return httpx.Response(200)

    statuses: list[int] = []
    with httpx.Client(transport=ResilientTransport([dependency], httpx.MockTransport(answer))) as client:
        threads = [
            threading.Thread(target=lambda: statuses.append(client.get(URL).status_code)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert statuses == [200] * 8
    assert most == 1
    assert owner_of(dependency).state.in_use == 0


def test_a_transport_that_is_closed_ends_the_wait_and_leaves_the_line() -> None:
    dependency = _dependency()
    release, raised = threading.Event(), list[Exception]()

    def answer(request: httpx.Request) -> httpx.Response:
        release.wait(5)
        return httpx.Response(200)

    transport = ResilientTransport([dependency], httpx.MockTransport(answer))

    def call() -> None:
        try:
            transport.handle_request(httpx.Request("GET", URL)).close()
        except httpx.TransportError as error:
            raised.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    threads[0].start()
    while owner_of(dependency).state.in_use == 0:
        time.sleep(0.001)
    threads[1].start()
    _until(dependency, 1)
    transport.close()
    threads[1].join(5)
    release.set()
    threads[0].join(5)
    assert len(raised) == 1
    assert (_line(dependency), owner_of(dependency).state.in_use) == (0, 0)


async def test_a_thread_wakes_a_task() -> None:
    dependency = _dependency()
    entered, release = threading.Event(), threading.Event()

    def slow(request: httpx.Request) -> httpx.Response:
        entered.set()
        release.wait(5)
        return httpx.Response(200)

    def hold() -> None:
        with httpx.Client(transport=ResilientTransport([dependency], httpx.MockTransport(slow))) as client:
            client.get(URL)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(5)
    inner = httpx.MockTransport(lambda request: httpx.Response(204))
    async with httpx.AsyncClient(transport=AsyncResilientTransport([dependency], inner)) as client:
        waiting = asyncio.ensure_future(client.get(URL))
        await asyncio.to_thread(_until, dependency, 1)
        release.set()
        assert (await asyncio.wait_for(waiting, 3)).status_code == 204
    thread.join(5)
    assert owner_of(dependency).state.in_use == 0


async def test_b76_cancelled_waiters_hand_on_what_they_were_granted() -> None:
    dependency = _dependency(queue=64)

    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.001)
        return httpx.Response(200)

    async with httpx.AsyncClient(
        transport=AsyncResilientTransport([dependency], httpx.MockTransport(answer))
    ) as client:
        tasks = [asyncio.ensure_future(client.get(URL)) for _ in range(40)]
        for number, task in enumerate(tasks):
            if number % 2:
                await asyncio.sleep(0.001)
                task.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert sum(isinstance(each, httpx.Response) for each in ended) >= 20
    assert (_line(dependency), owner_of(dependency).state.in_use) == (0, 0)


@pytest.mark.parametrize("max_wait", [0.05])
async def test_the_wait_is_bounded(max_wait: float) -> None:
    dependency = _dependency(max_wait=max_wait)
    owner = owner_of(dependency)
    assert owner.state.take_slot()
    inner = httpx.MockTransport(lambda request: httpx.Response(204))
    async with httpx.AsyncClient(transport=AsyncResilientTransport([dependency], inner)) as client:
        began = time.monotonic()
        with pytest.raises(httpx.TransportError, match="no more calls"):
            await client.get(URL)
        assert time.monotonic() - began >= max_wait
    owner.state.give_slot()
    assert (_line(dependency), owner.state.in_use) == (0, 0)


async def test_a_waiter_that_is_collected_while_its_thread_holds_the_lock_leaves_the_line() -> None:
    dependency = _dependency()
    owner = owner_of(dependency)
    assert owner.state.take_slot()
    inner = httpx.MockTransport(lambda request: httpx.Response(204))
    transport = AsyncResilientTransport([dependency], inner)
    call = transport.handle_async_request(httpx.Request("GET", URL))
    call.send(None)
    assert _line(dependency) == 1
    with owner._lock:
        call.close()
    owner.snapshot()
    owner.state.give_slot()
    assert (_line(dependency), owner.state.in_use) == (0, 0)
