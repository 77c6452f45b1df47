"""A controller together with what a test of it needs: routes by class and cost, and short verbs."""

from __future__ import annotations

from random import Random
from typing import Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.decision import Decision, Settled
from resilient_mw.admission.entry import COMPLETED, RouteEntry, Waiter
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.core.marks import Mark

PATIENT: dict[str, Any] = {
    "max_wait": 3600.0,
    "wait_share": 1.0,
    "deadline_default": 3600.0,
    "deadline_maximum": 3600.0,
}
"""A policy under which nobody gives up before an hour has passed."""


class Desk:
    """One controller; keyword arguments are fields of the policy. The queue has 20 places unless said."""

    def __init__(self, seed: int = 1, **policy: Any) -> None:
        self.policy = ServerPolicy(**{"queue": 20, **policy})
        self.controller = AdmissionController(self.policy, Random(seed))
        self.entries = RouteEntries(self.policy)

    def route(self, priority: str = "normal", cost: int = 1, template: str = "/") -> RouteEntry:
        return self.entries.get(template, Mark(priority, cost))

    def arrive(
        self,
        now: float,
        priority: str = "normal",
        *,
        cost: int = 1,
        budget: float = 3600.0,
        tenant: str | None = None,
    ) -> Decision:
        return self.controller.arrive(now, self.route(priority, cost), cost, now + budget, tenant)

    def queue(
        self,
        now: float,
        priority: str = "normal",
        *,
        cost: int = 1,
        budget: float = 3600.0,
        tenant: str | None = None,
    ) -> Waiter:
        """Arrive, and expect to be queued."""
        waiter = self.arrive(now, priority, cost=cost, budget=budget, tenant=tenant).waiter
        assert waiter is not None, "it was expected to be queued"
        return waiter

    def admit(
        self,
        now: float,
        priority: str = "normal",
        *,
        cost: int = 1,
        budget: float = 3600.0,
        tenant: str | None = None,
    ) -> None:
        """Arrive, and expect to be admitted."""
        decision = self.arrive(now, priority, cost=cost, budget=budget, tenant=tenant)
        assert decision.admitted, "it was expected to be admitted"

    def release(
        self, now: float, priority: str = "normal", *, cost: int = 1, tenant: str | None = None
    ) -> Settled:
        return self.controller.release(now, self.route(priority, cost), cost, tenant)

    def learn(self, ran: float, priority: str = "normal", *, runs: int = 30) -> None:
        """Let the typical run time of a route be known."""
        for _ in range(runs):
            self.controller.finish(self.route(priority), COMPLETED, ran)

    def held(self, priority: str) -> int:
        """Return the slots that a class holds."""
        return next(each.slots for each in self.controller.classes if each.priority.name == priority)
