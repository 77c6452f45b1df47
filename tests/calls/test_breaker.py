"""The breaker: when it opens, how it tries again, and what cannot wedge it."""

from __future__ import annotations

import datetime
import time
from random import Random
from typing import Any

import pytest

from resilient_mw.calls.breaker import Breaker, BreakerState, Permit
from resilient_mw.calls.breaker_trials import Trials
from resilient_mw.calls.config import BreakerPolicy
from tests.calls.desk import Luck

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def _breaker(luck: float = 0.0, **policy: Any) -> Breaker:
    fields = {"window": 10, "minimum_calls": 4, "open_for": 5.0, "open_jitter": 0.0, "trials": 3}
    return Breaker(BreakerPolicy(**{**fields, **policy}), Luck(luck))


def _permit(breaker: Breaker, now: float) -> Permit:
    permit = breaker.ask(now)
    assert permit is not None, "it was expected to be let through"
    return permit


def _tell(breaker: Breaker, outcomes: str, now: float = 0.0) -> None:
    """Make attempts one after the other: F failed, S succeeded, N neutral."""
    for letter in outcomes:
        breaker.record(now, _permit(breaker, now), failed={"F": True, "S": False, "N": None}[letter])


def _half_open(now: float = 0.0, **policy: Any) -> Breaker:
    """Return a breaker whose open time has just passed at `now + 5`."""
    breaker = _breaker(**policy)
    _tell(breaker, "FFFF", now)
    assert breaker.state is OPEN
    return breaker


# -- closed


def test_it_opens_at_the_failure_that_completes_the_ratio() -> None:
    breaker = _breaker()
    _tell(breaker, "SSFF")
    assert breaker.state is OPEN


def test_it_waits_for_the_minimum_of_outcomes() -> None:
    breaker = _breaker()
    _tell(breaker, "FFF")
    assert breaker.state is CLOSED
    _tell(breaker, "F")
    assert breaker.state is OPEN


def test_a_success_does_not_open_it_even_if_it_completes_the_minimum() -> None:
    breaker = _breaker()
    _tell(breaker, "FFFS")
    assert breaker.state is CLOSED
    _tell(breaker, "F")
    assert breaker.state is OPEN


def test_only_the_last_outcomes_count() -> None:
    breaker = _breaker()
    _tell(breaker, "FF" + "S" * 10 + "FFFF")
    assert breaker.state is CLOSED, "the first failures have left the window"
    _tell(breaker, "F")
    assert breaker.state is OPEN


def test_neutral_outcomes_are_not_counted_at_all() -> None:
    breaker = _breaker()
    _tell(breaker, "FFF" + "N" * 100)
    assert breaker.state is CLOSED
    _tell(breaker, "F")
    assert breaker.state is OPEN


def test_the_ratio_is_reached_not_passed() -> None:
    breaker = _breaker(failure_ratio=1.0)
    _tell(breaker, "SFFF" + "F" * 6)
    assert breaker.state is CLOSED
    _tell(breaker, "F")
    assert breaker.state is OPEN


@pytest.mark.parametrize("failures", range(1, 21))
def test_a_ratio_means_what_it_says_whatever_a_float_makes_of_it(failures: int) -> None:
    breaker = _breaker(window=20, minimum_calls=20, failure_ratio=failures / 20)
    _tell(breaker, "S" * (20 - failures) + "F" * (failures - 1))
    assert breaker.state is CLOSED
    _tell(breaker, "F")
    assert breaker.state is OPEN


# -- open


def test_it_refuses_until_the_open_time_has_passed_and_says_how_long() -> None:
    breaker = _half_open()
    assert breaker.ask(4.999) is None
    assert not breaker.would_allow(4.999)
    assert breaker.retry_in(2.0) == 3.0
    assert breaker.would_allow(5.0)
    assert breaker.ask(5.0) is not None
    assert breaker.state is HALF_OPEN
    assert breaker.retry_in(5.0) == 0.0


def test_the_jitter_only_lengthens_the_open_time() -> None:
    for luck, opens_at in ((0.0, 5.0), (0.5, 5.5), (1.0, 6.0)):
        breaker = _breaker(luck, open_jitter=0.2)
        _tell(breaker, "FFFF")
        assert breaker.retry_in(0.0) == pytest.approx(opens_at)


def test_b67_processes_do_not_come_back_together() -> None:
    times = set()
    for seed in range(50):
        breaker = Breaker(BreakerPolicy(minimum_calls=1, open_for=5.0), Random(seed))
        _tell(breaker, "F")
        times.add(breaker.retry_in(0.0))
    assert len(times) == 50
    assert min(times) >= 5.0
    assert max(times) <= 5.5


def test_late_results_of_the_closed_state_change_nothing() -> None:
    breaker = _breaker()
    old = [_permit(breaker, 0.0) for _ in range(30)]
    _tell(breaker, "FFFF")
    for permit in old[:10]:
        breaker.record(1.0, permit, failed=False)
    assert breaker.state is OPEN
    trials = [_permit(breaker, 5.0) for _ in range(3)]
    for permit in old[10:20]:
        breaker.record(5.0, permit, failed=True)
    assert breaker.state is HALF_OPEN
    for permit in trials:
        breaker.record(5.0, permit, failed=False)
    assert breaker.state is CLOSED
    for permit in old[20:]:
        breaker.record(6.0, permit, failed=True)
    assert breaker.state is CLOSED


# -- half-open


