"""What admission knows of one route in one class, and of one request that waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from resilient_mw.admission.head_rule import HeadRule
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import Histogram, RouteSnapshot
from resilient_mw.core.streams import StreamRule
from resilient_mw.core.windows import RunningMedian


class RouteEntry:
    """One route template in one class: how it is treated, and its counters.

    Not thread-safe: the owner of the controller locks around every use.

    Attributes:
        template: the route template (a metric label).
        priority: name of the class, or `exempt`.
        rank: index of the class in the policy; -1 for `exempt`.
        cost: slots that one request takes where no function of its head decides.
        deadline: the complete deadline rule of the route.
        budget: seconds that a caller gets who sends no deadline.
        max_body: bytes of the largest request body; None: any.
        needs: name of the dependency that it cannot do without.
        degradable: whether a cheaper variant can answer while that one is not available.
        head_rule: what the head of a request decides; None: nothing.
        plain: whether path and method say all that decides about a request; else more of its head is looked at.
        runs: seconds of completed runs that have not been learned from.
        stream: how a request is treated that lasts; None: as every other one.
    """

    __slots__ = (
        "admitted",
        "arrived",
        "budget",
        "cost",
        "deadline",
        "degradable",
        "head_rule",
        "late",
        "left",
        "max_body",
        "median",
        "needs",
        "outcomes",
        "plain",
        "priority",
        "rank",
        "refused",
        "run",
        "runs",
        "stream",
        "template",
        "wait",
    )

    def __init__(  # noqa: PLR0917  one per route, made from the key it is found by
        self,
        template: str,
        priority: str,
        rank: int,
        cost: int,
        deadline: DeadlineRule,
        max_body: int | None = None,
        stream: StreamRule | None = None,
        needs: str | None = None,
        degradable: bool = False,
        head_rule: HeadRule | None = None,
    ) -> None:
        self.template = template
        self.priority = priority
        self.rank = rank
        self.cost = cost
        self.deadline = deadline
        self.budget = deadline.budget(None, trusted=False)
        self.max_body = max_body
        self.stream = stream
        self.needs = needs
        self.degradable = degradable
        self.head_rule = head_rule
        self.plain = max_body is None and stream is None and needs is None and head_rule is None
        self.refused: dict[Reason, int] = {}
        self.outcomes: dict[str, int] = {}
        self.forget()

    def forget(self) -> None:
        """Forget what was counted and learned."""
        self.arrived = 0
        self.admitted = 0
        self.left = 0
        self.late = 0
        self.refused.clear()
        self.outcomes.clear()
        self.wait = Histogram()
        self.run = Histogram()
        self.runs: list[float] = []
        self.median = RunningMedian()

    def finish(self, outcome: str) -> None:
        """Count a run that has ended in another way than by being completed.

        Args:
            outcome: `error` or the value of a cancel reason.
        """
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def learn(self) -> Sequence[float]:
        """Count the completed runs and learn the typical run time from them; return what they took.

        Only completed runs teach it: a cut-off one would make the route look faster than it is.
        """
        runs, self.runs = self.runs, []
        self.outcomes[COMPLETED] = self.outcomes.get(COMPLETED, 0) + len(runs)
        self.run.add_all(runs)
        self.median.add_all(runs)
        return runs

    def refuse(self, reason: Reason) -> None:
        """Count a refusal."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def snapshot(self) -> RouteSnapshot:
        """Return the figures of this instant, detached from the counters."""
        wait, run = Histogram(), Histogram()
        wait.merge(self.wait)
        run.merge(self.run)
        refused = {reason.value: count for reason, count in self.refused.items()}
        return RouteSnapshot(
            self.template, self.priority, self.arrived, self.admitted, self.left, refused, dict(self.outcomes),
            self.late, wait, run,
        )  # fmt: skip


COMPLETED = "completed"
ERROR = "error"


class WaiterState(Enum):
    """Where a request that had to queue stands."""

    WAITING = "waiting"
    GRANTED = "granted"
    RUNNING = "running"
    REFUSED = "refused"
    LEFT = "left"


class Waiter:
    """A request in the wait queue.

    Attributes:
        route: its route entry.
        cost: slots it needs.
        arrived_at, give_up_at, deadline_at: instants.
        state: where it stands.
        reason: why it was refused, once it is.
        retry_after: whole seconds, where the refusal carries them.
        wake: set by the shell; called by the owner, outside the lock, when the state has changed.
        bypassed: slots that other classes took while this one was first in its class and did not fit.
        tenant: on whose behalf it came; None: nobody's in particular.
    """

    __slots__ = (
        "arrived_at",
        "bypassed",
        "cost",
        "deadline_at",
        "give_up_at",
        "reason",
        "retry_after",
        "route",
        "state",
        "tenant",
        "wake",
    )

    def __init__(  # noqa: PLR0917  made from the arguments of an arrival, in their order
        self,
        route: RouteEntry,
        cost: int,
        arrived_at: float,
        give_up_at: float,
        deadline_at: float,
        tenant: str | None = None,
    ) -> None:
        self.route = route
        self.cost = cost
        self.arrived_at = arrived_at
        self.give_up_at = give_up_at
        self.deadline_at = deadline_at
        self.state = WaiterState.WAITING
        self.reason: Reason | None = None
        self.retry_after: int | None = None
        self.wake: Callable[[], None] | None = None
        self.bypassed = 0
        self.tenant = tenant
