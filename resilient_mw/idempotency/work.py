"""The machine of work that runs under a record: keeps the lease, captures the answer, and says how the record ends.

Every method takes what happened and returns the actions to be taken. Not thread-safe: its shell owns it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from resilient_mw.idempotency.actions import Abandon, Actions, Complete, Lost, Renew
from resilient_mw.idempotency.answers import Capture, StoredAnswer
from resilient_mw.idempotency.record import Claim, Ending
from resilient_mw.idempotency.treatment import Treatment

OWN_REFUSAL: Final = b"x-refusal-reason"
GATEWAY_TIMEOUT: Final = 504
"""Says that something was asked and did not answer in time, our own deadline for one: nobody knows what it has done."""


class Work:
    """Work under a record.

    Args:
        treatment: of the route.
        claim: the one that has the record.
        drop: lower-case names of header fields that are not kept, beside those that never are.
        renew_at: monotonic seconds of the first renewal; None: the store was away, and there is no lease to keep.
        doubt: whether an earlier attempt may have done the work, so that this one cannot say that nothing was done.

    Attributes:
        claim: the one that has the record.
        held: whether it has it still, as far as anybody knows here, and has not ended.
    """

    __slots__ = ("_capture", "_doubt", "_refused", "_renew_at", "_treatment", "claim", "held")

    def __init__(
        self,
        treatment: Treatment,
        claim: Claim,
        drop: frozenset[bytes] = frozenset(),
        renew_at: float | None = None,
        *,
        doubt: bool = False,
    ) -> None:
        self._treatment = treatment
        self._capture = Capture(treatment.max_answer, drop)
        self._refused = False
        self._doubt = doubt
        self._renew_at = renew_at
        self.claim = claim
        self.held = True

    def head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Take the head of the response, as the application sent it."""
        lines = list(headers)
        self._refused = any(name.lower() == OWN_REFUSAL for name, _ in lines)
        self._capture.head(status, lines)

    def piece(self, data: bytes) -> None:
        """Take a piece of its body. Nothing is held back but the last one: pass it on."""
        self._capture.piece(data)

    def body_elsewhere(self) -> None:
        """Take that the body goes a way on which nobody sees it, such as a file that the server sends."""
        self._capture.no_body()

    def ended(self, *, cancelled: bool, fingerprint: str | None = None) -> Actions:
        """Take that the response is complete but for its last piece, which waits for the actions.

        Args:
            cancelled: whether the work had been cancelled (deadline, caller gone, shutdown), whatever it made of that.
            fingerprint: of a request whose body was not known before; None too if the handler did not read it all.

        Returns:
            `Complete`, `Abandon`, or nothing if the record is lost.
        """
        status = self._capture.status
        if status is None:
            return self.failed(cancelled=cancelled)
        cut_off = (
            status == GATEWAY_TIMEOUT and status not in self._treatment.keep_statuses and not self._refused
        )
        if cancelled or cut_off:
            return self._abandon("unknown")
        if self._refused or status not in self._treatment.keep_statuses:
            return self.given_up()
        return self._complete(self._capture.answer(), fingerprint)

    def failed(self, *, cancelled: bool) -> Actions:
        """Take that the handler raised, was cancelled, or ended without a complete response.

        Returns:
            `Abandon`: the key is free if the handler raised before it had answered anything; else nobody can say what was done.
        """
        return self._abandon("unknown") if cancelled or self._capture.status is not None else self.given_up()

    def given_up(self) -> Actions:
        """Take that nothing was done that counts: `Abandon`.

        The key is free afterwards, unless the outcome of an earlier attempt is unknown.
        """
        return self._abandon("unknown" if self._doubt else "forget")

    def found_done(self, answer: StoredAnswer) -> Actions:
        """Take that the status function has found the work done: `Complete`, or nothing if the record is lost."""
        return self._complete(answer, None)

    def found_undone(self) -> None:
        """Take that the status function says that no earlier attempt has done it."""
        self._doubt = False

    def next_wakeup(self) -> float | None:
        """Return when to `tick`, in monotonic seconds."""
        return self._renew_at

    def tick(self, now: float) -> Actions:
        """Let time pass: `Renew` when it is time for that."""
        if self._renew_at is None or now < self._renew_at:
            return ()
        self._renew_at = now + self._treatment.heartbeat
        return (Renew(self.claim),)

    def renewed(self, held: bool) -> Actions:
        """Take whether the claim still has the record: `Lost` if not."""
        if held or not self.held:
            return ()
        self._end()
        return (Lost(),)

    def renew_failed(self, now: float) -> None:
        """Take that the store could not be asked: it is, soon again. A late answer may still be recorded."""
        if self._renew_at is not None:
            self._renew_at = now + self._treatment.heartbeat / 4

    def _complete(self, answer: StoredAnswer, fingerprint: str | None) -> Actions:
        if not self._end():
            return ()
        known = self.claim.fingerprint is not None
        return (Complete(self.claim, answer, None if known else fingerprint),)

    def _abandon(self, ending: Ending) -> Actions:
        return (Abandon(self.claim, ending),) if self._end() else ()

    def _end(self) -> bool:
        """End the attempt and return whether it had not ended before."""
        held, self.held, self._renew_at = self.held, False, None
        return held
