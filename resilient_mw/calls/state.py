"""The state that belongs to one dependency: breaker, bulkhead, retry budget, and what was counted.

Sync and async clients share it. Pure and not thread-safe: the owner locks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from resilient_mw.calls.adaptive import AdaptiveLimit
from resilient_mw.calls.attempt import OUTCOMES, STATUS_CLASSES
from resilient_mw.calls.backoff import decorrelated_jitter, equal_jitter, full_jitter, spread
from resilient_mw.calls.breaker import CLOSED, Breaker
from resilient_mw.calls.budget import RetryBudget
from resilient_mw.calls.bulkhead import BulkheadPolicy, WaitingLine
from resilient_mw.calls.config import FAILURE_STATUSES, IDEMPOTENT
from resilient_mw.calls.events import Head, Phase
from resilient_mw.calls.fallback import LastGood
from resilient_mw.calls.group_maker import group_maker
from resilient_mw.calls.groups import Group, GroupState, GroupStates
from resilient_mw.calls.hedge import Hedging
from resilient_mw.calls.refusals import RetryRefusal
from resilient_mw.calls.throttle import Throttle
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import Histogram
from resilient_mw.core.windows import RunningMedian

if TYPE_CHECKING:
    from random import Random

    from resilient_mw.calls.attempt import Attempt
    from resilient_mw.calls.attempts import Attempts
    from resilient_mw.calls.dependency import Dependency


HEDGES_ALONE = 0.1
"""Hedges per call of a dependency without retries: the default of their budget."""
FAIR = 0.9
"""The share of its usual time that a dependency must have had to be blamed for not answering in it."""


CUT = frozenset({"cancelled", "lost"})
"""Outcomes of attempts that somebody cut off."""


class DependencyState:
    """See the module.

    Attributes:
        group: what is judged where no route group is; groups: the states of route groups; None: there are none.
        breaker, retry, budget, throttle, adaptive: None where the dependency has none.
        failures: statuses that count against the dependency.
        repeatable: methods that may be repeated although the dependency may have acted.
        hedging: None: there are no hedges.
        reserve: seconds of a caller's budget that are kept back.
        least: seconds below which no attempt is made; above 0.
        timeout, connect_timeout: seconds; inf: no bound.
        fair: seconds; an attempt that had less says nothing about the dependency when the caller's budget ends it.
        bulkhead: most attempts at once; None: no bound.
        line: those who wait for a slot; None: nobody may.
        in_use: attempts under way, bodies included.
        good, bad: ended attempts that speak for the dependency, and against it. Others say nothing about it.
    """

    def __init__(self, dependency: Dependency, random: Random) -> None:
        self.timeout = math.inf if dependency.timeout is None else dependency.timeout
        self.hedging = None if dependency.hedge is None else Hedging(dependency.hedge, self.timeout)
        make = group_maker(dependency, random, self.timeout, self.hedging)
        self.group = make()
        self.breaker = self.group.breaker
        self.groups = None if dependency.grouping is None else GroupStates(dependency.grouping.names, make)
        self.retry = dependency.retry
        self.budget = _budget_of(dependency)
        self.failures: Collection[int] = (
            FAILURE_STATUSES if dependency.breaker is None else dependency.breaker.failure_statuses
        )
        self.repeatable = IDEMPOTENT if self.retry is None else self.retry.repeatable
        self.reserve = dependency.reserve
        self.least = max(dependency.smallest_budget, math.ulp(0.0))
        self.connect_timeout = math.inf if dependency.connect_timeout is None else dependency.connect_timeout
        total = math.inf if dependency.total_timeout is None else dependency.total_timeout
        self.fair = FAIR * min(self.timeout, total - dependency.reserve)
        self.in_use = self.calls = self.retries = self.good = self.bad = 0
        self.attempts: dict[str, int] = {}
        self.refusals: dict[Reason, int] = {}
        self.retry_refusals: dict[RetryRefusal, int] = {}
        self.expiries: dict[Phase, int] = {}
        self.fallbacks: dict[str, int] = {}
        self.watch_errors = 0
        self.last_good = None if dependency.fallback is None else LastGood(dependency.fallback)
        self.seconds = Histogram()
        self.budgets = Histogram()
        self.bulkhead = dependency.most_attempts
        policy = dependency.bulkhead
        waits = isinstance(policy, BulkheadPolicy) and policy.max_wait > 0
        self.line = WaitingLine(policy) if isinstance(policy, BulkheadPolicy) and waits else None
        self.throttle: Throttle | None = None
        if dependency.throttle is not None:
            patience = min(self.timeout, dependency.throttle.window / 2.0) / 2.0
            self.throttle = Throttle(dependency.throttle, random, patience)
        self.adaptive: AdaptiveLimit | None = None
        if dependency.adaptive is not None and self.bulkhead is not None:
            self.adaptive = AdaptiveLimit(dependency.adaptive, self.bulkhead)
        self._random = random
        self._typical = RunningMedian()

    def breakers(self) -> list[Breaker]:
        """Return the breakers of the dependency and of its route groups."""
        states = [self.group] if self.groups is None else [self.group, *self.groups.all()]
        return [state.breaker for state in states if state.breaker is not None]

    @property
    def most(self) -> int | None:
        """How many attempts may be under way in this instant; None: no bound."""
        return self.bulkhead if self.adaptive is None else self.adaptive.limit

    def take_slot(self) -> bool:
        """Take a bulkhead slot; False if all are in use."""
        most = self.bulkhead
        if self.adaptive is not None:
            self.adaptive.begun(self.in_use)
            most = self.adaptive.limit
        if most is not None and self.in_use >= most:
            return False
        self.in_use += 1
        return True

    def give_slot(self) -> None:
        """Give a bulkhead slot back.

        Raises:
            RuntimeError: none is taken; somebody gave one back twice.
        """
        if self.in_use <= 0:
            raise RuntimeError("a bulkhead slot was given back that nobody holds")
        self.in_use -= 1
        line = self.line
        if line is not None and (most := self.most) is not None:
            while self.in_use < most and line.hand_over():
                self.in_use += 1

    def attempt_timeout(self, call: Attempts, now: float) -> float:
        """Return the dependency's own limit to an attempt that begins now, in seconds."""
        adaptive = call.group.timeout
        return self.timeout if adaptive is None else adaptive.seconds(now)

    def throttles(self, now: float, breaker: Breaker | None) -> bool:
        """Return whether the throttle refuses an attempt. Trials of a circuit are few already, and never refused."""
        throttle = self.throttle
        closed = breaker is None or breaker.state is CLOSED
        return throttle is not None and closed and throttle.refuses(now)

    def typical(self) -> float:
        """Return how long an attempt typically takes, in seconds; 0 while unknown."""
        return self._typical.value or 0.0

    def backoff(self, attempts: int) -> float:
        """Return the back-off after so many attempts, in seconds."""
        policy = self.retry
        if policy is None:
            return 0.0
        draw = equal_jitter if policy.jitter == "equal" else full_jitter
        return draw(self._random, attempts, policy.backoff_base, policy.backoff_cap)

    def backoff_after(self, waited: float) -> float:
        """Return the decorrelated back-off after one of so many seconds; 0: there was none."""
        policy = self.retry
        if policy is None:
            return 0.0
        return decorrelated_jitter(self._random, waited, policy.backoff_base, policy.backoff_cap)

    def spread(self, retry_after: float) -> float:
        """Return a wait that obeys `Retry-After`."""
        return spread(self._random, retry_after)

    # -- counting ------------------------------------------------------------------------------------------------------

    def call_begins(self, now: float, group: Group | None) -> GroupState:
        """Count a call; return what it is judged by: the state of its route group, or of the dependency."""
        self.calls += 1
        return self.group if group is None or self.groups is None else self.groups.at(now, group)

    def attempt_begins(
        self, call: Attempts, now: float, left: float, *, retry: bool, hedge: bool = False
    ) -> None:
        """Count an attempt; `left` is the caller's budget, in seconds.

        Only a call that was sent gives the retry budget its share: those that an open circuit refuses are no traffic.
        """
        if retry:
            self.retries += not hedge
        elif self.budget is not None:
            self.budget.call(now)
        call.group.under_way += 1
        if left != math.inf:
            self.budgets.add(left)
        if self.throttle is not None:
            self.throttle.sent(now)

    def answered(self, attempt: Attempt, head: Head) -> str:
        """Take the head of an attempt; return its outcome. Only a refusal for load is no acceptance (see the throttle)."""
        if self.throttle is not None:
            self.throttle.ended(attempt.started_at, accepted=not (head.refused and head.status >= 500))
        return STATUS_CLASSES.get(head.status // 100, "other")

    def attempt_ends(
        self,
        call: Attempts,
        attempt: Attempt,
        now: float,
        outcome: str,
        *,
        failed: bool | None,
    ) -> None:
        """Count the end of an attempt; only a good one teaches how long an attempt takes. None: it says nothing."""
        if self.throttle is not None and not attempt.outcome:
            self.throttle.ended(attempt.started_at, accepted=False if failed else None)
        if self.adaptive is not None:
            self.adaptive.ended(now, attempt.started_at, lost=_lost(outcome, failed=failed))
        self.attempts[outcome] = self.attempts.get(outcome, 0) + 1
        group = call.group
        group.under_way -= 1
        if group.timeout is not None:
            cut = attempt.cut_off or outcome in CUT
            group.timeout.told(now, now - attempt.started_at, failed=failed, cut=cut)
        if group.heads is not None and not attempt.outcome and (attempt.cut_off or outcome in CUT):
            group.heads.censored(now, now - attempt.started_at)
        if failed:
            self.bad += 1
        elif failed is not None:
            seconds = now - attempt.started_at
            self.good += 1
            self.seconds.add(seconds)
            self._typical.add(seconds)

    def begun_all(self, begun: Sequence[float], lefts: Sequence[float]) -> None:
        """Count calls that began with an attempt each: the instants, and the callers' budgets. For the short way."""
        self.calls += len(begun)
        self.group.under_way += len(begun)
        if self.budget is not None:
            self.budget.calls(begun)
        if self.throttle is not None:
            self.throttle.sent_all(len(begun))
        self.budgets.add_all(lefts if math.inf not in lefts else [left for left in lefts if left != math.inf])

    def ended_all(self, statuses: Sequence[int], seconds: Sequence[float]) -> None:
        """Count ends of good attempts: the statuses, some of them below 0, and how long they took. For the short way."""
        for status, many in Counter(statuses).items():
            outcome = OUTCOMES[abs(status) // 100]
            self.attempts[outcome] = self.attempts.get(outcome, 0) + many
        self.group.under_way -= len(seconds)
        self.good += len(seconds)
        self.seconds.add_all(seconds)
        self._typical.add_all(seconds)

    def refused(self, reason: Reason) -> None:
        """Count a call or attempt that was refused here."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def retry_refused(self, refusal: RetryRefusal) -> None:
        """Count a retry that was not made."""
        self.retry_refusals[refusal] = self.retry_refusals.get(refusal, 0) + 1

    def expired(self, phase: Phase) -> None:
        """Count a call whose deadline passed."""
        self.expiries[phase] = self.expiries.get(phase, 0) + 1


def _lost(outcome: str, *, failed: bool | None) -> bool | None:
    """Return whether an attempt was lost to load: timed out, or refused by a trusted dependency; None: it says nothing.

    Of all answers of the class 5xx only such a refusal says nothing about the health of the dependency.
    """
    if outcome == "timeout":
        return True if failed else None
    if outcome == "5xx" and failed is None:
        return True
    return None if failed is None or outcome in {"error", "body", "cancelled"} else False


def _budget_of(dependency: Dependency) -> RetryBudget | None:
    """Return the one budget of retries and hedges; None: there is no bound, or nothing to bound."""
    retry = dependency.retry
    if retry is None:
        return None if dependency.hedge is None else RetryBudget(HEDGES_ALONE, 1.0)
    return None if retry.budget_ratio is None else RetryBudget(retry.budget_ratio, retry.budget_per_second)
