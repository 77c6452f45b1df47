"""The attempts of a call: what they need before they begin, and what they hold until they have ended."""

from __future__ import annotations

import math

from resilient_mw.calls.attempt import (
    ATTEMPT,
    BODY,
    EARLY,
    NEW,
    OVER,
    QUEUE,
    USUAL,
    Attempt,
    Facts,
    ShortAttempt,
    Stage,
)
from resilient_mw.calls.breaker import Permit
from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.calls.config import SAFE
from resilient_mw.calls.events import Actions, Expire, Fail, Phase, Queue, Refuse, Start
from resilient_mw.calls.hedge import HedgeRefusal
from resilient_mw.calls.hedge_needs import take
from resilient_mw.calls.refusals import RetryRefusal
from resilient_mw.calls.state import FAIR, DependencyState
from resilient_mw.core.rejection import Reason


class Attempts:
    """What a call holds, and how an attempt comes to it.

    Args:
        state: the dependency's state.
        method: the HTTP method, upper case.
        deadline_at: the instant at which the answer becomes worthless; inf: none.
        replayable: whether the body can be sent a second time.
        keyed: whether the request carries an idempotency key.
        owned: whether a layer above says that it retries.
        facts: what it has in common with others.

    Attributes:
        attempts: attempts begun so far, which is also the number of the last one.
        group: the state that they are judged by: of its route group, if it has one.
    """

    __slots__ = (
        "_collides", "_deadline_at", "_delivered", "_due", "_flying", "_hedges", "_look_at", "_owned", "_price",
        "_queue_until", "_raised", "_replayable", "_reserved", "_safe", "_stage", "_state", "_unhedged", "_waited", "_waiter",
        "attempts", "facts", "group",
    )  # fmt: skip

    def __init__(
        self,
        state: DependencyState,
        method: str,
        *,
        deadline_at: float = math.inf,
        replayable: bool = True,
        keyed: bool = False,
        owned: bool = False,
        facts: Facts = USUAL,
    ) -> None:
        self.attempts = 0
        self.facts = facts
        self.group = state.group
        self._state = state
        self._deadline_at = deadline_at
        self._replayable = replayable
        self._safe, self._owned = keyed or method in state.repeatable, owned
        self._price, self._waited = 1, 0.0
        self._stage = NEW
        self._flying: tuple[Attempt, ...] = ()
        self._delivered: Attempt | None = None
        self._reserved: float | None = None
        self._raised = 0
        self._queue_until = 0.0
        self._waiter: Waiter | None = None
        self._hedges = 0
        self._look_at = math.inf
        self._collides = False
        self._due: float | None = None

    def take_over(self, attempt: ShortAttempt) -> None:
        """Go on with a first attempt that was begun on the short way, from wherever it has come to."""
        self.attempts = 1
        if attempt.over:
            self._stage = OVER
        elif attempt.outcome:
            self._stage = BODY
            self._delivered = attempt
        else:
            self._stage = ATTEMPT
            self._flying = (attempt,)

    def allow_hedges(self, method: str, *, keyed: bool, insist: bool = False) -> None:
        """Say that whoever drives this call can have several attempts under way. To be said before it begins.

        `insist`: although a layer above retries.
        """
        state = self._state
        if state.hedging is None:
            return
        harmless = method in SAFE
        self._hedges = state.hedging.policy.hedges
        self._collides = keyed and not harmless
        self._unhedged: HedgeRefusal | None = None
        if not (harmless or keyed):
            self._unhedged = HedgeRefusal.UNSAFE
        elif not self._replayable:
            self._unhedged = HedgeRefusal.BODY
        elif self._owned and not insist:
            self._unhedged = HedgeRefusal.NOT_OWNER

    def next_wakeup(self) -> float:
        """Return the instant at which to `wake` the call; inf: there is no need to."""
        return self._look_at if self._stage is ATTEMPT else math.inf

    def wake(self, now: float) -> Actions:
        """Look whether it is time for a hedge. Harmless at any time."""
        state = self._state
        if state.hedging is None or now < self.next_wakeup() - EARLY:
            return ()
        self._look_at = math.inf
        left = self._deadline_at - now - state.reserve
        taken = take(state, self.group.breaker, now, left)
        if isinstance(taken, HedgeRefusal):
            state.hedging.refuse(taken)
            return ()
        self._hedges -= 1
        state.hedging.made += 1
        return (self._start(now, left, taken, hedge=True),)

    def _plan(self, now: float, until: float) -> float:
        """Return when to look whether an attempt that begins now is to be hedged; inf: never."""
        hedging = self._state.hedging
        self._look_at, self._due = math.inf, None
        delay = None if hedging is None else hedging.delay(self.group.heads, now)
        if delay is None:
            if hedging is not None and self._unhedged is None:
                hedging.refuse(HedgeRefusal.SAMPLES)
        elif now + delay < until:
            if self._unhedged is None:
                self._look_at = now + delay
            else:
                self._due = now + delay
        return self._look_at

    def _missed(self, now: float) -> None:
        """Count a hedge that this call could not have, now that an attempt is over that it was due for."""
        due, self._due = self._due, None
        hedging = self._state.hedging
        if due is not None and now >= due and hedging is not None and self._unhedged is not None:
            hedging.refuse(self._unhedged)

    def _answered(self, now: float, attempt: Attempt, *, failed: bool | None) -> None:
        """Learn from the head of an attempt when to hedge others."""
        heads = self.group.heads
        if heads is not None and failed is False:
            heads.add(now, now - attempt.started_at)
        self._missed(now)

    @property
    def deadline_at(self) -> float:
        """The instant at which the answer becomes worthless; inf: none."""
        return self._deadline_at

    @property
    def over(self) -> bool:
        """Whether it has ended: nothing that is told to it means anything any more."""
        return self._stage is OVER

    def _attempt(self, now: float) -> Actions:
        state, breaker = self._state, self.group.breaker
        left = self._deadline_at - now - state.reserve
        if left < state.least:
            if self.attempts:
                self._forgo()
                return self._expire(Phase.BACKOFF)
            return self._refuse(Reason.INSUFFICIENT_BUDGET)
        # An open circuit is the better reason where the bulkhead is full of those who made it open.
        if breaker is not None and now >= breaker.quiet_until and not breaker.would_allow(now):
            return self._refuse(Reason.CIRCUIT_OPEN, breaker.retry_in(now))
        if state.throttle is not None and state.throttles(now, breaker):
            return self._refuse(Reason.THROTTLED)
        if state.take_slot():
            return self._admitted(now, left)
        return self._queue(now)

    def _admitted(self, now: float, left: float) -> Actions:
        """Go on with a slot."""
        state, breaker, permit = self._state, self.group.breaker, None
        if breaker is not None:
            permit = breaker.ask(now)
            if permit is None:
                state.give_slot()
                return self._refuse(Reason.CIRCUIT_OPEN)
        reserved, self._reserved = self._reserved, None
        if reserved is not None and state.budget is not None:
            state.budget.begin(reserved, now, self._price)
        self._stage = ATTEMPT
        return (self._start(now, left, permit),)

    def _queue(self, now: float) -> Actions:
        """Wait for a slot, if that is allowed and there is a place to wait in."""
        state = self._state
        waiter = None if state.line is None else state.line.join()
        if state.line is None or waiter is None:
            return self._refuse(Reason.BULKHEAD_FULL)
        self._waiter = waiter
        self._stage = QUEUE
        self._queue_until = min(now + state.line.max_wait, self._deadline_at - state.reserve - state.least)
        return (Queue(self._queue_until, waiter),)

    def _slot_or_end(self, now: float) -> Actions:
        """Go on after waiting for a slot."""
        state, waiter = self._state, self._waiter
        left = self._deadline_at - now - state.reserve
        if waiter is not None and not waiter.granted and now < self._queue_until - EARLY:
            return (Queue(self._queue_until, waiter),)
        granted = self._leave()
        if left < state.least + EARLY and not (granted and left >= state.least):
            if granted:
                state.give_slot()
            self._forgo()
            return self._expire(Phase.BULKHEAD)
        if not granted:
            return self._refuse(Reason.BULKHEAD_FULL)
        breaker = self.group.breaker
        if breaker is not None and not breaker.would_allow(now):
            state.give_slot()
            return self._refuse(Reason.CIRCUIT_OPEN, breaker.retry_in(now))
        return self._admitted(now, left)

    def _leave(self) -> bool:
        """Wait for no slot any longer; return whether one was granted, which is this call's then."""
        waiter, self._waiter = self._waiter, None
        return waiter is not None and self._state.line is not None and self._state.line.leave(waiter)

    def _start(self, now: float, left: float, permit: Permit | None, *, hedge: bool = False) -> Start:
        """Begin an attempt that has its slot and its permit."""
        state = self._state
        self.attempts = number = self.attempts + 1
        limit = state.timeout if self.group.timeout is None else state.attempt_timeout(self, now)
        timeout = min(left, limit)
        attempt = Attempt(number, permit, now, timeout)
        if left < limit:
            attempt.by_budget = True
            attempt.cut_short = left < min(state.fair, FAIR * limit)
        self._flying = (*self._flying, attempt) if self._flying else (attempt,)
        attempt.hedge = hedge
        state.attempt_begins(self, now, left, retry=number > 1, hedge=hedge)
        connect_timeout = min(timeout, state.connect_timeout)
        if self._hedges:
            return Start(number, timeout, connect_timeout, self._plan(now, attempt.until))
        return Start(number, timeout, connect_timeout)

    def _under_way(self, number: int) -> Attempt:
        for attempt in self._flying:
            if attempt.number == number:
                return attempt
        raise RuntimeError(f"attempt {number} is not under way: this call is at {self._stage.value!r}")

    def _settle(self, now: float, attempt: Attempt, failed: bool | None, outcome: str) -> None:
        """End an attempt: give back its slot, hand back its permit, once."""
        if self._flying:
            self._flying = tuple([each for each in self._flying if each is not attempt])
        self._state.give_slot()
        self._state.attempt_ends(self, attempt, now, outcome, failed=failed)
        attempt.judge(now, self.group.breaker, failed=failed)

    def _refuse(self, reason: Reason, retry_in: float = 0.0) -> Actions:
        self._stage = OVER
        self._state.refused(reason)
        if self.attempts:
            self._forgo()
            self._state.retry_refused(RetryRefusal(reason.value))
            if self._raised:
                # What happened on the wire says more than that it may not happen again.
                return (Fail(self._raised),)
        return (Refuse(reason, retry_in, self.attempts),)

    def _expire(self, phase: Phase) -> Actions:
        self._stage = OVER
        self._state.expired(phase)
        return (Expire(phase),)

    def _expect(self, stage: Stage) -> None:
        if self._stage is not stage:
            raise RuntimeError(
                f"this belongs to the stage {stage.value!r} of a call, which is at {self._stage.value!r}"
            )

    def _forgo(self) -> None:
        """Give back the reservation of a retry that will not be made."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None and self._state.budget is not None:
            self._state.budget.give_back(reserved, self._price)
