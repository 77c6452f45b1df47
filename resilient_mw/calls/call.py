"""The call machine: one logical call, made of one or more attempts, inside one budget.

It is told what happened and answers with what to do. It neither waits nor sends: a sync driver, an async driver and the
simulator obey the same machine. Not thread-safe: the driver holds the dependency's lock around each step.

Breaker and bulkhead are asked for every attempt. A permit and a slot are held from the start of an attempt to its end,
which for a response that was handed to the caller is the end of its body. Several attempts may be in flight: the first
acceptable answer is delivered, the others are cancelled, and hold their slots until they have really ended.
"""

from __future__ import annotations

import math

from resilient_mw.calls.attempt import USUAL, Attempt, Facts, Stage
from resilient_mw.calls.breaker import Permit
from resilient_mw.calls.classify import Verdict, classify_failure, classify_head
from resilient_mw.calls.events import (
    DELIVER,
    UNSENT,
    Actions,
    Cancel,
    Deliver,
    Discard,
    Expire,
    Fail,
    Failure,
    Head,
    Phase,
    Refuse,
    Start,
    Wait,
)  # fmt: skip
from resilient_mw.calls.retry import Tried, retry_delay
from resilient_mw.calls.state import DependencyState, RetryRefusal
from resilient_mw.core.rejection import Reason

FIRST = (DELIVER,)


