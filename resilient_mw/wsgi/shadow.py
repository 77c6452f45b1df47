"""A running request under a policy with defences in shadow mode."""
# The contexts of one request are one subject in several files: private names keep the face of the user's object small.
# ruff: noqa: SLF001

from __future__ import annotations

from typing import Any

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.policy_checks import DEADLINES
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.streams import BODY
from resilient_mw.runtime.shadow import ShadowGuard, Ticket, ticket_of
from resilient_mw.wsgi.run import Run
from resilient_mw.wsgi.stream import StreamRun


class ShadowRun(Run):
    """Counts when it would have been over, if deadlines are in shadow mode.

    Args:
        shadow: the guard.
        decision: about this request.
        deadline_at: the instant at which it would have been over.
        *facts: the arguments of `Run`.
    """

    __slots__ = ("_due_at", "_shadow", "_ticket")

    def __init__(self, shadow: ShadowGuard, decision: Decision, deadline_at: float, *facts: Any) -> None:
        super().__init__(*facts)
        self._shadow = shadow
        self._ticket = ticket_of(decision) or Ticket(self._entry, self.context._cost, None, late=True)
        self._due_at: float = shadow.due_at(self._ticket, deadline_at, self._admitted_at)

    def over(self) -> bool:
        """Note that the application has come back; count it if it would have been cut off here."""
        over = super().over()
        if self._left_at >= self._due_at and not (self.started and self.complete):
            self._due_at = FOREVER
            self._shadow.would_cancel(self._ticket)
        return over

    def _tells(self) -> str | None:
        return None if self._shadow.shadows(DEADLINES) else super()._tells()

    def _ended(self, outcome: str, ran: float) -> None:
        self._shadow.over(self._ticket, outcome, ran)


class ShadowStreamRun(StreamRun):
    """A stream where admission is real: its slot and its place are those of every stream.

    If deadlines are in shadow mode it has none, and it is counted once when the one of its arrival would have ended it.
    Arguments as of `ShadowRun`.
    """

    __slots__ = ("_due_at", "_shadow", "_ticket", "_until_head")

    def __init__(self, shadow: ShadowGuard, decision: Decision, deadline_at: float, *facts: Any) -> None:
        super().__init__(*facts)
        self._shadow = shadow
        self._ticket = ticket_of(decision) or Ticket(self._entry, self.context._cost, None, late=True)
        self._until_head = self._covers != BODY
        self._due_at: float = shadow.due_at(self._ticket, deadline_at, self._admitted_at)
        if shadow.shadows(DEADLINES):
            self._covers = BODY  # so that nothing moves it

    def over(self) -> bool:
        """Note that the application has come back; count it if it would have been cut off here."""
        over = super().over()
        in_time = self.started and (self._until_head or self.complete)
        if self._left_at >= self._due_at and not in_time:
            self._due_at = FOREVER
            self._shadow.would_cancel(self._ticket)
        return over

    def _tells(self) -> str | None:
        return None if self._shadow.shadows(DEADLINES) else super()._tells()


def shadow_run(shadow: ShadowGuard, entry: RouteEntry) -> type[ShadowRun | ShadowStreamRun]:
    """Return what a request is made of that is treated like `entry`."""
    return ShadowRun if entry.stream is None or shadow.models else ShadowStreamRun
