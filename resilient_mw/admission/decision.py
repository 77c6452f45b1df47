"""What the controller answers: admitted, queued or refused, and whom to wake."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.admission.entry import Waiter
from resilient_mw.core.rejection import Reason

Settled = tuple[Waiter, ...]
"""Waiters whose wait is over, granted or refused: the owner calls their `wake`."""

NOBODY: Settled = ()


@dataclass(slots=True)
class Decision:
    """The answer to one request. Nobody changes it; a frozen one would cost a refusal five times as much to make.

    Attributes:
        waiter: set if it was queued.
        reason: set if it was refused. Neither: it was admitted.
        retry_after: whole seconds after which a refused caller should come back.
        fields: more header fields of a refusal, as (name in title case, value).
        settled: other requests whose wait this decision ended.
    """

    waiter: Waiter | None = None
    reason: Reason | None = None
    retry_after: int | None = None
    settled: Settled = NOBODY
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def admitted(self) -> bool:
        """Whether the request may run now."""
        return self.waiter is None and self.reason is None


ADMITTED = Decision()
