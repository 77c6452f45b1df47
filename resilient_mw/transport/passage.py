"""A call on its short way (see `ShortWay`): one object that is its first attempt and its scope.

Requests go it whose caller says nothing of his own in our fields, and whose body is bytes. What becomes of anything but a
good head is the matter of an `Exchange`, which takes the attempt over.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from operator import itemgetter
from typing import Any

from resilient_mw.calls.attempt import ShortAttempt
from resilient_mw.calls.call import Call
from resilient_mw.calls.events import Actions, Failure, Phase
from resilient_mw.calls.fields import Line, Lines
from resilient_mw.core.headers.deadlines import format_timeout_ms
from resilient_mw.core.headers.retry_owner import RetryOwner
from resilient_mw.runtime.context import CURRENT, NO_REQUEST
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.transport.exchange import BODILESS, Exchange
from resilient_mw.transport.library import Library
from resilient_mw.transport.prepare import Directory
from resilient_mw.transport.scope import Scope
from resilient_mw.transport.streams import Delivery
from resilient_mw.transport.timeouts import Timeouts, timeouts_of
from resilient_mw.transport.trace import Trace

NAME_OF: Callable[[Line], bytes] = itemgetter(1)
"""Of a header field, in lower case."""


class Route:
    """What the calls of one transport to one dependency have in common.

    Args:
        library: the client library.
        owner: the owner of the dependency's state.
        exchange: makes the exchange of a call that leaves its short way.
        body: makes the body of a delivered response.
        bounded: whether each operation of the inner transport ends with the attempt.
        lost: where to put a body that is thrown away unclosed.

    Attributes:
        plain: what bodies of requests may be that go the short way; None: none of them may, for the user decides himself.
        usual: the fields of an attempt that the caller's budget does not shorten, outside of whoever retries.
        timeouts: timeouts of a caller, and what follows from them for such an attempt: the last ones. Not to be changed.
    """

    def __init__(
        self,
        library: Library,
        owner: DependencyOwner,
        exchange: Callable[[DependencyOwner, Any, Passage | None], Exchange],
        *,
        body: Callable[[Delivery], Any],
        bounded: bool,
        lost: Callable[[Any], None],
    ) -> None:
        dependency = owner.dependency
        self.lines_of, self.copy = library.lines, library.copy
        self.owner = owner
        self.exchange = exchange
        self.body, self.bounded, self.lost = body, bounded, lost
        self.fields = fields = dependency.fields
        self.plain: type | None = library.bytes_stream if fields.retry_if is None else None
        self.named = fields.named
        self.key_methods = fields.key_methods
        self.heard = fields.heard
        self.clock = owner.clock
        self.total = math.inf if dependency.total_timeout is None else dependency.total_timeout
        self.limit = math.inf if dependency.timeout is None else dependency.timeout
        self.connect = math.inf if dependency.connect_timeout is None else dependency.connect_timeout
        self.usual = self.lines(self.limit, None)
        self.timeouts: tuple[Timeouts | None, Timeouts] = None, self._timeouts(None, self.limit)

    def lines(self, timeout: float, above: RetryOwner | None) -> Lines:
        """Return the fields of a first attempt that may take so many seconds."""
        fields = self.fields
        told = fields.owner_lines(above, 1) if fields.tells else ()
        if fields.deadline is None or timeout == math.inf:
            return told
        return ((*fields.deadline, format_timeout_ms(timeout).encode("ascii")), *told)

    def timeouts_of(self, caller: Timeouts | None, timeout: float) -> Timeouts:
        """Return the library's timeouts of an attempt that may take so many seconds."""
        timeouts = self._timeouts(caller, timeout)
        if timeout == self.limit:
            self.timeouts = None if caller is None else dict(caller), timeouts
        return timeouts

    def _timeouts(self, caller: Timeouts | None, timeout: float) -> Timeouts:
        return timeouts_of(caller, timeout, min(timeout, self.connect))


class Routes:
    """The routes of one transport.

    Args:
        library: the client library.
        directory: who is called.
        make: makes a route.

    Attributes:
        origin: what a URL says of scheme, host and port.
        alone: by that, the routes of all that goes to one dependency, whatever its path.
    """

    MOST_ORIGINS = Directory.MOST_ORIGINS

    def __init__(
        self, library: Library, directory: Directory, make: Callable[[DependencyOwner], Route]
    ) -> None:
        self.origin = library.origin
        self.alone: dict[tuple[Any, ...], Route] = {}
        self._directory = directory
        self._make = make
        self._made: dict[DependencyOwner, Route] = {}

    def of(self, owner: DependencyOwner) -> Route:
        """Return the route to a dependency."""
        route = self._made.get(owner)
        if route is None:
            route = self._made[owner] = self._make(owner)
        return route

    def learn(self, url: Any, owner: DependencyOwner) -> None:
        """Keep the route of a URL, if all of its origin go there. To be told of those that no fallback stands by."""
        if self._directory.is_alone(url):
            if len(self.alone) >= self.MOST_ORIGINS:
                self.alone.clear()
            self.alone[self.origin(url)] = self.of(owner)


