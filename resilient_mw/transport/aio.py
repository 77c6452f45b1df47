"""The async half: the attempts of a call through an inner transport, in the caller's task. For asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from resilient_mw.calls.attempt import ShortAttempt
from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.calls.events import Failure, Head, Start
from resilient_mw.core.call_watch import WATCHES
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.drive_async import drive
from resilient_mw.runtime.drive_sync import First
from resilient_mw.runtime.race_async import Flight
from resilient_mw.runtime.slot_waits import listen, wake, wake_task
from resilient_mw.runtime.watched import watched
from resilient_mw.transport.exchange import DRAIN_LIMIT, Exchange
from resilient_mw.transport.fallback import acall_or_fall_back
from resilient_mw.transport.half import Half
from resilient_mw.transport.leaving import leave_task
from resilient_mw.transport.library import Library
from resilient_mw.transport.passage import Passage, Route
from resilient_mw.transport.reading import (
    Overdue,
    Reading,
    close_later,
    close_reading,
    close_uncancelled,
    forget,
)
from resilient_mw.transport.scope import GRACE, SCOPE, Scope, leave
from resilient_mw.transport.sending import check_loop, not_over, send_beside, send_rest, send_within
from resilient_mw.transport.streams import Delivery

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class AsyncCalls(Half[asyncio.Future[None]], Generic[RequestT, ResponseT]):
    """A transport that makes calls to dependencies, and passes every other request on. Arguments as of `Half`."""

    def handle_async_request(self, request: RequestT) -> Coroutine[Any, Any, ResponseT]:
        """Send a request and return the response, when this is awaited.

        Raises:
            UnsupportedEventLoop: this is no task of asyncio.
            Exception: of the library; those that are of `resilient_mw` as well are listed in `transport/errors.py`.
        """
        asked: Any = request
        route = self._alone.get(self._origin(asked.url))
        return self._handle(request) if route is None or self._lost else self._pass(route, asked)

    async def _handle(self, request: RequestT) -> ResponseT:
        while self._lost:
            with suppress(Exception):  # This request has nothing to do with it.
                await close_uncancelled(self._lost.popleft())
        asked: Any = request
        response: ResponseT
        owner = self._directory.find(asked.url)
        if owner is None:
            response = await self._inner.handle_async_request(request)
            return response
        if owner.dependency.fallback is None or not self._stands_by:
            self._routes.learn(asked.url, owner)
            response = await self._call(owner, asked)
        else:
            response = await acall_or_fall_back(self._library, owner, asked, self._call)
        return response

    async def _call(self, owner: DependencyOwner, request: Any) -> Any:
        return await self._pass(self._routes.of(owner), request)

    async def _pass(self, route: Route, request: Any) -> Any:
        """Make a call, on its short way as far as that leads."""
        check_loop()
        if WATCHES:
            return await self._drive(self._exchange(watched(route.owner, http=True), request))
        passage = Passage(route, request)
        response = None
        try:
            sent = passage.begin(passage.atrace)
            if sent is not None:
                token = SCOPE.set(passage)
                try:
                    if self._bounded:
                        response = await send_beside(
                            self._inner, sent, passage, passage.timeout, self._library
                        )
                    else:
                        steps = self._inner.handle_async_request(sent).__await__()
                        response = await send_rest(steps, next(steps), passage, self._library)
                except StopIteration as ended:  # At the first step: it has not waited for anything.
                    response = ended.value
                finally:
                    leave(token)
                if passage.passes(response):
                    return response
        except BaseException as error:
            if not passage.under_way:
                raise
            exchange = self._exchange(route.owner, request, passage)
            first = exchange.first_failed(error, passage)
        else:
            exchange = self._exchange(route.owner, request, passage)
            first = exchange.first_answered(response, passage)
        return await self._drive(exchange, first)

    def _exchange(
        self, owner: DependencyOwner, request: Any, begun: ShortAttempt | None = None
    ) -> AsyncExchange:
        library, inner, bounded = self._library, self._inner, self._bounded
        return AsyncExchange(library, owner, request, inner, self._sleepers, bounded=bounded, begun=begun)

    async def _drive(self, exchange: AsyncExchange, first: First | None = None) -> Any:
        """Make a call, or what is left of it after its first attempt; return the response."""
        racers = exchange.allow_hedges() if self._hedges else None
        try:
            action = await drive(exchange.owner, exchange.sending.call, exchange, racers, first)
        except BaseException:
            exchange.forget()
            raise
        return self._delivered(exchange, action)

    def _body(self, delivery: Delivery) -> Any:
        library = self._library
        return library.async_body(delivery, library.transport_error, library.timeout)

    async def aclose(self) -> None:
        """Close the inner transport; calls that wait for their next attempt end at once with an error."""
        self._wake()
        await self._inner.aclose()

    def _wake(self) -> None:
        for sleeper in self._sleepers:
            wake(sleeper)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._wake()
        await self._inner.__aexit__(kind, error, traceback)


class AsyncExchange(Exchange):
    """One call: what the driver is given."""

    def __init__(
        self,
        library: Library,
        owner: DependencyOwner,
        request: Any,
        inner: Any,
        sleepers: set[asyncio.Future[None]],
        *,
        bounded: bool,
        begun: ShortAttempt | None = None,
    ) -> None:
        super().__init__(library, owner, request, library.async_upload, bounded=bounded, begun=begun)
        self._inner = inner
        self._send = send_beside if bounded else send_within
        self._sleepers = sleepers

    async def attempt(self, start: Start) -> Head | Failure:
        """Make an attempt up to its response head."""
        scope = self.sending.scope(start)
        request = self.sending.attempt(start, self.sending.trace(scope).aio)
        token = SCOPE.set(scope)
        try:
            response = await self._send(self._inner, request, scope, start.timeout, self.library)
        except self.library.transport_error as error:
            failure = self.broke(error, scope)
            if failure is None:
                raise
            return failure
        finally:
            leave(token)
        return self.answered(response, scope)

    def launch(self, start: Start) -> Flight:
        """Begin an attempt in a task of its own."""
        scope = self.sending.scope(start)
        request = self.sending.attempt(start, self.sending.trace(scope, start.number).aio)
        token = SCOPE.set(scope)
        try:
            task = asyncio.ensure_future(self._inner.handle_async_request(request))
        finally:
            leave(token)
        return Flight(task, scope.until if self.bounded else scope.until + GRACE, scope)

    def landed(self, flight: Flight) -> Head | Failure:
        """Take what became of an attempt in a task, or end it if its time is over."""
        try:
            if not flight.task.done():
                leave_task(flight.task, flight.scope, bounded=self.bounded)
                raise not_over(flight.scope, self.library)
            response = flight.task.result()
        except self.library.transport_error as error:
            failure = self.broke(error, flight.scope)
            if failure is None:
                raise
            return failure
        return self.answered(response, flight.scope)

    def drop(self) -> None:
        """Close the response that is kept, and do not wait for it."""
        response, self.response = self.response, None
        if response is not None:
            close_later(response).add_done_callback(forget)

    def leave(self, flight: Flight, ended: Callable[[], None]) -> None:
        """End an attempt, close what it has got, and then tell so."""
        leave_task(flight.task, flight.scope, bounded=self.bounded, ended=ended)

    async def discard(self, number: int) -> None:  # noqa: ARG002  There is one at a time.
        """Close the response that is kept of an attempt, if there is one; read it before, where that is cheap."""
        response, self.response = self.response, None
        if response is None or response.is_closed:
            return
        scope = self.draining()
        reading = Reading(response.stream, scope, bounded=self.bounded, closes=response)
        try:
            if self.bounded:
                await self._drain(reading, scope)
        finally:
            try:
                await close_reading(reading)
            except self.library.transport_error:
                pass  # It was not wanted, and its connection is gone.

    async def _drain(self, reading: Reading, scope: Scope) -> None:
        size = 0
        try:
            while size <= DRAIN_LIMIT:
                chunk = await reading.next(scope.left())
                if chunk is None:
                    return
                size += len(chunk)
        except (self.library.transport_error, Overdue):
            pass

    async def sleep(self, until: float, waiter: Waiter | None = None) -> None:
        """Wait until an instant, until a waiter is granted, or until the transport is closed."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if listen(waiter, partial(wake_task, sleeper)):
            return
        self._sleepers.add(sleeper)
        try:
            async with asyncio.timeout(max(0.0, until - self.owner.clock.now())):
                await sleeper
        except TimeoutError:
            return
        finally:
            self._sleepers.discard(sleeper)
        if waiter is None or not waiter.granted:
            raise self.closed()
