"""One request on its way: who sent it, how far it got, how it ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from resilient_mw.admission.entry import RouteEntry, Waiter
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation.engine import Timer
from resilient_mw.simulation.measure import Figures
from resilient_mw.simulation.service import Work


class Outcome(Enum):
    """How a request ended, as its caller saw it."""

    IN_TIME = "in_time"
    LATE = "late"
    REFUSED = "refused"
    EXPIRED = "expired"
    LEFT = "left"


class Request:
    """One request on its way.

    Attributes:
        route: how it is treated.
        figures: where it is counted.
        attempt: 0 for a new request, 1 for the first return of a refused caller, and so on.
        sent_at: instant.
        worth_until: the instant after which its caller cannot use the answer.
        deadline_at: the instant until which the server believes that the answer is worth something.
        wish: the budget that its deadline header says; None without one.
        tenant: on whose behalf it comes.
        duration: draws the service time of work that begins at an instant.
        admitted_at: the instant at which it was let in; NaN if it never was.
        began_at: the instant at which its work began, which may be later where the plant is busy; NaN if it never did.
        ended_at: the instant of its end.
        outcome: how it ended, once it has.
        reason: why it was refused.
        retry_after: whole seconds, where the refusal said so.
    """

    __slots__ = (
        "admitted_at",
        "attempt",
        "began_at",
        "deadline_at",
        "duration",
        "ended",
        "ended_at",
        "figures",
        "outcome",
        "patience",
        "reason",
        "retry_after",
        "route",
        "sent_at",
        "stopped",
        "tenant",
        "timer",
        "waiter",
        "wish",
        "work",
        "worth_until",
    )

    def __init__(
        self,
        route: RouteEntry,
        figures: Figures,
        *,
        attempt: int,
        sent_at: float,
        worth_until: float,
        wish: float | None,
        duration: Callable[[float], float],
        ended: Callable[[Request], None],
        tenant: str | None = None,
    ) -> None:
        self.route = route
        self.figures = figures
        self.attempt = attempt
        self.sent_at = sent_at
        self.worth_until = worth_until
        self.wish = wish
        self.duration = duration
        self.ended = ended
        self.tenant = tenant
        self.deadline_at = math.inf
        self.admitted_at = math.nan
        self.began_at = math.nan
        self.ended_at = math.nan
        self.outcome: Outcome | None = None
        self.reason: Reason | None = None
        self.retry_after: int | None = None
        self.waiter: Waiter | None = None
        self.timer: Timer | None = None
        self.patience: Timer | None = None
        self.work: Work | None = None
        self.stopped = False

    def end(self, now: float, outcome: Outcome) -> None:
        """Tell the caller, once."""
        self.outcome = outcome
        self.ended_at = now
        self.ended(self)
