"""The breaker in any order of attempts, verdicts, losses and pauses, against an account kept with lists."""

from __future__ import annotations

import math
from dataclasses import dataclass
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

from resilient_mw.calls.breaker import SHADOW, Breaker, BreakerState, Permit
from resilient_mw.calls.breaker_recent import Recent
from resilient_mw.calls.breaker_trials import Trials
from resilient_mw.calls.breaker_windows import STEPS
from resilient_mw.calls.config import BreakerPolicy
from tests.calls.desk import PROFILE, chosen_settings

TICK = 1 / 64  # every instant is a multiple: sums are exact
OPEN_FOR, LEASE, SLOW = 320 * TICK, 640 * TICK, 96 * TICK
SECONDS = STEPS * 32 * TICK

POLICIES = [
    BreakerPolicy(window=window, failure_ratio=ratio, minimum_calls=least, open_for=OPEN_FOR, open_jitter=jitter,
                  trials=trials, trial_lease=LEASE, slow_after=slow, slow_ratio=ratio, consecutive_failures=in_a_row,
                  window_seconds=seconds, shadow=shadow, open_factor=factor, open_cap=2 * OPEN_FOR)
    for window, ratio, least, jitter, trials, slow, in_a_row, seconds, shadow, factor in (
        (1, 1.0, 1, 0.0, 1, None, None, None, False, 1), (3, 0.5, 1, 0.5, 1, None, None, None, False, 1),
        (4, 0.5, 2, 0.0, 2, None, None, None, False, 2), (5, 0.6, 5, 0.5, 3, None, 3, None, False, 1),
        (6, 1.0, 3, 1.0, 2, None, None, None, True, 1), (10, 0.25, 4, 0.1, 3, SLOW, None, None, False, 3),
        (4, 0.5, 2, 0.0, 2, SLOW, 3, None, False, 1), (20, 0.5, 3, 0.0, 2, None, None, SECONDS, False, 1),
        (20, 0.5, 3, 0.1, 2, SLOW, 4, SECONDS, False, 1), (20, 0.7, 4, 0.0, 1, SLOW, None, SECONDS, True, 2),
    )
]  # fmt: skip
PAUSES = st.sampled_from([0, 1, 1, 31, 64, 95, 96, 97, 319, 320, 321, 480, 640, 1000])
VERDICTS = st.sampled_from([True, True, True, False, False, None])
PICKS = st.integers(0, 15)


@dataclass
class Outcome:
    """One outcome of the account; `step` is the part of the window of time that it belongs to."""

    failed: bool
    slow: bool
    step: int


@dataclass
class Attempt:
    """One attempt of the account."""

    permit: Permit
    period: int
    start: float
    trial: bool
    outcome: Outcome | None = None


