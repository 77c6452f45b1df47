"""The call machine: one logical call, made of one or more attempts, inside one budget.

It is told what happened and answers with what to do. It neither waits nor sends: a sync driver, an async driver and the
simulator obey the same machine. Not thread-safe: the driver holds the dependency's lock around each step.

Breaker and bulkhead are asked for every attempt. A permit and a slot are held from the start of an attempt to its end,
which for a response that was handed to the caller is the end of its body. Several attempts may be in flight: the first
acceptable answer is delivered, the others are cancelled, and hold their slots until they have really ended.
"""

from __future__ import annotations

from dataclasses import replace

from resilient_mw.calls.attempt import BACKOFF, BODY, NEW, OVER, QUEUE, Attempt
from resilient_mw.calls.attempts import Attempts
from resilient_mw.calls.classify import Verdict, classify_failure, classify_head
from resilient_mw.calls.events import (
    DELIVER,
    UNSENT,
    Actions,
    Cancel,
    Deliver,
    Discard,
    Fail,
    Failure,
    Head,
    Phase,
    Wait,
)  # fmt: skip
from resilient_mw.calls.retry import Tried, retry_delay

FIRST = (DELIVER,)
CONFLICT = 409
"""What a dependency answers that is still at work on a request with the same key."""
OUT_OF_TIME = 504
"""The status of a deadline that has passed."""


class Call(Attempts):
    """One logical call to a dependency. Arguments and attributes as of `Attempts`.

    `begin`, `resume`, `queued`, `head` and `failed` answer with what to do; the last action says how it goes on, and none at all
    means that another attempt is still under way. They raise `RuntimeError`, and change nothing, where the call does not
    stand where they belong. `end`, `lost` and `cancel` are harmless at any time.
    """

    __slots__ = ()

    def begin(self, now: float) -> Actions:
        """Start the call."""
        if self._stage is not NEW:
            self._expect(NEW)
        self.group = self._state.call_begins(now, self.facts.group)
        return self._attempt(now)

    def resume(self, now: float) -> Actions:
        """Go on after a back-off."""
        self._expect(BACKOFF)
        return self._attempt(now)

    def queued(self, now: float) -> Actions:
        """Go on after waiting for a slot: it was granted, or the time is over."""
        self._expect(QUEUE)
        return self._slot_or_end(now)

    def head(self, now: float, number: int, head: Head) -> Actions:
        """Take the response head of an attempt."""
        attempt = self._under_way(number)
        if attempt.lost:
            self._settle(now, attempt, None, "lost")
            return (Discard(number),)
        attempt.verdict = verdict = classify_head(head, self._state.failures)
        if attempt.cut_short and head.status == OUT_OF_TIME and verdict.failed:
            # It was told how little there was, and says that this was not enough: the caller's doing.
            attempt.verdict = verdict = replace(verdict, failed=None)
        attempt.outcome = self._state.answered(attempt, head)
        if self._state.hedging is not None:
            self._answered(now, attempt, failed=verdict.failed)
        if verdict.failed:
            # Told before the end of the body: a retry of this very call has to know that the circuit has opened.
            attempt.judge(now, self.group.breaker, failed=True)
        if not verdict.passing and not (head.status == CONFLICT and self._collides and len(self._flying) > 1):
            return self._deliver(now, attempt, head)
        if len(self._flying) > 1:
            self._settle(now, attempt, verdict.failed, attempt.outcome)
            return (Discard(number),)
        delay = self._retry_delay(now, verdict, head.retry_after, resendable=self._replayable)
        if delay is None:
            return self._deliver(now, attempt, head)
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
        if self._due is not None:
            self._missed(now)
        self._settle(now, attempt, verdict.failed, "timeout" if failure.timed_out else "error")
        if self._flying:
            return ()
        if expired:
            return self._expire(failure.phase)
        resendable = self._replayable or failure.phase in UNSENT
        delay = self._retry_delay(now, verdict, None, resendable=resendable)
        if delay is not None:
            return self._again(now, delay)
        self._stage = OVER
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
        self._stage = OVER
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
        if self._leave():
            self._state.give_slot()
        self._forgo()
        self._stage = OVER

    def budget(self, now: float, number: int = 0) -> float:
        """Return what an attempt may still take, in seconds: what is told to the dependency. 0: the last one begun."""
        until = next((each.until for each in self._flying if each.number == (number or self.attempts)), now)
        return max(0.0, min(until, self._deadline_at - self._state.reserve) - now)

    def _deliver(self, now: float, attempt: Attempt, head: Head) -> Actions:
        alone = len(self._flying) == 1
        if head.whole:
            self._stage = OVER
            self._settle(now, attempt, attempt.verdict.failed, attempt.outcome)
        else:
            self._stage = BODY
            self._delivered = attempt
        if attempt.hedge and self._state.hedging is not None:
            self._state.hedging.won += 1
        if alone:
            self._flying = ()
            return FIRST if attempt.number == 1 else (Deliver(attempt.number),)
        self._flying = others = tuple(each for each in self._flying if each is not attempt)
        for other in others:
            other.lost = True
        return (*(Cancel(other.number) for other in others), Deliver(attempt.number))

    # -- retries -------------------------------------------------------------------------------------------------------

    def _retry_delay(
        self, now: float, verdict: Verdict, retry_after: float | None, *, resendable: bool
    ) -> float | None:
        self._price = verdict.price
        asked = (verdict, retry_after, self._safe, resendable, self._deadline_at, self._waited, self._owned)
        return retry_delay(self._state, now, Tried(self.attempts, *asked), self.group.breaker)

    def _again(self, now: float, delay: float) -> Actions:
        self._stage = BACKOFF
        self._reserved, self._waited = now + delay, delay
        return (Wait(now + delay),) if delay > 0 else self._attempt(now)
