"""The call machine: one logical call, made of one or more attempts, inside one budget.

It is told what happened and answers with what to do. It neither waits nor sends: a sync driver, an async driver and the
simulator obey the same machine. Not thread-safe: the driver holds the dependency's lock around each step.

Breaker and bulkhead are asked for every attempt. A permit and a slot are held from the start of an attempt to its end,
which for a response that was handed to the caller is the end of its body.
"""

from __future__ import annotations

import math
from enum import Enum

from resilient_mw.calls.breaker import Permit
from resilient_mw.calls.classify import OK, Verdict, classify_failure, classify_head
from resilient_mw.calls.config import IDEMPOTENT
from resilient_mw.calls.events import (
    DELIVER,
    DISCARD,
    FAIL,
    UNSENT,
    Action,
    Actions,
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
)
from resilient_mw.calls.retry import Tried, retry_delay
from resilient_mw.calls.state import DependencyState, RetryRefusal
from resilient_mw.core.rejection import Reason

__all__ = [
    "DELIVER",
    "DISCARD",
    "FAIL",
    "Action",
    "Actions",
    "Call",
    "Deliver",
    "Discard",
    "Expire",
    "Fail",
    "Refuse",
    "Stage",
    "Start",
    "Wait",
]

EARLY = 0.001
"""Seconds by which a timer may fire before its instant and still be taken for it."""

STATUS_CLASSES = {1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}


class Stage(Enum):
    """Where a call stands."""

    NEW = "new"
    ATTEMPT = "attempt"
    BACKOFF = "backoff"
    BODY = "body"
    OVER = "over"