class Passage(ShortAttempt, Scope):
    """One call on its short way.

    Args:
        route: what it shares with others.
        request: the request of the caller. It is not changed.
    """

    _trace: Trace | None = None

    def __init__(self, route: Route, request: Any) -> None:
        self._route = route
        self._clock = route.clock
        self.request = request

    @property
    def timeout(self) -> float:
        """Seconds that the attempt may take; inf: no bound."""
        return self.until - self.started_at

    def begin(self, trace: Callable[..., Any]) -> Any:
        """Begin; return the request of the attempt, a copy with its own timeouts and what is left of the budget.

        Args:
            trace: what the library tells of the attempt's way.

        Returns:
            None if the call has to go the long way. Nothing has happened then.
        """
        route, request = self._route, self.request
        lines = route.lines_of(request.headers)
        if (
            type(request.stream) is not route.plain
            or request.method in route.key_methods
            or not route.named.isdisjoint(map(NAME_OF, lines))
        ):
            return None
        context, above = CURRENT.get(), None
        if context is NO_REQUEST:
            timeout = route.owner.begin_short(self, route.total, None)
        else:
            now = route.clock.now()
            left = context.remaining()
            if route.heard is not None:
                above = context.retry_owner(route.heard)
            timeout = route.owner.begin_short(self, route.total, None if left == math.inf else now + left)
        if not timeout:
            return None
        extensions = request.extensions
        caller = extensions.get("timeout")
        if above is None and timeout == route.limit:
            ours = route.usual
            known, timeouts = route.timeouts
            if caller != known:
                timeouts = route.timeouts_of(caller, timeout)
        else:
            ours, timeouts = route.lines(timeout, above), route.timeouts_of(caller, timeout)
        extensions = {**extensions, "timeout": timeouts.copy(), "trace": trace}
        return route.copy(request, [*lines, *ours], request.stream, extensions)

    def passes(self, response: Any) -> bool:
        """Take a response; return whether it is to be handed to the caller as it is now. False: the long way decides."""
        status: int = response.status_code
        if status >= 400:
            return False
        owner = self._route.owner
        if response.is_closed or status in BODILESS or self.request.method == "HEAD":
            owner.end_short(self.way, self, status)
        else:
            owner.head_short(self.way, self, status)
            route = self._route
            response.stream = route.body(
                Delivery(self, self, response.stream, bounded=route.bounded, lost=route.lost)
            )
        return True

    # -- what the library tells of the attempt's way ---------------------------------------------------------------------

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Take an event of a sync client."""
        self._followed().sync(event, info)

    def atrace(self, event: str, info: Mapping[str, Any]) -> Awaitable[None]:
        """Take an event of an async client."""
        return self._followed().aio(event, info)

    def _followed(self) -> Trace:
        if self._trace is None:
            outer = self.request.extensions.get("trace")
            self._trace = Trace(self, self._route.fields.deadline, self._allowance, outer)
        return self._trace

    def _allowance(self) -> str | None:
        left = self.way.budget(self._clock.now(), self)
        return None if left == math.inf else format_timeout_ms(left)

    # -- what its body tells ---------------------------------------------------------------------------------------------

    def end(self, failure: Failure | None) -> Actions:
        """Tell that the delivered body has ended."""
        owner = self._route.owner
        if failure is not None:
            return owner.end(self._machine(), failure)
        owner.end_short(self.way, self)
        return ()

    def cancel(self) -> None:
        """Tell that the caller gave up."""
        self._route.owner.cancel(self._machine())

    def abandon(self) -> str:
        """Leave the call to whoever comes next; return the name of its dependency."""
        owner = self._route.owner
        owner.abandon(self._machine())
        return owner.dependency.name

    def _machine(self) -> Call:
        """Return the machine that takes the delivered attempt over: there is nothing that it could try again."""
        deadline_at = self.until if self.deadline_at is None else self.deadline_at
        call = Call(self.way.state, self.request.method, deadline_at=deadline_at)
        call.take_over(self)
        return call

    def _exchange(self) -> Exchange:
        """Return an exchange, which knows what errors say."""
        return self._route.exchange(self._route.owner, self.request, self)

    def body_timeout(self) -> Exception:
        """Return the library's own error of a timeout in the body."""
        return self._exchange().body_timeout()

    def expiry(self, phase: Phase) -> Exception:
        """Return the error of a deadline that passed in a phase."""
        error: Exception = self._exchange().expiry(phase)
        return error
