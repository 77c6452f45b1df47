"""Forecasts: how long a wait will be, and when a refused caller should come back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resilient_mw.admission.entry import COMPLETED
from resilient_mw.core.windows import DrainRate

if TYPE_CHECKING:
    from random import Random

    from resilient_mw.admission.entry import RouteEntry
    from resilient_mw.admission.queue import ClassState
    from resilient_mw.admission.slots import Slots

MOST_RETRY_AFTER = 60
"""Seconds: a longer estimate than this says more about the estimator than about the server."""

ENOUGH_TO_LEARN = 32
"""Completed runs of one route that are learned from at once, at the latest."""
FRESH = 0.02
"""Seconds for which the wait that refusals speak of is not worked out again: in an overload they come by the thousand."""


class Forecast:
    """Predicts waits from the measured drain rate.

    Until a backlog has been worked off once, the rate is what the limit and the typical run time allow (Little's law);
    before that is known either, nothing is predicted.
    """

    __slots__ = ("_random", "_run", "_slots", "_stale_at", "_unlearned", "_waits", "drain")

    def __init__(self, slots: Slots, random: Random) -> None:
        self._slots = slots
        self._random = random
        self._run = 0.0
        self._unlearned: list[RouteEntry] = []
        self._waits: dict[int, float] = {}
        self._stale_at = 0.0
        self.drain = DrainRate()

    def finish(self, route: RouteEntry, outcome: str, ran: float) -> None:
        """Count a run that has ended.

        What a completed one teaches is learned when somebody asks, or when there is enough of it: many at once cost less
        than one by one.
        """
        if outcome != COMPLETED:
            route.finish(outcome)
            return
        if not route.runs:
            self._unlearned.append(route)
        route.runs.append(ran)
        if len(route.runs) >= ENOUGH_TO_LEARN:
            self.learn()

    def learn(self) -> None:
        """Let the counters and the typical run be those of this instant."""
        for route in self._unlearned:
            runs = route.learn()
            if route.rank >= 0:
                self.ran(runs)
        self._unlearned.clear()

    def ran(self, runs: Sequence[float]) -> None:
        """Learn from completed runs how long a slot is held."""
        typical = self._run
        for seconds in runs:
            typical = seconds if not typical else typical + 0.05 * (seconds - typical)
        self._run = typical

    @property
    def typical_run(self) -> float:
        """Seconds that a slot is held; 0 while unknown."""
        if self._unlearned:
            self.learn()
        return self._run

    def rate(self, now: float) -> float | None:
        """Return slots released per second under load; None while unknown.

        While a backlog stands, what is measured counts. Otherwise the last measurement may speak of work that is no
        longer there, and nobody would wait to refresh it, so the more hopeful estimate counts.
        """
        if self._unlearned:
            self.learn()
        standing = any(state.queue for state in self._slots.classes)
        measured = self.drain.rate(now, standing=standing)
        expected = self._slots.limit / self._run if self._run else None
        if measured is None or expected is None:
            return expected if measured is None else measured
        return measured if standing else max(measured, expected)

    def wait(self, now: float, state: ClassState, cost: int, ahead: int | None = None) -> float | None:
        """Return the predicted wait in seconds of one more request of a class; None while unknown.

        It is served after its own class's backlog at the class's share of the rate, or after everybody's backlog at
        the whole rate, whichever is sooner: the prediction errs to the short side, so that nobody is refused for a
        wait that would not have happened.

        Args:
            now: the instant.
            state: the class.
            cost: slots that the request needs.
            ahead: slots of its class that are granted before it; None: all that its class waits for.
        """
        rate = self.rate(now)
        if not rate:
            return None
        weight = state.priority.weight
        weights = weight + sum(
            other.priority.weight for other in self._slots.classes if other is not state and other.queue
        )
        everybody = sum(other.queued_cost for other in self._slots.classes)
        if ahead is None:
            ahead = state.queued_cost
        everybody -= state.queued_cost - ahead
        return min((ahead + cost) * weights / weight, everybody + cost) / rate

    def too_late(  # noqa: PLR0917  what the controller knows of an arrival, in its order
        self, now: float, state: ClassState, route: RouteEntry, cost: int, budget: float, tenant: str | None
    ) -> bool:
        """Return whether a request that has to queue would be answered after its deadline."""
        if self._unlearned:
            self.learn()
        median = route.median.value
        if median is None or budget == math.inf:
            return False
        wait = self.wait(now, state, cost, state.ahead(tenant))
        return wait is not None and wait + median > budget

    def retry_after(self, now: float, state: ClassState) -> int:
        """Return whole seconds after which the class's backlog should be worked off.

        The wait is at least a second and at most a minute, jittered by 0.8 to 1.4 so that callers who were refused
        together do not come back together.
        """
        if now >= self._stale_at:
            self._waits.clear()
            self._stale_at = now + FRESH
        wait = self._waits.get(state.rank)
        if wait is None:
            wait = min(max(1.0, self.wait(now, state, 0) or 0.0), MOST_RETRY_AFTER / 1.4)
            self._waits[state.rank] = wait
        return math.ceil(wait * (0.8 + 0.6 * self._random.random()))
