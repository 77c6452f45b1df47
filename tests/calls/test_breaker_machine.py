"""The breaker in any order of attempts, verdicts, losses and pauses, against an account kept with lists."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from resilient_mw.calls.breaker import Breaker, BreakerState, Permit
from resilient_mw.calls.config import BreakerPolicy
from tests.calls.desk import PROFILE, chosen_settings

TICK = 1 / 64  # every instant is a multiple: sums are exact
OPEN_FOR, LEASE = 320 * TICK, 640 * TICK

POLICIES = [
    BreakerPolicy(window=window, failure_ratio=ratio, minimum_calls=least, open_for=OPEN_FOR, open_jitter=jitter,
                  trials=trials, trial_lease=LEASE)
    for window, ratio, least, jitter, trials in (
        (1, 1.0, 1, 0.0, 1), (3, 0.5, 1, 0.5, 1), (4, 0.5, 2, 0.0, 2), (5, 0.6, 5, 0.5, 3), (6, 1.0, 3, 1.0, 2),
        (10, 0.25, 4, 0.1, 3),
    )
]  # fmt: skip
PAUSES = st.sampled_from([0, 1, 1, 64, 319, 320, 321, 480, 640, 1000])
VERDICTS = st.sampled_from([True, True, True, False, False, None])
PICKS = st.integers(0, 15)


class BreakerMachine(RuleBasedStateMachine):
    """Attempts that begin, end with any verdict at any time, end twice, or never end."""

    @initialize(policy=st.sampled_from(POLICIES), seed=st.integers(0, 3))
    def start(self, policy: BreakerPolicy, seed: int) -> None:
        self.policy = policy
        self.breaker = Breaker(policy, Random(seed))
        self.now = 0.0
        self.state = BreakerState.CLOSED
        self.period = 0
        self.opened_at = 0.0
        self.window: list[bool] = []
        self.held: list[tuple[Permit, int]] = []
        self.told: list[tuple[Permit, int]] = []
        self.trials: list[tuple[Permit, float]] = []
        self.passed = 0

    # -- verbs

    @rule(pause=PAUSES)
    def wait(self, pause: int) -> None:
        self.now += pause * TICK

    @rule()
    def ask(self) -> None:
        self._ask()

    @rule(count=st.integers(2, 6))
    def ask_together(self, count: int) -> None:
        for _ in range(count):
            self._ask()

    @rule(failed=VERDICTS, count=st.integers(1, 8))
    def attempts(self, failed: bool | None, count: int) -> None:
        for _ in range(count):
            permit = self._ask()
            if permit is not None:
                self._tell(len(self.held) - 1, failed)

    @precondition(lambda self: self.held)
    @rule(pick=PICKS, failed=VERDICTS)
    def tell(self, pick: int, failed: bool | None) -> None:
        self._tell(pick % len(self.held), failed)

    @precondition(lambda self: self.held)
    @rule(pick=PICKS)
    def lose(self, pick: int) -> None:
        self.held.pop(pick % len(self.held))

    @precondition(lambda self: any(permit.trial for permit, _ in self.told))
    @rule(pick=PICKS, failed=VERDICTS)
    def tell_a_trial_again(self, pick: int, failed: bool | None) -> None:
        trials = [permit for permit, _ in self.told if permit.trial]
        self.breaker.record(self.now, trials[pick % len(trials)], failed=failed)
        self._check()

    def teardown(self) -> None:
        if not hasattr(self, "breaker"):
            return
        # No wedge: whatever happened, after one open time and one lease it takes good attempts alone to close it.
        self.now += 2 * OPEN_FOR + LEASE
        self.held.clear()
        for _ in range(self.policy.trials):
            if self.state is BreakerState.CLOSED:
                break
            permit = self._ask()
            assert permit is not None, "it is wedged"
            self._tell(len(self.held) - 1, failed=False)
        assert self.breaker.state is BreakerState.CLOSED

    # -- the account

    def _ask(self) -> Permit | None:
        before, under_way = self.state, self._under_way()
        permit = self.breaker.ask(self.now)
        if before is BreakerState.CLOSED:
            assert permit is not None
            assert permit.trial == 0
        elif before is BreakerState.OPEN:
            waited = self.now - self.opened_at
            if permit is None:
                assert waited < OPEN_FOR * (1 + self.policy.open_jitter), "it stays open too long"
            else:
                assert waited >= OPEN_FOR, "it was not open for as long as was said"
                self._enter(BreakerState.HALF_OPEN)
        else:
            assert (permit is not None) is (self.passed + under_way < self.policy.trials)
        if permit is not None:
            self.held.append((permit, self.period))
            if self.state is BreakerState.HALF_OPEN:
                assert permit.trial
                if len(self.trials) >= Breaker.MOST_LOST * self.policy.trials:
                    del self.trials[0]
                self.trials.append((permit, self.now + LEASE))
        # A lost trial may succeed late, while its place is taken: it counts, and holds none.
        assert self._under_way() <= self.policy.trials
        self._check()
        return permit

    def _tell(self, place: int, failed: bool | None) -> None:
        permit, period = self.held.pop(place)
        self.breaker.record(self.now, permit, failed=failed)
        self.told.append((permit, period))
        if period == self.period:
            if self.state is BreakerState.CLOSED:
                self._told_closed(failed)
            else:
                self._told_trial(permit, failed)
        self._check()

    def _told_closed(self, failed: bool | None) -> None:
        if failed is None:
            return
        self.window = [*self.window, failed][-self.policy.window :]
        enough = len(self.window) >= self.policy.minimum_calls
        if failed and enough and sum(self.window) / len(self.window) >= self.policy.failure_ratio:
            self._enter(BreakerState.OPEN)

    def _told_trial(self, permit: Permit, failed: bool | None) -> None:
        if permit not in [trial for trial, _ in self.trials]:
            return  # it was lost so long ago that it was forgotten
        self.trials = [(trial, lease) for trial, lease in self.trials if trial != permit]
        if failed:
            self._enter(BreakerState.OPEN)
        elif failed is not None:
            self.passed += 1
            if self.passed >= self.policy.trials:
                self._enter(BreakerState.CLOSED)

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self.period += 1
        self.opened_at = self.now
        self.window, self.trials, self.passed = [], [], 0

    def _under_way(self) -> int:
        return sum(lease > self.now for _, lease in self.trials)

    def _check(self) -> None:
        breaker = self.breaker
        assert breaker.state is self.state
        assert breaker._generation == self.period
        assert breaker._failures == sum(self.window)
        assert list(breaker._outcomes) == self.window
        assert breaker.retry_in(self.now) >= 0.0
        assert sum(breaker.counts.values()) == self.period
        if self.state is not BreakerState.OPEN:
            assert breaker.would_allow(self.now)
        else:
            assert breaker.would_allow(self.now) is (breaker.retry_in(self.now) == 0.0)
            assert breaker.would_allow(self.now + breaker.retry_in(self.now) + 1e-9)


@pytest.mark.timeout(0 if PROFILE == "long" else 300)
def test_the_breaker_is_never_wedged_and_does_what_its_policy_says() -> None:
    run_state_machine_as_test(BreakerMachine, settings=chosen_settings(steps=24))
