"""One call on its way: the last response or error of its attempts, and what becomes of it in the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

from resilient_mw.calls.attempt import ShortAttempt
from resilient_mw.calls.events import Action, Actions, Expire, Failure, Head, Phase, Refuse
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.clocks import wall_clock
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.transport.errors import closed_message, expired_message, refused_message
from resilient_mw.transport.facts import failure_of, head_of
from resilient_mw.transport.library import Library
from resilient_mw.transport.prepare import Sending
from resilient_mw.transport.scope import Scope
from resilient_mw.transport.streams import Delivery

BODILESS = frozenset({204, 304})

DRAIN_LIMIT = 65_536
"""Bytes of a discarded response that are read so that its connection can be used again."""
DRAIN_SECONDS = 0.05
"""Seconds for it: a new connection costs about as much."""


class Exchange:
    """What the sync and the async half have in common.

    Args:
        library: the client library.
        owner: the owner of the dependency's state.
        request: the request of the caller.
        upload: wraps a body that can be sent once.
        bounded: whether each operation of the inner transport ends with the attempt. Only then a discarded response
            is read to its end.
        begun: the first attempt; if it has begun on the short way, the call goes on with it.
    """

    def __init__(
        self,
        library: Library,
        owner: DependencyOwner,
        request: Any,
        upload: Callable[[Any], Any],
        *,
        bounded: bool,
        begun: ShortAttempt | None = None,
    ) -> None:
        self.library = library
        self.owner = owner
        self.request = request
        self.sending = Sending(library, owner, request, upload, begun)
        self.bounded = bounded
        self.response: Any = None
        self.scope: Scope | None = None
        self.error: BaseException | None = None

    def allow_hedges(self) -> Self | None:
        """Return this, if the call may have several attempts under way; None: it may not."""
        if self.owner.state.hedging is None:
            return None
        self.sending.allow_hedges()
        return self

    def answered(self, response: Any, scope: Scope) -> Head:
        """Keep a response; return what its head says."""
        self.response, self.scope = response, scope
        return head_of(self.owner.dependency, response, wall_clock(), whole=self._is_whole(response))

    def _is_whole(self, response: Any) -> bool:
        """Return whether nothing of a response is left to come."""
        if self.request.method == "HEAD" or response.status_code in BODILESS:
            return True
        closed: bool = response.is_closed
        return closed

    def broke(self, error: Exception, scope: Scope) -> Failure | None:
        """Keep an error; return how the attempt failed, None if it did not, and the error is to be raised as it is."""
        sending = self.sending
        rule = sending.dependency.fields.retry_if
        failure = failure_of(self.library, error, scope, consumed=sending.consumed, rule=rule)
        if failure is not None:
            self.error = error
            told: Any = error
            told.phase = failure.phase  # Where it died, also where the error is the library's own.
            if failure.timed_out:
                error.add_note(self._limits(failure.phase))
        return failure

    def first_failed(self, error: BaseException, scope: Scope) -> Callable[[], Head | Failure] | None:
        """Keep what a first attempt on the short way raised; return who says how it failed, or raises that again."""
        self.error, self.scope = error, scope
        return self._first_failed

    def first_answered(self, response: Any, scope: Scope) -> Callable[[], Head | Failure] | None:
        """Return who says what the head says that a first attempt got on the short way; None: there is none."""
        return None if response is None else partial(self.answered, response, scope)

    def _first_failed(self) -> Failure:
        failure, error, scope = None, self.error, self.scope
        if isinstance(error, self.library.transport_error) and scope is not None:
            failure = self.broke(error, scope)
        del error  # It will know this frame.
        if failure is None:
            raise self.error or RuntimeError("an attempt has failed without an error")
        return failure

    def outcome(self, action: Action) -> Exception:
        """Return what to raise at the end of a call without a response."""
        dependency = self.owner.dependency
        error: Any = self.error
        if isinstance(action, Expire):
            error = self.expiry(action.phase)
        elif isinstance(action, Refuse):
            small = action.reason is Reason.INSUFFICIENT_BUDGET
            make = self.library.too_small if small else self.library.refused
            error = make(refused_message(dependency, action), action.reason, dependency.name, action.retry_in)
            error.request = self.request
        if error is None:
            error = RuntimeError(f"the call ended with {action!r} and without an error")
        if error is not self.error:
            error.__cause__ = self.error
        result: Exception = error
        return result

    def closed(self) -> Exception:
        """Return the error of a call whose transport was closed while it waited."""
        name = self.owner.dependency.name
        error: Any = self.library.closed(closed_message(self.owner.dependency), name)
        error.request = self.request
        error.__cause__ = self.error
        result: Exception = error
        return result

    def draining(self) -> Scope:
        """Return the scope of reading a response that is not wanted."""
        clock = self.owner.clock
        until = clock.now() + DRAIN_SECONDS
        return Scope(clock, until if self.scope is None else min(until, self.scope.until))

    def delivery(self, lost: Callable[[Any], None]) -> Delivery | None:
        """Return the delivered response as its call sees it; None if it has no body to wait for."""
        response, scope = self.response, self.scope
        self.forget()
        if scope is None or self._is_whole(response):
            self.owner.end(self.sending.call, None)
            return None
        return Delivery(self, scope, response.stream, bounded=self.bounded, lost=lost)

    def end(self, failure: Failure | None) -> Actions:
        """Tell that the delivered body has ended."""
        return self.owner.end(self.sending.call, failure)

    def cancel(self) -> None:
        """Tell that the caller gave up."""
        self.owner.cancel(self.sending.call)

    def abandon(self) -> str:
        """Leave the call to whoever comes next; return the name of its dependency."""
        self.owner.abandon(self.sending.call)
        return self.owner.dependency.name

    def forget(self) -> None:
        """Let go of the last response and error, which know this call as well, so that nothing waits for a collection."""
        self.response = self.error = None

    def body_timeout(self) -> Exception:
        """Return the library's own error of a timeout in the body."""
        error: Any = self.library.timed_out(Phase.BODY, "the response body was not over in time")
        error.request = self.request
        error.phase = Phase.BODY
        error.add_note(self._limits(Phase.BODY))
        result: Exception = error
        return result

    def expiry(self, phase: Phase) -> Any:
        """Return the error of a deadline that passed in a phase."""
        dependency = self.owner.dependency
        message = expired_message(dependency, phase, self.sending.call.attempts)
        error: Any = self.library.expired(message, phase, dependency.name)
        error.request = self.request
        return error

    def _limits(self, phase: Phase) -> str:
        dependency = self.owner.dependency
        return (
            f"dependency {dependency.name!r}, attempt {self.sending.call.attempts}, phase {phase.value}: "
            f"Dependency(timeout={dependency.timeout}, connect_timeout={dependency.connect_timeout}) and the client's own "
            "timeouts bound an attempt"
        )