class Call:
    """One logical call to a dependency.

    `begin`, `resume`, `head` and `failed` answer with what to do; the last action says how it goes on, and none at all
    means that another attempt is still under way. They raise `RuntimeError`, and change nothing, where the call does not
    stand where they belong. `end`, `lost` and `cancel` are harmless at any time.

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
    """

    __slots__ = (
        "_deadline_at", "_delivered", "_flying", "_owned", "_price", "_raised", "_replayable", "_reserved", "_safe",
        "_stage", "_state", "_waited", "attempts", "facts",
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
        self._state = state
        self._deadline_at = deadline_at
        self._replayable = replayable
        self._safe, self._owned = keyed or method in state.repeatable, owned
        self._price, self._waited = 1, 0.0
        self._stage = Stage.NEW
        self._flying: tuple[Attempt, ...] = ()
        self._delivered: Attempt | None = None
        self._reserved: float | None = None
        self._raised = 0

    def begin(self, now: float) -> Actions:
        """Start the call."""
        self._expect(Stage.NEW)
        self._state.call_begins()
        return self._attempt(now)

    def resume(self, now: float) -> Actions:
        """Go on after a back-off."""
        self._expect(Stage.BACKOFF)
        return self._attempt(now)

    def head(self, now: float, number: int, head: Head) -> Actions:
        """Take the response head of an attempt."""
        attempt = self._under_way(number)
        if attempt.lost:
            self._settle(now, attempt, None, "lost")
            return (Discard(number),)
        attempt.verdict = verdict = classify_head(head, self._state.failures)
        attempt.outcome = self._state.answered(attempt, head)
        if verdict.failed:
            # Told before the end of the body: a retry of this very call has to know that the circuit has opened.
            attempt.judge(now, self._state.breaker, failed=True)
        if not verdict.passing:
            return self._deliver(attempt)
        if len(self._flying) > 1:
            self._settle(now, attempt, verdict.failed, attempt.outcome)
            return (Discard(number),)
        delay = self._retry_delay(now, verdict, head.retry_after, resendable=self._replayable)
        if delay is None:
            return self._deliver(attempt)
        self._raised = 0
        self._settle(now, attempt, verdict.failed, attempt.outcome)
        return (Discard(number), *self._again(now, delay))

    def failed(self, now: float, number: int, failure: Failure) -> Actions:
        """Take the failure of an attempt."""
        attempt = self._under_way(number)
        if attempt.lost:
            self._settle(now, attempt, None, "lost")
            return ()
        expired = attempt.expired(now, failure)
        verdict = classify_failure(failure, cut_short=expired and attempt.cut_short)
        self._raised = number
        self._settle(now, attempt, verdict.failed, "timeout" if failure.timed_out else "error")
        if self._flying:
            return ()
        if expired:
            return self._expire(failure.phase)
        resendable = self._replayable or failure.phase in UNSENT
        delay = self._retry_delay(now, verdict, None, resendable=resendable)
        if delay is not None:
            return self._again(now, delay)
        self._stage = Stage.OVER
        return (Fail(number),)

    def end(self, now: float, failure: Failure | None) -> Actions:
        """Take the end of a delivered body.

        Args:
            now: the instant.
            failure: how it was cut off; None if it was complete or closed early.

        Returns:
            `Expire` if the caller's budget cut it off, nothing otherwise.
        """
        attempt, self._delivered = self._delivered, None
        if attempt is None:
            return ()
        self._stage = Stage.OVER
        if failure is None:
            self._settle(now, attempt, attempt.verdict.failed, attempt.outcome)
            return ()
        expired = attempt.expired(now, failure)
        verdict = classify_failure(failure, cut_short=expired and attempt.cut_short)
        self._settle(now, attempt, verdict.failed, "body")
        return self._expire(Phase.BODY) if expired else ()

    def lost(self, now: float, number: int) -> None:
        """A cancelled attempt has really ended, and what it had got is closed: its slot comes back."""
        for attempt in self._flying:
            if attempt.number == number and attempt.lost:
                self._settle(now, attempt, None, "lost")

    def cancel(self, now: float) -> None:
        """The caller gave up, at whatever stage: nothing is held any longer, and nobody is blamed."""
        delivered, self._delivered = self._delivered, None
        if delivered is not None:
            self._settle(now, delivered, None, "cancelled")
        for attempt in self._flying:
            self._settle(now, attempt, None, "lost" if attempt.lost else "cancelled")
        self._forgo()
        self._stage = Stage.OVER

    def budget(self, now: float, number: int = 0) -> float:
        """Return what an attempt may still take, in seconds: what is told to the dependency. 0: the last one begun."""
        until = next((each.until for each in self._flying if each.number == (number or self.attempts)), now)
        return max(0.0, min(until, self._deadline_at - self._state.reserve) - now)

    # -- attempts ------------------------------------------------------------------------------------------------------

    def _attempt(self, now: float) -> Actions:
        state, breaker = self._state, self._state.breaker
        left = self._deadline_at - now - state.reserve
        if left < state.least:
            if self.attempts:
                self._forgo()
                return self._expire(Phase.BACKOFF)
            return self._refuse(Reason.INSUFFICIENT_BUDGET)
        # An open circuit is the better reason where the bulkhead is full of those who made it open.
        if breaker is not None and not breaker.would_allow(now):
            return self._refuse(Reason.CIRCUIT_OPEN, breaker.retry_in(now))
        if state.throttle is not None and state.throttles(now):
            return self._refuse(Reason.THROTTLED)
        if not state.take_slot():
            return self._refuse(Reason.BULKHEAD_FULL)
        permit = None
        if breaker is not None:
            permit = breaker.ask(now)
            if permit is None:
                state.give_slot()
                return self._refuse(Reason.CIRCUIT_OPEN)
        reserved, self._reserved = self._reserved, None
        if reserved is not None and state.budget is not None:
            state.budget.begin(reserved, now, self._price)
        self._stage = Stage.ATTEMPT
        return (self._start(now, left, permit),)

    def _start(self, now: float, left: float, permit: Permit | None) -> Start:
        """Begin an attempt that has its slot and its permit."""
        state = self._state
        self.attempts = number = self.attempts + 1
        limit = state.attempt_timeout(self)
        timeout = min(left, limit)
        attempt = Attempt(number, permit, now, timeout)
        attempt.by_budget = left < limit
        attempt.cut_short = left < state.fair
        self._flying = (*self._flying, attempt) if self._flying else (attempt,)
        state.attempt_begins(now, left, retry=number > 1)
        return Start(number, timeout, min(timeout, state.connect_timeout))

    def _deliver(self, attempt: Attempt) -> Actions:
        self._stage = Stage.BODY
        self._delivered = attempt
        if len(self._flying) == 1:
            self._flying = ()
            return FIRST if attempt.number == 1 else (Deliver(attempt.number),)
        self._flying = others = tuple(each for each in self._flying if each is not attempt)
        for other in others:
            other.lost = True
        return (*(Cancel(other.number) for other in others), Deliver(attempt.number))

    def _under_way(self, number: int) -> Attempt:
        for attempt in self._flying:
            if attempt.number == number:
                return attempt
        raise RuntimeError(f"attempt {number} is not under way: this call is at {self._stage.value!r}")

    def _settle(self, now: float, attempt: Attempt, failed: bool | None, outcome: str) -> None:
        """End an attempt: give back its slot, hand back its permit, once."""
        flying = self._flying
        if flying:
            self._flying = (
                () if flying == (attempt,) else tuple(each for each in flying if each is not attempt)
            )
        self._state.give_slot()
        self._state.attempt_ends(self, attempt, now, outcome, failed=failed)
        attempt.judge(now, self._state.breaker, failed=failed)

    def _refuse(self, reason: Reason, retry_in: float = 0.0) -> Actions:
        self._stage = Stage.OVER
        self._state.refused(reason)
        if self.attempts:
            self._forgo()
            self._state.retry_refused(RetryRefusal(reason.value))
            if self._raised:
                # What happened on the wire says more than that it may not happen again.
                return (Fail(self._raised),)
        return (Refuse(reason, retry_in, self.attempts),)

    def _expire(self, phase: Phase) -> Actions:
        self._stage = Stage.OVER
        self._state.expired(phase)
        return (Expire(phase),)

    def _expect(self, stage: Stage) -> None:
        if self._stage is not stage:
            raise RuntimeError(
                f"this belongs to the stage {stage.value!r} of a call, which is at {self._stage.value!r}"
            )

    # -- retries -------------------------------------------------------------------------------------------------------

    def _retry_delay(
        self, now: float, verdict: Verdict, retry_after: float | None, *, resendable: bool
    ) -> float | None:
        self._price = verdict.price
        asked = (verdict, retry_after, self._safe, resendable, self._deadline_at, self._waited, self._owned)
        return retry_delay(self._state, now, Tried(self.attempts, *asked))

    def _again(self, now: float, delay: float) -> Actions:
        self._stage = Stage.BACKOFF
        self._reserved, self._waited = now + delay, delay
        return (Wait(now + delay),) if delay > 0 else self._attempt(now)

    def _forgo(self) -> None:
        """Give back the reservation of a retry that will not be made."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None and self._state.budget is not None:
            self._state.budget.give_back(reserved, self._price)
