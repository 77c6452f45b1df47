"""The owner of a dependency's state: one lock, one machine, shared by sync and async clients.

It decides under the lock and acts after it has let go: the lock is never held over an attempt, a back-off or a body.
A finalizer may only use `abandon`, because a thread that holds the lock may be the one that collects garbage.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Hashable, Mapping

from resilient_mw.calls.attempt import ShortAttempt
from resilient_mw.calls.call import Call
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Actions, Failure, Head
from resilient_mw.calls.fallback import Kept
from resilient_mw.calls.figures import dependency_snapshot
from resilient_mw.calls.key import new_key
from resilient_mw.calls.short import ShortWay, short_way
from resilient_mw.calls.state import DependencyState
from resilient_mw.core import ports
from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.core.ports import Clock, Hand
from resilient_mw.core.snapshot import Transition
from resilient_mw.runtime.circuit_news import tell_listeners
from resilient_mw.runtime.clocks import MONOTONIC, wall_clock
from resilient_mw.runtime.forks import after_fork, renew_lock


class DependencyOwner:
    """Owns the state of one dependency. Safe to use from any thread and any event loop.

    Args:
        dependency: the dependency.
        clock: the one clock.
        rng: source of jitter.
    """

    def __init__(
        self, dependency: Dependency, clock: Clock = MONOTONIC, rng: random.Random | None = None
    ) -> None:
        self.dependency = dependency
        self.clock = clock
        # Jitter is drawn from the system: processes that were forked after the first call must not share it.
        self._rng = rng or random.SystemRandom()
        self._begin_anew()
        self._lock = threading.Lock()
        # Of its own, and again in the same thread: keys are compared by code of users, which may call the dependency.
        self._kept_lock = threading.RLock()
        self._abandoned: deque[Call] = deque()
        ports.register_dependency(self)
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child: calls, lock and counts are the parent's."""
        self._kept_lock = threading.RLock()
        self._lock = threading.Lock()
        self._abandoned.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.state = DependencyState(self.dependency, self._rng)
        self.short = short_way(self.state)
        breaker = self.state.breaker
        self._untold: deque[Transition] = deque() if breaker is None else breaker.untold

    def new_key(self, version: int) -> str:
        """Return a new idempotency key, a UUID of a version."""
        return new_key(version, wall_clock(), self._rng)

    def begin(self, call: Call) -> Actions:
        """Start a call."""
        with self._lock:
            self._clear_up()
            actions = call.begin(self.clock.now())
        if self._untold or self.state.line is not None:
            self._tell_and_wake()
        return actions

    def begin_short(self, attempt: ShortAttempt, total: float, latest: float | None) -> float:
        """Begin a call on its short way; 0: it has to begin as others do."""
        short = self.short
        if short is None or self._abandoned:
            return 0.0
        with self._lock:
            return short.begin(self.clock.now(), attempt, total, latest)

    def head_short(self, short: ShortWay, attempt: ShortAttempt, status: int) -> None:
        """Tell of a good head on the short way, whose body is to come."""
        with self._lock:
            short.head(attempt, status)

    def end_short(self, short: ShortWay, attempt: ShortAttempt, status: int = 0) -> None:
        """Tell of the end of a body on the short way, and of its head, if both come at once. Harmless after the end."""
        if attempt.over:
            return
        with self._lock:
            short.end(self.clock.now(), attempt, status)
        if self._untold or self.state.line is not None:
            self._tell_and_wake()

    def resume(self, call: Call, at: float) -> Actions:
        """Go on after a back-off that was to end at `at`, in case the timer fired early."""
        with self._lock:
            self._clear_up()
            actions = call.resume(max(at, self.clock.now()))
        self._tell_and_wake()
        return actions

    def queued(self, call: Call) -> Actions:
        """Go on after waiting for a slot."""
        with self._lock:
            self._settle()
            actions = call.queued(self.clock.now())
        self._tell_and_wake()
        return actions

    def tell(self, call: Call, number: int, outcome: Head | Failure) -> Actions:
        """Tell what became of an attempt."""
        with self._lock:
            self._settle()
            now = self.clock.now()
            if isinstance(outcome, Head):
                actions = call.head(now, number, outcome)
            else:
                actions = call.failed(now, number, outcome)
        if self._untold or self.state.line is not None:
            self._tell_and_wake()
        return actions

    def wake(self, call: Call) -> Actions:
        """Look whether an attempt has taken so long that another one is to come beside it."""
        with self._lock:
            self._settle()
            actions = call.wake(self.clock.now())
        self._tell_and_wake()
        return actions

    def lost(self, call: Call, number: int) -> None:
        """Tell that a cancelled attempt has ended and is closed."""
        with self._lock:
            self._settle()
            call.lost(self.clock.now(), number)
        self._tell_and_wake()

    def end(self, call: Call, failure: Failure | None) -> Actions:
        """Tell that a delivered body has ended; `Expire` comes back if the caller's budget cut it off."""
        if call.over:
            return ()  # The head said that there is no body.
        with self._lock:
            self._settle()
            actions = call.end(self.clock.now(), failure)
        if self._untold or self.state.line is not None:
            self._tell_and_wake()
        return actions

    def budget(self, call: Call, number: int = 0) -> float:
        """Return what an attempt may still take, in seconds: read it right before the head is sent. 0: the last one."""
        return call.budget(self.clock.now(), number)

    def cancel(self, call: Call) -> None:
        """Tell that the caller gave up. Harmless after the end."""
        with self._lock:
            self._settle()
            call.cancel(self.clock.now())
        self._tell_and_wake()

    def abandon(self, call: Call) -> None:
        """Cancel a call of which nothing is left, without waiting for the lock: now, or before the next step of any."""
        self._abandoned.append(call)
        if self._lock.acquire(blocking=False):
            try:
                self._clear_up()
            finally:
                self._lock.release()
            self._wake()  # Listeners are told by somebody else: a finalizer runs no code of users.

    def fell_back(self, kind: str) -> None:
        """Count an answer that stands in for an error."""
        with self._lock:
            self.state.fallbacks[kind] = self.state.fallbacks.get(kind, 0) + 1

    def keep(self, key: Hashable, kept: Kept | None) -> None:
        """Keep a good answer for later; None: give up the one that is kept."""
        last_good = self.state.last_good
        if last_good is not None:
            with self._kept_lock:
                last_good.forget(key) if kept is None else last_good.keep(key, kept)

    def last_good(self, key: Hashable, fields: Mapping[str, str] | None = None) -> Kept | None:
        """Return the last good answer, if there is one that may be used."""
        last_good = self.state.last_good
        if last_good is None:
            return None
        with self._kept_lock:
            return last_good.find(key, self.clock.now(), fields)

    def judged(self) -> tuple[int, int, float]:
        """Return the good and the bad attempts so far, and how much of its timeout a good one typically takes; 0: unknown."""
        state = self.state
        with self._lock:
            self._clear_up()
            judged = state.good, state.bad, state.typical() / state.timeout
        self._tell_and_wake()
        return judged

    def closed_for(self) -> float | None:
        """Return the seconds for which the circuit lets nothing through; None if it would let an attempt through now."""
        breaker = self.state.breaker
        if breaker is None:
            return None
        with self._lock:
            self._clear_up()
            seconds = breaker.closed_for(self.clock.now())
        self._tell_and_wake()
        return seconds

    def snapshot(self) -> DependencySnapshot:
        """Return the figures of this instant."""
        with self._lock:
            self._clear_up()
            now = self.clock.now()
            for breaker in self.state.breakers():  # An attempt that has become slow may have opened one.
                breaker.notice(now)
            snapshot = dependency_snapshot(self.dependency.name, self.state, now)
        self._tell_and_wake()
        return snapshot

    def by_hand(self, hand: Hand) -> None:
        """Open, close or reset the circuit, and those of its route groups.

        Raises:
            RuntimeError: the dependency has no breaker.
        """
        if self.state.breaker is None:
            raise RuntimeError(f"Dependency({self.dependency.name!r}) has no circuit: breaker is None")
        with self._lock:
            self._clear_up()
            now = self.clock.now()
            for breaker in self.state.breakers():
                getattr(breaker, hand)(now)
        self._tell_and_wake()

    def _tell(self) -> None:
        breaker, policy = self.state.breaker, self.dependency.breaker
        if breaker is not None and policy is not None:
            breaker.failed_listeners += tell_listeners(self.dependency.name, self._untold, policy.listeners)

    def _tell_and_wake(self) -> None:
        """Wake those who were granted a slot, and tell who listens. Without the lock: what is called may be anything."""
        if self._abandoned:  # Since this step has begun, by a finalizer that found the lock taken.
            with self._lock:
                self._clear_up()
        self._wake()  # Before the listeners, who may take their time.
        if self._untold:
            self._tell()

    def _wake(self) -> None:
        line = self.state.line
        while line is not None and line.woken:
            try:
                wake = line.woken.pop(0).wake
            except IndexError:  # Another thread was faster.
                return
            if wake is not None:
                wake()

    def _settle(self) -> None:
        """Count what went the short way, before anything else is decided. Under the lock."""
        if self.short is not None:
            self.short.settle()

    def _clear_up(self) -> None:
        self._settle()
        while self._abandoned:
            self._abandoned.popleft().cancel(self.clock.now())


_making = threading.Lock()
renew_lock(__name__, "_making")


def owner_of(dependency: Dependency) -> DependencyOwner:
    """Return the owner of a dependency, made on first use. It lives as long as the dependency."""
    if not dependency.owner:
        with _making:
            if not dependency.owner:
                dependency.owner.append(DependencyOwner(dependency))
    owner = dependency.owner[0]
    if not isinstance(owner, DependencyOwner):
        raise TypeError(f"the dependency {dependency.name!r} is owned by {owner!r}")
    return owner
