"""The sync half: the attempts of a call through an inner transport, in the caller's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from resilient_mw.calls.attempt import ShortAttempt
from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.calls.events import Failure, Head, Phase, Start
from resilient_mw.core.call_watch import WATCHES
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.drive_sync import First, drive
from resilient_mw.runtime.race_sync import Flight
from resilient_mw.runtime.slot_waits import Sleeper, check_wanted, listen
from resilient_mw.runtime.watched import watched
from resilient_mw.transport.exchange import DRAIN_LIMIT, Exchange
from resilient_mw.transport.fallback import call_or_fall_back
from resilient_mw.transport.half import Half
from resilient_mw.transport.library import Library
from resilient_mw.transport.passage import Passage, Route
from resilient_mw.transport.scope import SCOPE
from resilient_mw.transport.streams import Delivery

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class SyncCalls(Half[Sleeper], Generic[RequestT, ResponseT]):
    """A transport that makes calls to dependencies, and passes every other request on. Arguments as of `Half`."""

    def handle_request(self, request: RequestT) -> ResponseT:
        """Send a request and return the response.

        Raises:
            Exception: of the library; those that are of `resilient_mw` as well are listed in `transport/errors.py`.
        """
        asked: Any = request
        response: ResponseT
        route = self._alone.get(self._origin(asked.url))
        if route is not None and not self._lost:
            response = self._pass(route, asked)
            return response
        while self._lost:
            with suppress(Exception):  # This request has nothing to do with it.
                self._lost.popleft().close()
        owner = self._directory.find(asked.url)
        if owner is None:
            response = self._inner.handle_request(request)
            return response
        if owner.dependency.fallback is None or not self._stands_by:
            self._routes.learn(asked.url, owner)
            response = self._call(owner, asked)
        else:
            response = call_or_fall_back(self._library, owner, asked, self._call)
        return response

    def _call(self, owner: DependencyOwner, request: Any) -> Any:
        return self._pass(self._routes.of(owner), request)

    def _pass(self, route: Route, request: Any) -> Any:
        """Make a call, on its short way as far as that leads."""
        if WATCHES:
            return self._drive(self._exchange(watched(route.owner, http=True), request))
        passage = Passage(route, request)
        response = None
        try:
            sent = passage.begin(passage.trace)
            if sent is not None:
                token = SCOPE.set(passage)
                try:
                    response = self._inner.handle_request(sent)
                finally:
                    SCOPE.reset(token)
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
        return self._drive(exchange, first)

    def _exchange(
        self, owner: DependencyOwner, request: Any, begun: ShortAttempt | None = None
    ) -> SyncExchange:
        library, inner, bounded = self._library, self._inner, self._bounded
        return SyncExchange(library, owner, request, inner, self._sleepers, bounded=bounded, begun=begun)

    def _drive(self, exchange: SyncExchange, first: First | None = None) -> Any:
        """Make a call, or what is left of it after its first attempt; return the response."""
        racers = exchange.allow_hedges() if self._hedges else None
        try:
            action = drive(exchange.owner, exchange.sending.call, exchange, racers, first)
        except BaseException:
            exchange.forget()
            raise
        return self._delivered(exchange, action)

    def _body(self, delivery: Delivery) -> Any:
        library = self._library
        return library.sync_body(delivery, library.transport_error, library.timeout)

    def close(self) -> None:
        """Close the inner transport; calls that wait for their next attempt end at once with an error."""
        self._wake()
        self._inner.close()

    def _wake(self) -> None:
        # Another client may share this transport and go on: only those who wait now are woken.
        for sleeper in list(self._sleepers):
            sleeper.closed = True
            sleeper.set()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._wake()
        self._inner.__exit__(kind, error, traceback)


class SyncExchange(Exchange):
    """One call: what the driver is given."""

    def __init__(
        self,
        library: Library,
        owner: DependencyOwner,
        request: Any,
        inner: Any,
        sleepers: set[Sleeper],
        *,
        bounded: bool,
        begun: ShortAttempt | None = None,
    ) -> None:
        super().__init__(library, owner, request, library.sync_upload, bounded=bounded, begun=begun)
        self._inner = inner
        self._sleepers = sleepers

    def attempt(self, start: Start) -> Head | Failure:
        """Make an attempt up to its response head."""
        scope = self.sending.scope(start)
        request = self.sending.attempt(start, self.sending.trace(scope).sync)
        token = SCOPE.set(scope)
        try:
            response = self._inner.handle_request(request)
        except self.library.transport_error as error:
            failure = self.broke(error, scope)
            if failure is None:
                raise
            return failure
        finally:
            SCOPE.reset(token)
        return self.answered(response, scope)

    def launch(self, start: Start, land: Callable[[Flight], None]) -> Flight:
        """Begin an attempt in a thread of its own, with the context of this one."""
        scope = self.sending.scope(start)
        request = self.sending.attempt(start, self.sending.trace(scope, start.number).sync)
        flight = Flight(start.number, scope)
        context = copy_context()
        context.run(SCOPE.set, scope)
        thread = threading.Thread(
            target=context.run,
            args=(flight.fly, partial(self._inner.handle_request, request), land),
            name=f"resilient_mw: attempt at {self.owner.dependency.name}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:
            flight.fly(partial(self._no_thread, error), land)  # It has failed; one beside it may go on.
        return flight

    def _no_thread(self, error: RuntimeError) -> NoReturn:
        """Raise what an attempt fails with that has no thread: nothing was sent, and the fault lies on our side."""
        message = "the attempt was not made: no thread could be started for it"
        raise self.library.timed_out(Phase.POOL, message) from error

    def landed(self, flight: Flight) -> Head | Failure:
        """Take what became of an attempt in a thread."""
        error = flight.error
        if error is None:
            return self.answered(flight.response, flight.scope)
        failure = self.broke(error, flight.scope) if isinstance(error, self.library.transport_error) else None
        if failure is None:
            raise error
        return failure

    def drop(self) -> None:
        """Close the response that is kept."""
        response, self.response = self.response, None
        if response is not None:
            with suppress(self.library.transport_error):  # It was not wanted, and its connection is gone.
                response.close()

    def discard(self, number: int) -> None:  # noqa: ARG002  There is one at a time.
        """Close the response that is kept of an attempt, if there is one; read it before, where that is cheap."""
        response, self.response = self.response, None
        if response is None or response.is_closed:
            return
        try:
            if self.bounded:
                self._drain(response)
        finally:
            try:
                response.close()
            except self.library.transport_error:
                pass  # It was not wanted, and its connection is gone.

    def _drain(self, response: Any) -> None:
        scope = self.draining()
        token = SCOPE.set(scope)
        try:
            size = 0
            for chunk in response.stream:
                size += len(chunk)
                if size > DRAIN_LIMIT:
                    return
        except self.library.transport_error:
            pass
        finally:
            SCOPE.reset(token)

    def sleep(self, until: float, waiter: Waiter | None = None) -> None:
        """Wait until an instant, until a waiter is granted, or until the transport is closed."""
        sleeper = Sleeper()
        self._sleepers.add(sleeper)
        try:
            if listen(waiter, sleeper.set):
                return
            sleeper.wait(until - self.owner.clock.now())
        finally:
            self._sleepers.discard(sleeper)
        if sleeper.closed:
            raise self.closed()
        check_wanted()