def test_b67_a_limited_number_of_trials_at_once() -> None:
    breaker = _half_open()
    permits = [permit for _ in range(200) if (permit := breaker.ask(5.0)) is not None]
    assert len(permits) == 3


def test_all_trials_succeed_then_it_closes_with_an_empty_window() -> None:
    breaker = _half_open()
    _tell(breaker, "SSS", 5.0)
    assert breaker.state is CLOSED
    _tell(breaker, "FFF", 5.0)
    assert breaker.state is CLOSED
    _tell(breaker, "F", 5.0)
    assert breaker.state is OPEN


def test_successes_count_towards_the_trials_of_one_half_open_period() -> None:
    breaker = _half_open()
    _tell(breaker, "SS", 5.0)
    last = _permit(breaker, 5.0)
    assert breaker.ask(5.0) is None, "two passed and one runs: a fourth could not matter"
    breaker.record(6.0, last, failed=False)
    assert breaker.state is CLOSED


def test_one_failed_trial_opens_it_again_for_a_whole_open_time() -> None:
    breaker = _half_open()
    first, second = _permit(breaker, 5.0), _permit(breaker, 5.0)
    breaker.record(7.0, first, failed=True)
    assert breaker.state is OPEN
    assert breaker.retry_in(7.0) == 5.0
    breaker.record(7.0, second, failed=False)
    assert breaker.state is OPEN


@pytest.mark.parametrize("rounds", [1, 50])
def test_b65_a_trial_without_a_verdict_gives_its_place_back(rounds: int) -> None:
    breaker = _half_open()
    for _ in range(rounds):
        permits = [_permit(breaker, 5.0) for _ in range(3)]
        assert breaker.ask(5.0) is None
        for permit in permits:
            breaker.record(5.0, permit, failed=None)
    assert breaker.state is HALF_OPEN
    _tell(breaker, "SSS", 5.0)
    assert breaker.state is CLOSED


def test_b65_a_lost_trial_gives_its_place_back_when_its_lease_runs_out() -> None:
    breaker = _half_open(trial_lease=30.0)
    for _ in range(3):
        _permit(breaker, 5.0)
    assert breaker.ask(34.999) is None
    _tell(breaker, "SSS", 35.0)
    assert breaker.state is CLOSED


def test_no_trial_is_lost_before_it_must_have_ended() -> None:
    breaker = Breaker(
        BreakerPolicy(minimum_calls=1, open_jitter=0.0, trials=1, trial_lease=1.0), Luck(), longest=60.0
    )
    _tell(breaker, "F")
    _permit(breaker, 5.0)
    assert breaker.ask(64.9) is None
    assert breaker.ask(65.0) is not None


def test_what_the_holder_of_a_lost_trial_saw_is_still_true() -> None:
    for failed, state in ((True, OPEN), (False, CLOSED)):
        breaker = _half_open(trials=1, trial_lease=1.0)
        lost = _permit(breaker, 5.0)
        _permit(breaker, 6.0)
        breaker.record(6.5, lost, failed=failed)
        assert breaker.state is state


def test_dependencies_slower_than_the_lease_still_close_it() -> None:
    breaker = _half_open(trials=2, trial_lease=1.0)
    early = [_permit(breaker, 5.0 + number) for number in range(6)]
    breaker.record(12.0, early[0], failed=False)
    breaker.record(12.0, early[0], failed=False)
    assert breaker.state is HALF_OPEN, "one trial that is told of twice is one trial"
    breaker.record(12.0, early[1], failed=False)
    assert breaker.state is CLOSED


def test_lost_trials_do_not_pile_up() -> None:
    breaker = _half_open(trials=2, trial_lease=1.0)
    for second in range(1000):
        while breaker.ask(5.0 + second) is not None:
            pass
    assert len(breaker._trials) <= 2 * Trials.MOST_LOST


# -- what it tells


def test_its_log_has_times_and_is_bounded() -> None:
    breaker = _half_open()
    _tell(breaker, "F", 5.0)
    _tell(breaker, "SSS", 10.0)
    assert [(each.at, each.before, each.after) for each in breaker.transitions] == [
        (0.0, CLOSED, OPEN),
        (5.0, OPEN, HALF_OPEN),
        (5.0, HALF_OPEN, OPEN),
        (10.0, OPEN, HALF_OPEN),
        (10.0, HALF_OPEN, CLOSED),
    ]
    assert breaker.counts == {
        ("closed", "open"): 1,
        ("open", "half_open"): 2,
        ("half_open", "open"): 1,
        ("half_open", "closed"): 1,
    }
    for round_ in range(100):
        _tell(breaker, "FFFF", 100.0 * round_ + 20)
        _tell(breaker, "SSS", 100.0 * round_ + 40)
    assert len(breaker.transitions) == Breaker.KEPT
    assert breaker.counts["closed", "open"] == 101


@pytest.mark.parametrize("day", [86_400.0, -86_400.0])
def test_b73_a_jump_of_the_wall_clock_changes_nothing(day: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Jumped(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Jumped:
            return cls.fromtimestamp(wall() + day, tz)

    wall = time.time
    breaker = _half_open()
    monkeypatch.setattr(time, "time", lambda: wall() + day)
    monkeypatch.setattr(datetime, "datetime", Jumped)
    assert breaker.ask(4.999) is None
    assert breaker.retry_in(4.0) == 1.0
    _tell(breaker, "SS", 5.0)
    assert breaker.state is HALF_OPEN
    _tell(breaker, "S", 5.0)
    assert breaker.state is CLOSED
