"""What the sync and the async half of a transport have in common: whom they call, and what becomes of a call that has ended."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from resilient_mw.calls.attempt import ShortAttempt
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Action, Deliver
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.transport.exchange import Exchange
from resilient_mw.transport.fallback import can_fall_back
from resilient_mw.transport.library import Library
from resilient_mw.transport.passage import Route, Routes
from resilient_mw.transport.prepare import Directory, can_hedge
from resilient_mw.transport.streams import Delivery

SleeperT = TypeVar("SleeperT")


class Half(Generic[SleeperT]):
    """A transport that makes calls to dependencies, and passes every other request on.

    Args:
        library: the client library.
        dependencies: who is called; the first one that matches a request is the one.
        inner: the transport that sends. It is closed with this one.
        bounded: whether each of its operations ends with the attempt.

    Raises:
        ValueError: the dependencies do not go together.
    """

    def __init__(
        self, library: Library, dependencies: Sequence[Dependency], inner: Any, *, bounded: bool
    ) -> None:
        self._library = library
        self._directory = Directory(dependencies)
        self._stands_by = can_fall_back(library, dependencies)
        self._hedges = can_hedge(library, dependencies)
        self._inner = inner
        self._bounded = bounded
        self._sleepers: set[SleeperT] = set()
        self._lost: deque[Any] = deque()
        self._routes = routes = Routes(library, self._directory, self._route)
        self._alone, self._origin = routes.alone, routes.origin

    def _route(self, owner: DependencyOwner) -> Route:
        bounded, body, lost = self._bounded, self._body, self._lost.append
        return Route(self._library, owner, self._exchange, body=body, bounded=bounded, lost=lost)

    def _delivered(self, exchange: Exchange, action: Action) -> Any:
        """Return the response of a call that ends with this action.

        Raises:
            Exception: of the library: the call ends without one.
        """
        if not isinstance(action, Deliver):
            try:
                raise exchange.outcome(action)
            finally:
                exchange.forget()
        response = exchange.response
        delivery = exchange.delivery(self._lost.append)
        if delivery is not None:
            response.stream = self._body(delivery)
        return response

    @abstractmethod
    def _exchange(self, owner: DependencyOwner, request: Any, begun: ShortAttempt | None = None) -> Exchange:
        """Return a call; it goes on with the first attempt, if that has begun on the short way."""

    @abstractmethod
    def _body(self, delivery: Delivery) -> Any:
        """Return the body of a response, as the library reads it."""
