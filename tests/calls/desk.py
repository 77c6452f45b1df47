"""A dependency's state together with what a test of it needs: no defaults unless said, and luck that can be chosen."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from hypothesis import settings

from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.state import DependencyState

PROFILE = settings.get_current_profile_name()
"""The profile that pytest was started with: nobody loads another one before the tests are collected."""

BARE: dict[str, Any] = {
    "timeout": 2.0,
    "connect_timeout": None,
    "total_timeout": None,
    "retry": None,
    "breaker": None,
    "reserve": 0.0,
    "smallest_budget": 0.0,
}
"""A dependency without any defence but one timeout."""

AT_ONCE = RetryPolicy(attempts=3, backoff_base=0.0, budget_ratio=None)
"""Retries without back-off and without a budget."""

EDGY = BreakerPolicy(window=4, minimum_calls=2, open_for=8.0, open_jitter=0.0, trials=2, trial_lease=16.0)
"""Opens at the second failure."""


class Luck(Random):
    """A generator whose next number is known."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


class Desk:
    """One dependency; keyword arguments are fields of it."""

    def __init__(self, luck: Random | None = None, **fields: Any) -> None:
        self.dependency = Dependency("prices", "http://prices/*", **{**BARE, **fields})
        self.luck = luck or Luck(0.5)
        self.state = DependencyState(self.dependency, self.luck)

    def call(self, method: str = "GET", deadline_at: float = math.inf, **request: Any) -> Call:
        return Call(self.state, method, deadline_at=deadline_at, **request)

    def open(self, now: float) -> None:
        """Open the circuit by as many failures as it takes."""
        breaker = self.state.breaker
        assert breaker is not None
        for _ in range(100):
            permit = breaker.ask(now)
            if permit is None:
                return
            breaker.record(now, permit, failed=True)
        raise AssertionError("the circuit does not open")

    def at_rest(self) -> bool:
        """Whether nothing is held: no slot, no trial, no retry that was reserved and not begun."""
        breaker = self.state.breaker
        return self.state.in_use == 0 and (breaker is None or not breaker._trials)


def chosen_settings(examples: int = 2_000, steps: int = 30) -> settings:
    """Return the settings of a state machine: those of the profile, if pytest was started with one of ours."""
    if PROFILE == "long":
        return settings(stateful_step_count=steps, deadline=None)
    if PROFILE == "faults":
        return settings(max_examples=300, stateful_step_count=steps, deadline=None)
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None)