class BreakerMachine(RuleBasedStateMachine):
    """Attempts that begin, end with any verdict at any time, end twice, or never end."""

    @initialize(policy=st.sampled_from(POLICIES), seed=st.integers(0, 3))
    def start(self, policy: BreakerPolicy, seed: int) -> None:
        self.policy = policy
        self.breaker = Breaker(policy, Random(seed))
        self.now = 0.0
        self.state = BreakerState.CLOSED
        self.period = 0
        self.changes = 0
        self.by_hand = False
        self.opened_at = 0.0
        self.outcomes: list[Outcome] = []
        self.in_a_row = 0
        self.attempts: list[Attempt] = []
        self.held: list[Attempt] = []
        self.told: list[Attempt] = []
        self.trials: list[Attempt] = []
        self.passed = 0
        self.refused = 0

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
    def attempts_in_turn(self, failed: bool | None, count: int) -> None:
        for _ in range(count):
            if self._ask():
                self._tell(len(self.held) - 1, failed)

    @rule(count=st.integers(1, 8))
    def successes_of_the_short_way(self, count: int) -> None:
        for _ in range(count):
            if self.now >= self.breaker.quiet_until:
                return
            self.breaker.recent.succeeded()
            self.outcomes.append(Outcome(failed=False, slow=False, step=self._step()))
            self.in_a_row = 0

    @precondition(lambda self: self.held)
    @rule(pick=PICKS, failed=VERDICTS)
    def tell(self, pick: int, failed: bool | None) -> None:
        self._tell(pick % len(self.held), failed)

    @precondition(lambda self: self.held)
    @rule(pick=PICKS)
    def lose(self, pick: int) -> None:
        self.held.pop(pick % len(self.held))

    @precondition(lambda self: any(each.trial for each in self.told))
    @rule(pick=PICKS, failed=VERDICTS)
    def tell_a_trial_again(self, pick: int, failed: bool | None) -> None:
        trials = [each for each in self.told if each.trial]
        self._notice()
        self.breaker.record(self.now, trials[pick % len(trials)].permit, failed=failed)
        self._check()

    @rule()
    def look(self) -> None:
        self._notice()
        self.breaker.closed_for(self.now)
        self._check()

    @rule(verb=st.sampled_from(["open", "close", "reset", "reset"]))
    def by_hand_(self, verb: str) -> None:
        if verb == "open":
            self.breaker.open(self.now)
            self._enter(BreakerState.OPEN, by_hand=True)
        else:
            (self.breaker.close if verb == "close" else self.breaker.reset)(self.now)
            self._enter(BreakerState.CLOSED, by_hand=verb == "close")
        self._check()

    def teardown(self) -> None:
        if not hasattr(self, "breaker"):
            return
        if self.by_hand:
            self.breaker.reset(self.now)
            self._enter(BreakerState.CLOSED, by_hand=False)
        # No wedge: whatever happened, after the open times and one lease it takes good attempts alone to close it.
        self.now += LEASE
        self._check()
        self.now += 2 * OPEN_FOR * (1 + self.policy.open_jitter)
        self.held.clear()
        for _ in range(self.policy.trials):
            if self.state is BreakerState.CLOSED:
                break
            assert self._ask(), "it is wedged"
            self._tell(len(self.held) - 1, failed=False)
        assert self.breaker.state is BreakerState.CLOSED

    # -- the account

    def _ask(self) -> bool:
        """Ask; return whether a real permit was given."""
        self._notice()
        before, under_way = self.state, self._under_way()
        permit = self.breaker.ask(self.now)
        if self.policy.shadow:
            assert permit is not None, "it refuses nothing in shadow mode"
            self.refused += permit == SHADOW
            permit = None if permit == SHADOW else permit
        if before is BreakerState.CLOSED:
            assert permit is not None
        elif before is BreakerState.OPEN:
            waited = self.now - self.opened_at
            if permit is None:
                most = OPEN_FOR * (2 if self.policy.open_factor > 1 else 1)
                assert self.by_hand or waited < most * (1 + self.policy.open_jitter), "it stays open too long"
            else:
                assert waited >= OPEN_FOR, "it was not open for as long as was said"
                assert not self.by_hand
                self._enter(BreakerState.HALF_OPEN)
        else:
            assert (permit is not None) is (self.passed + under_way < self.policy.trials)
        if permit is not None:
            trial = self.state is BreakerState.HALF_OPEN
            attempt = Attempt(permit, self.period, self.now, trial)
            self.held.append(attempt)
            if trial:
                if len(self.trials) >= Trials.MOST_LOST * self.policy.trials:
                    del self.trials[0]
                self.trials.append(attempt)
            else:
                self.attempts.append(attempt)
        # A lost trial may succeed late, while its place is taken: it counts, and holds none.
        assert self._under_way() <= self.policy.trials
        self._check()
        return permit is not None

    def _tell(self, place: int, failed: bool | None) -> None:
        self._notice()
        attempt = self.held.pop(place)
        self.breaker.record(self.now, attempt.permit, failed=failed)
        self.told.append(attempt)
        if attempt.period == self.period:
            if attempt.trial:
                self._told_trial(attempt, failed)
            else:
                self._told_closed(attempt, failed)
        self._check()

    def _told_closed(self, attempt: Attempt, failed: bool | None) -> None:
        self.attempts.remove(attempt)
        if failed is not None:
            self.in_a_row = self.in_a_row + 1 if failed else 0
            if attempt.outcome is None:
                self.outcomes.append(Outcome(failed=failed, slow=False, step=self._step()))
            else:
                attempt.outcome.failed = failed  # counted before, as slow
        if failed and not self.by_hand:
            in_a_row = self.policy.consecutive_failures
            if in_a_row is not None and self.in_a_row >= in_a_row:
                self._enter(BreakerState.OPEN)
            else:
                self._judge([each.failed for each in self._window()])

    def _told_trial(self, attempt: Attempt, failed: bool | None) -> None:
        if attempt not in self.trials:
            return  # it was lost so long ago that it was forgotten
        self.trials.remove(attempt)
        if failed:
            self._enter(BreakerState.OPEN)
        elif failed is not None:
            self.passed += 1
            if self.passed >= self.policy.trials:
                self._enter(BreakerState.CLOSED)

    def _notice(self) -> None:
        """What time alone does: attempts become slow, one after the other."""
        slow_after = self.policy.slow_after
        if slow_after is None or self.state is BreakerState.OPEN:
            return
        if self.state is BreakerState.HALF_OPEN:
            if any(each.start + slow_after <= self.now for each in self.trials):
                self._enter(BreakerState.OPEN)
            return
        for attempt in self.attempts:
            if attempt.outcome is None and attempt.start + slow_after <= self.now:
                attempt.outcome = Outcome(failed=False, slow=True, step=self._step())
                self.outcomes.append(attempt.outcome)
                if not self.by_hand:
                    self._judge([each.slow for each in self._window()])
                if not self.attempts:
                    return  # it has opened

    def _judge(self, window: list[bool]) -> None:
        if (
            len(window) >= self.policy.minimum_calls
            and sum(window) / len(window) >= self.policy.failure_ratio
        ):
            self._enter(BreakerState.OPEN)

    def _window(self) -> list[Outcome]:
        if self.policy.window_seconds is None:
            return self.outcomes[-self.policy.window :]
        return [each for each in self.outcomes if each.step > self._step() - STEPS]

    def _step(self) -> int:
        return math.floor(self.now / (SECONDS / STEPS))

    def _enter(self, state: BreakerState, *, by_hand: bool = False) -> None:
        if (state, self.state) == (BreakerState.OPEN, BreakerState.OPEN):
            self.by_hand = by_hand
            return
        self.changes += state is not self.state
        self.state = state
        self.by_hand = by_hand
        self.period += 1
        self.opened_at = self.now
        self.outcomes, self.attempts, self.trials, self.passed, self.in_a_row = [], [], [], 0, 0

    def _under_way(self) -> int:
        return sum(each.start + LEASE > self.now for each in self.trials)

    def _check(self) -> None:
        breaker = self.breaker
        self._notice()
        breaker.notice(self.now)
        assert breaker.state is self.state
        assert breaker.held is self.by_hand
        assert breaker.would_refuse == self.refused
        window = self._window()
        if self.policy.window_seconds is None:
            assert breaker._outcomes == [each.failed for each in window]
        assert breaker._outcomes.count(True) == sum(each.failed for each in window)
        assert len(breaker._outcomes) == len(window)
        assert breaker.recent._window.slow == sum(each.slow for each in window)
        running = [each for each in self.attempts if each.outcome is None]
        assert len(breaker.recent.running) == (0 if self.policy.slow_after is None else len(running))
        assert len(breaker.recent._counted) <= Recent.MOST_SLOW
        assert breaker.retry_in(self.now) >= 0.0
        assert sum(breaker.counts.values()) == self.changes
        if self.state is not BreakerState.OPEN or self.policy.shadow:
            assert breaker.would_allow(self.now)
        elif self.by_hand:
            assert not breaker.would_allow(self.now + 1e9)
            assert breaker.closed_for(self.now) == breaker.retry_in(self.now) == 0.0
        else:
            assert breaker.would_allow(self.now) is (breaker.retry_in(self.now) == 0.0)
            assert breaker.would_allow(self.now + breaker.retry_in(self.now) + 1e-9)


@pytest.mark.timeout(0 if PROFILE == "long" else 300)
def test_the_breaker_is_never_wedged_and_does_what_its_policy_says() -> None:
    run_state_machine_as_test(BreakerMachine, settings=chosen_settings(steps=24))