class Call:
    """One logical call to a dependency.

    `begin`, `resume`, `head` and `failed` answer with at least one action, of which the last one says how it goes on.
    They raise `RuntimeError`, and change nothing, where the call does not stand where they belong. `end` and `cancel`
    are harmless at any time.

    Args:
        state: the dependency's state.
        method: the HTTP method, upper case.
        deadline_at: the instant at which the answer becomes worthless; inf: none.
        replayable: whether the body can be sent a second time.
        keyed: whether the request carries an idempotency key.

    Attributes:
        attempts: attempts begun so far.
    """

    __slots__ = (
        "_attempt_until",
        "_by_budget",
        "_cut_short",
        "_deadline_at",
        "_outcome",
        "_permit",
        "_raised",
        "_replayable",
        "_reserved",
        "_safe",
        "_stage",
        "_started_at",
        "_state",
        "_verdict",
        "attempts",
    )

    def __init__(
        self,
        state: DependencyState,
        method: str,
        *,
        deadline_at: float = math.inf,
        replayable: bool = True,
        keyed: bool = False,
    ) -> None:
        self.attempts = 0
        self._state = state
        self._deadline_at = deadline_at
        self._replayable = replayable
        self._safe = keyed or method in IDEMPOTENT or method in state.repeatable
        self._stage = Stage.NEW
        self._permit: Permit | None = None
        self._reserved: float | None = None
        self._raised = False
        self._started_at = 0.0
        self._attempt_until = 0.0
        self._by_budget = False
        self._cut_short = False
        self._verdict = OK
        self._outcome = ""

    def begin(self, now: float) -> Actions:
        """Start the call."""
        self._expect(Stage.NEW)
        self._state.call_begins()
        return self._attempt(now)

    def resume(self, now: float) -> Actions:
        """Go on after a back-off."""
        self._expect(Stage.BACKOFF)
        return self._attempt(now)

    def head(self, now: float, head: Head) -> Actions:
        """Take the response head of the attempt under way."""
        self._expect(Stage.ATTEMPT)
        verdict = classify_head(head, self._state.failures)
        self._verdict = verdict
        self._outcome = STATUS_CLASSES.get(head.status // 100, "other")
        if verdict.failed:
            # Told before the end of the body: a retry of this very call has to know that the circuit has opened.
            self._judge(now, failed=True)
        delay = self._retry_delay(now, verdict, head.retry_after, resendable=self._replayable)
        if delay is None:
            self._stage = Stage.BODY
            return (DELIVER,)
        self._raised = False
        self._settle(now, verdict.failed, self._outcome)
        return (DISCARD, *self._again(now, delay))

    def failed(self, now: float, failure: Failure) -> Actions:
        """Take the failure of the attempt under way."""
        self._expect(Stage.ATTEMPT)
        expired = self._expired(now, failure)
        verdict = classify_failure(failure, cut_short=expired and self._cut_short)
        self._raised = True
        self._settle(now, verdict.failed, "timeout" if failure.timed_out else "error")
        if expired:
            return self._expire(failure.phase)
        resendable = self._replayable or failure.phase in UNSENT
        delay = self._retry_delay(now, verdict, None, resendable=resendable)
        if delay is not None:
            return self._again(now, delay)
        self._stage = Stage.OVER
        return (FAIL,)

    def end(self, now: float, failure: Failure | None) -> Actions:
        """Take the end of a delivered body.

        Args:
            now: the instant.
            failure: how it was cut off; None if it was complete or closed early.

        Returns:
            `Expire` if the caller's budget cut it off, nothing otherwise.
        """
        if self._stage is not Stage.BODY:
            return ()
        self._stage = Stage.OVER
        if failure is None:
            self._settle(now, self._verdict.failed, self._outcome)
            return ()
        expired = self._expired(now, failure)
        verdict = classify_failure(failure, cut_short=expired and self._cut_short)
        self._settle(now, verdict.failed, "body")
        return self._expire(Phase.BODY) if expired else ()

    def cancel(self, now: float) -> None:
        """The caller gave up, at whatever stage: nothing is held any longer, and nobody is blamed."""
        if self._stage is Stage.ATTEMPT or self._stage is Stage.BODY:
            self._settle(now, None, "cancelled")
        self._forgo()
        self._stage = Stage.OVER

    def budget(self, now: float) -> float:
        """Return what the attempt under way may still take, in seconds: what is told to the dependency."""
        return max(0.0, min(self._attempt_until, self._deadline_at - self._state.reserve) - now)

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
        if not state.take_slot():
            return self._refuse(Reason.BULKHEAD_FULL)
        if breaker is not None:
            self._permit = breaker.ask(now)
            if self._permit is None:
                state.give_slot()
                return self._refuse(Reason.CIRCUIT_OPEN)
        reserved, self._reserved = self._reserved, None
        if reserved is not None and state.budget is not None:
            state.budget.begin(reserved, now)
        self.attempts += 1
        self._stage = Stage.ATTEMPT
        self._started_at = now
        timeout = min(left, state.timeout)
        self._attempt_until = now + timeout
        self._by_budget = left < state.timeout
        self._cut_short = left < state.fair
        state.attempt_begins(now, left, retry=self.attempts > 1)
        return (Start(self.attempts, timeout, min(timeout, state.connect_timeout)),)

    def _expired(self, now: float, failure: Failure) -> bool:
        """Return whether the caller's budget ended the attempt, and not one of the dependency's own timeouts."""
        return failure.timed_out and self._by_budget and now >= self._attempt_until - EARLY

    def _settle(self, now: float, failed: bool | None, outcome: str) -> None:
        """End the attempt under way: give back its slot, hand back its permit, once."""
        self._state.give_slot()
        self._state.attempt_ends(outcome, now - self._started_at, failed=failed)
        self._judge(now, failed=failed)

    def _judge(self, now: float, *, failed: bool | None) -> None:
        permit, self._permit = self._permit, None
        if permit is not None and self._state.breaker is not None:
            self._state.breaker.record(now, permit, failed=failed)

    def _refuse(self, reason: Reason, retry_in: float = 0.0) -> Actions:
        self._stage = Stage.OVER
        self._state.refused(reason)
        if self.attempts:
            self._forgo()
            self._state.retry_refused(RetryRefusal(reason.value))
            if self._raised:
                return (FAIL,)  # What happened on the wire says more than that it may not happen again.
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
        if not verdict.passing:
            return None
        tried = Tried(self.attempts, verdict, retry_after, self._safe, resendable, self._deadline_at)
        return retry_delay(self._state, now, tried)

    def _again(self, now: float, delay: float) -> Actions:
        self._stage = Stage.BACKOFF
        self._reserved = now + delay
        return (Wait(now + delay),) if delay > 0 else self._attempt(now)

    def _forgo(self) -> None:
        """Give back the reservation of a retry that will not be made."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None and self._state.budget is not None:
            self._state.budget.give_back(reserved)
