"""The retry budget in any order of calls and retries, against a count by hand of every window."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from resilient_mw.calls.budget import WINDOW, RetryBudget
from tests.calls.desk import PROFILE, chosen_settings

TICK = 1 / 64  # every instant is a multiple: sums are exact
PAUSES = st.sampled_from([0, 0, 1, 3, 16, 64, 200, 320, 639, 640, 641, 1300])
BACKOFFS = st.sampled_from([0, 0, 1, 8, 64, 128, 320, 640, 700])


class BudgetMachine(RuleBasedStateMachine):
    """Calls, reservations, retries that begin on time or late, and retries that are given up."""

    @initialize(
        ratio=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), per_second=st.sampled_from([0.0, 0.1, 0.25, 1.0])
    )
    def start(self, ratio: float, per_second: float) -> None:
        self.ratio, self.per_second = ratio, per_second
        self.budget = RetryBudget(ratio, per_second)
        self.now = 0.0
        self.calls: list[float] = []
        self.begun: list[float] = []
        self.reserved: list[tuple[float, int]] = []
        self.late: list[float] = []

    def room(self, end: float, retries: list[float], late: int = 0) -> bool:
        """Whether the window that ends at an instant keeps what was promised, but for those that began late."""
        inside = sum(end - WINDOW < at <= end for at in retries)
        calls = sum(end - WINDOW < at <= end for at in self.calls)
        return inside - late <= self.ratio * calls + self.per_second * WINDOW

    @rule(pause=PAUSES)
    def wait(self, pause: int) -> None:
        self.now += pause * TICK
        for at, price in sorted(self.reserved):
            if at < self.now:
                self._begin(at, at, price)

    @rule(count=st.integers(1, 12))
    def call(self, count: int) -> None:
        for _ in range(count):
            self.budget.call(self.now)
            self.calls.append(self.now)

    @rule(backoff=BACKOFFS, price=st.sampled_from([1, 1, 2]))
    def reserve(self, backoff: int, price: int) -> None:
        begin = self.now + backoff * TICK
        promised = [at for at, each in self.reserved for _ in range(each)]
        with_it = [*self.begun, *promised, *[begin] * price]
        ends = {begin, *(at for at in promised if at >= begin)}
        allowed = all(self.room(end, with_it) for end in ends if begin > end - WINDOW)
        assert self.budget.reserve(self.now, begin, price) is allowed
        if allowed:
            self.reserved.append((begin, price))

    @rule()
    def reserve_all(self) -> None:
        for _ in range(40):
            before = len(self.reserved)
            self.reserve(0, 1)
            if len(self.reserved) == before:
                break

    @precondition(lambda self: self.reserved)
    @rule(pick=st.integers(0, 7))
    def give_up(self, pick: int) -> None:
        self.budget.give_back(*self.reserved.pop(pick % len(self.reserved)))

    @precondition(lambda self: self.reserved)
    @rule(pick=st.integers(0, 7), behind=st.sampled_from([1, 7, 64, 650]))
    def begin_late(self, pick: int, behind: int) -> None:
        at, price = self.reserved[pick % len(self.reserved)]
        now = at + behind * TICK
        for earlier, its_price in sorted(self.reserved):
            if earlier < now and earlier != at:
                self._begin(earlier, earlier, its_price)
        self.now = max(self.now, now)
        self.late += [self.now] * price
        self._begin(at, self.now, price)

    def teardown(self) -> None:
        if not hasattr(self, "budget"):
            return
        for at, price in sorted(self.reserved):
            self._begin(at, at, price)
        for end in self.begun:
            late = sum(end - WINDOW < at <= end for at in self.late)
            assert end in self.late or self.room(end, self.begun, late), "more retries than were promised"
        kept = self.budget._retries
        assert sorted(kept) == kept
        assert len(kept) == sum(at in kept for at in self.begun), "one is counted that was never made"

    def _begin(self, reserved: float, now: float, price: int) -> None:
        self.reserved.remove((reserved, price))
        self.budget.begin(reserved, now, price)
        self.begun += [now] * price


@pytest.mark.timeout(0 if PROFILE == "long" else 300)
def test_no_window_holds_more_retries_than_promised_and_none_is_refused_without_need() -> None:
    run_state_machine_as_test(BudgetMachine, settings=chosen_settings(steps=20))
