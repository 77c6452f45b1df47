"""Tells those who watch calls, such as a tracer, what becomes of each.

A watched call gets an owner of its own: the same state, lock and counts as the dependency's, and steps that tell what was
decided once the lock is free. A call that nobody watches has nothing to do with any of this.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial

from resilient_mw.calls.call import Call
from resilient_mw.calls.events import Actions, Deliver, Expire, Fail, Failure, Head, Refuse, Start
from resilient_mw.core.call_watch import WATCHES, AttemptEnds, CallBegins, CallEnds, CallWatch, WatchedCall
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.forks import after_fork


class Untold:
    """Ends of calls that a finalizer has found: it runs none of the watchers' code, the next watched call does."""

    def __init__(self) -> None:
        self.ends: deque[tuple[float, WatchedOwner]] = deque()
        after_fork(self)

    def forked(self) -> None:
        """Leave the ends of the parent's calls to the parent."""
        self.ends.clear()

    def tell(self) -> None:
        """Tell all of them."""
        while self.ends:
            try:
                at, owner = self.ends.popleft()
            except IndexError:  # Another thread was faster.
                return
            owner.gone(at)


_untold = Untold()


class WatchedOwner(DependencyOwner):
    """The owner of a dependency as one watched call sees it.

    Args:
        owner: the owner: everything that it has is shared.
        http: whether the call is a request; otherwise it is that of a function.
    """

    __slots__ = ("_calls", "_failure", "_http", "_is_left", "_number", "_over")

    def __init__(self, owner: DependencyOwner, *, http: bool) -> None:
        # One dictionary for both: whatever the owner is or becomes, also in a forked child, this is as well.
        self.__dict__ = owner.__dict__
        self._http = http
        self._calls: list[WatchedCall] = []
        self._failure: Failure | None = None
        self._number = 0
        self._over = self._is_left = False

    def begin(self, call: Call) -> Actions:
        """Start a call."""
        _untold.tell()
        left = call.deadline_at - self.clock.now()
        begins = CallBegins(self.dependency.name, self._http, None if left == math.inf else max(0.0, left))
        for watch in tuple(WATCHES):
            self._safely(partial(self._watched_by, watch, begins))
        actions = super().begin(call)
        breaker = call.group.breaker
        state = None if breaker is None else breaker.state.value
        self._tell_all(lambda each: each.decided(state))
        return self._looked_at(call, actions)

    def resume(self, call: Call, at: float) -> Actions:
        """Go on after a back-off."""
        return self._looked_at(call, super().resume(call, at))

    def queued(self, call: Call) -> Actions:
        """Go on after waiting for a slot."""
        return self._looked_at(call, super().queued(call))

    def tell(self, call: Call, number: int, outcome: Head | Failure) -> Actions:
        """Tell what became of an attempt."""
        actions = super().tell(call, number, outcome)
        if isinstance(outcome, Head):
            ended = AttemptEnds(number, outcome.status if self._http else None, None, timed_out=False)
        else:
            self._failure = outcome
            ended = AttemptEnds(number, None, outcome.phase.value, outcome.timed_out)
        self._tell_all(lambda each: each.attempt_ended(ended))
        return self._looked_at(call, actions)

    def wake(self, call: Call) -> Actions:
        """Look whether another attempt is to come beside one that takes long."""
        return self._looked_at(call, super().wake(call))

    def end(self, call: Call, failure: Failure | None) -> Actions:
        """Tell that a delivered body has ended."""
        actions = super().end(call, failure)
        if actions:
            self._looked_at(call, actions)
        elif failure is not None:
            self._ended(self._failed(call, failure))
        else:
            self._ended(CallEnds("answered", call.attempts))
        return actions

    def cancel(self, call: Call) -> None:
        """Tell that the caller gave up."""
        super().cancel(call)
        self._left()
        self._ended(CallEnds("cancelled", call.attempts))

    def abandon(self, call: Call) -> None:
        """Cancel a call of which nothing is left. Who watches is told later: see `Untold`."""
        super().abandon(call)
        if not self._over:
            self._number = call.attempts
            _untold.ends.append((self.clock.now(), self))

    def gone(self, at: float) -> None:
        """Tell that the call was abandoned at an instant."""
        self._ended(CallEnds("cancelled", self._number, ago=max(0.0, self.clock.now() - at)))

    def _looked_at(self, call: Call, actions: Actions) -> Actions:
        for action in actions:
            if isinstance(action, Start):
                timeout = None if action.timeout == math.inf else action.timeout
                self._tell_all(partial(_starts, number=action.number, timeout=timeout))
            elif isinstance(action, Deliver):
                self._left()
            elif isinstance(action, Expire | Refuse | Fail):
                self._left()
                self._ended(self._end_of(call, action))
        return actions

    def _end_of(self, call: Call, action: Expire | Refuse | Fail) -> CallEnds:
        if isinstance(action, Expire):
            return CallEnds("expired", call.attempts, phase=action.phase.value)
        if isinstance(action, Refuse):
            return CallEnds("refused", call.attempts, reason=action.reason.value)
        return self._failed(call, self._failure)

    def _failed(self, call: Call, failure: Failure | None) -> CallEnds:
        if failure is None:
            return CallEnds("failed", call.attempts)
        return CallEnds("failed", call.attempts, phase=failure.phase.value, timed_out=failure.timed_out)

    def _watched_by(self, watch: CallWatch, begins: CallBegins) -> None:
        self._calls.append(watch.begins(begins))

    def _left(self) -> None:
        if not self._is_left:
            self._is_left = True
            self._tell_all(lambda each: each.left())

    def _ended(self, end: CallEnds) -> None:
        if not self._over:
            self._over = True
            self._tell_all(lambda each: each.ended(end))

    def _tell_all(self, what: Callable[[WatchedCall], None]) -> None:
        for each in self._calls:
            self._safely(partial(what, each))

    def _safely(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:  # noqa: BLE001  whoever watches is a guest: what it raises changes nothing
            self.state.watch_errors += 1


def _starts(each: WatchedCall, *, number: int, timeout: float | None) -> None:
    each.starts(number, timeout)


def watched(owner: DependencyOwner, *, http: bool) -> DependencyOwner:
    """Return the owner for one call that somebody watches."""
    return WatchedOwner(owner, http=http)
