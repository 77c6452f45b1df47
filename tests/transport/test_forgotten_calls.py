"""Calls and responses that nobody has ended: what the collector does about them, and what the next call does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import httpx
import pytest

from resilient_mw import CancelReason, Dependency, RequestCancelled, ResilienceWarning, RetryPolicy
from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.calls.call import Call
from resilient_mw.calls.events import Failure, Head, Start
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import CURRENT
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw.runtime.drive_async import drive
from resilient_mw.runtime.thread_context import ThreadContext
from resilient_mw_integrations.httpx import AsyncResilientTransport, ResilientTransport

URL = "http://127.0.0.1/1"


def _dependency() -> Dependency:
    return Dependency("prices", "http://127.0.0.1/*", retry=None, bulkhead=1)


class Silent(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError


def _foreign(dependency: Dependency) -> AsyncResilientTransport:
    return AsyncResilientTransport([dependency], Silent())


def _bounded(dependency: Dependency) -> AsyncResilientTransport:
    transport: Any = AsyncResilientTransport([dependency])
    transport._inner = Silent()
    return transport  # type: ignore[no-any-return]


def _closed_while_locked(owner: DependencyOwner, coroutine: Any) -> None:
    """Close a coroutine as the collector would that runs in a thread which decides, in a context of its own."""
    with owner._lock:
        try:
            coroutine.close()
        except RuntimeError:
            pass  # The loop is closed. The collector would say so, and go on.


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [_foreign, _bounded])
def test_a_call_whose_loop_is_gone_does_not_wait_for_the_lock(
    make: Callable[[Dependency], AsyncResilientTransport],
) -> None:
    dependency = _dependency()
    owner = owner_of(dependency)
    transport = make(dependency)
    loop = asyncio.new_event_loop()
    coroutine = transport.handle_async_request(httpx.Request("GET", URL))
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    assert owner.snapshot().in_use == 1
    thread = threading.Thread(target=_closed_while_locked, args=(owner, coroutine), daemon=True)
    thread.start()
    thread.join(2)
    assert not thread.is_alive()
    assert owner.snapshot().in_use == 0
    task.set_name("ended")  # It lives until here.


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        yield b"1"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"1"

    def close(self) -> None:
        raise httpx.ReadError("the connection is gone")

    async def aclose(self) -> None:
        self.close()


def _answers() -> Callable[[httpx.Request], httpx.Response]:
    calls = iter(range(2))
    return lambda _request: httpx.Response(200, **({"text": "well"} if next(calls) else {"stream": Broken()}))


def test_a_forgotten_response_that_cannot_be_closed_does_not_fail_the_next_call() -> None:
    transport = ResilientTransport([_dependency()], httpx.MockTransport(_answers()))
    with pytest.warns(ResilienceWarning, match="thrown away"):
        transport.handle_request(httpx.Request("GET", URL))
    assert transport.handle_request(httpx.Request("GET", URL)).status_code == 200


async def test_nor_that_of_an_async_client() -> None:
    transport = AsyncResilientTransport([_dependency()], httpx.MockTransport(_answers()))
    with pytest.warns(ResilienceWarning, match="thrown away"):
        await transport.handle_async_request(httpx.Request("GET", URL))
    assert (await transport.handle_async_request(httpx.Request("GET", URL))).status_code == 200


def test_a_thread_tries_nothing_again_for_a_request_that_is_cancelled() -> None:
    context = ThreadContext(MONOTONIC.now() + 30, MONOTONIC)
    asked = 0

    def busy(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        context.reason = CancelReason.CLIENT_DISCONNECT
        return httpx.Response(503)

    retry = RetryPolicy(attempts=3, backoff_base=0.02, budget_ratio=None)
    dependency = Dependency("prices", "http://127.0.0.1/*", retry=retry, bulkhead=1)
    transport = ResilientTransport([dependency], httpx.MockTransport(busy))
    token = CURRENT.set(context)
    try:
        with pytest.raises(RequestCancelled):
            transport.handle_request(httpx.Request("GET", URL))
    finally:
        CURRENT.reset(token)
    assert asked == 1
    assert dependency.snapshot().in_use == 0


class Torn:
    """Attempts that break when they are ended."""

    async def attempt(self, start: Start) -> Head | Failure:
        try:
            await Suspended()
        finally:
            raise RuntimeError("the loop is closed")

    async def discard(self, number: int) -> None:
        pass

    async def sleep(self, until: float, waiter: Waiter | None = None) -> None:
        raise AssertionError


class Suspended:
    def __await__(self) -> Generator[None, None, None]:
        yield None


def test_what_breaks_on_the_way_out_does_not_hide_that_it_is_a_collection() -> None:
    owner = owner_of(_dependency())
    coroutine = drive(owner, Call(owner.state, "GET"), Torn())
    coroutine.send(None)
    assert owner.snapshot().in_use == 1
    thread = threading.Thread(target=_closed_while_locked, args=(owner, coroutine), daemon=True)
    thread.start()
    thread.join(2)
    assert not thread.is_alive()
    assert owner.snapshot().in_use == 0
