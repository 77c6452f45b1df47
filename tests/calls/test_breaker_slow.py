"""The breaker's other triggers: slow attempts while they run, failures in a row, time; how it opens longer and ramps up."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_mw.calls.breaker import SHADOW, Breaker, BreakerState
from resilient_mw.calls.breaker_recent import Recent
from resilient_mw.calls.config import BreakerPolicy
from tests.calls.desk import Luck
from tests.calls.test_breaker import CLOSED, HALF_OPEN, OPEN, _permit, _tell


def _breaker(**policy: Any) -> Breaker:
    fields = {"window": 10, "minimum_calls": 4, "open_for": 5.0, "open_jitter": 0.0, "trials": 2}
    return Breaker(BreakerPolicy(**{**fields, **policy}), Luck())


# -- slow attempts


def test_a_hang_is_seen_before_it_ends() -> None:
    breaker = _breaker(slow_after=1.0)
    for _ in range(4):
        _permit(breaker, 0.0)
    assert breaker.ask(0.999) is not None
    assert breaker.ask(1.0) is None
    assert breaker.state is OPEN
    assert breaker.recent.slow == 4


def test_a_slow_attempt_counts_once_and_its_failure_is_added_to_the_same_outcome() -> None:
    breaker = _breaker(slow_after=1.0, slow_ratio=1.0, failure_ratio=1.0)
    permits = [_permit(breaker, 0.0) for _ in range(3)]
    breaker.notice(1.0)
    for permit in permits:
        breaker.record(2.0, permit, failed=True)
        breaker.record(2.0, permit, failed=True)
    assert breaker._outcomes == [True, True, True]
    assert breaker.state is CLOSED
    _tell(breaker, "F", 2.0)
    assert breaker.state is OPEN


def test_a_fast_success_is_not_slow() -> None:
    breaker = _breaker(slow_after=1.0)
    for number in range(100):
        permit = _permit(breaker, number * 1.0)
        breaker.record(number + 0.999, permit, failed=False)
    assert breaker.recent.slow == 0


def test_a_trial_that_hangs_opens_it_again() -> None:
    breaker = _breaker(slow_after=1.0)
    _tell(breaker, "FFFF")
    _permit(breaker, 5.0)
    assert breaker.ask(5.5) is not None
    assert breaker.ask(6.0) is None
    assert breaker.state is OPEN
    assert breaker.retry_in(6.0) == 5.0


def test_attempts_that_never_end_are_forgotten() -> None:
    breaker = _breaker(slow_after=1.0, slow_ratio=1.0, window=6000, minimum_calls=6000)
    for number in range(5000):
        _permit(breaker, number * 0.01)
    breaker.notice(100.0)
    assert not breaker.recent.running
    assert breaker.state is CLOSED
    assert len(breaker.recent._counted) <= Recent.MOST_SLOW


def test_slow_attempts_leave_the_window_like_others() -> None:
    breaker = _breaker(slow_after=1.0, slow_ratio=0.75, window=4)
    for now in (0.0, 2.0):
        breaker.record(now + 1.0, _permit(breaker, now), failed=False)
    _tell(breaker, "S" * 10, 4.0)
    _permit(breaker, 4.0)
    breaker.notice(5.0)
    assert breaker.state is CLOSED
    assert breaker.recent.slow == 3


def test_late_results_of_an_older_period_change_nothing_where_attempts_have_numbers() -> None:
    breaker = _breaker(slow_after=60.0)
    late = _permit(breaker, 0.0)
    _tell(breaker, "FFFF")
    _tell(breaker, "SS", 5.0)
    assert breaker.state is CLOSED
    breaker.record(6.0, late, failed=True)
    assert breaker._outcomes == []


# -- failures in a row, and the window of time


def test_failures_in_a_row_open_it_before_the_minimum() -> None:
    breaker = _breaker(consecutive_failures=3, minimum_calls=10)
    _tell(breaker, "FFSFF")
    assert breaker.state is CLOSED, "a success in between"
    breaker = _breaker(consecutive_failures=3, minimum_calls=10)
    _tell(breaker, "FFNF")
    assert breaker.state is OPEN


def test_a_success_of_the_short_way_ends_a_row() -> None:
    breaker = _breaker(consecutive_failures=2, minimum_calls=10)
    _tell(breaker, "F")
    breaker.recent.succeeded()
    _tell(breaker, "F")
    assert breaker.state is CLOSED
    assert breaker._outcomes == [True, False, True]


def test_outcomes_leave_a_window_of_time_by_their_age() -> None:
    breaker = _breaker(window_seconds=10.0)
    _tell(breaker, "FFF", 0.5)
    _tell(breaker, "S", 9.5)
    _tell(breaker, "F", 10.5)
    assert breaker.state is CLOSED, "the first three are too old"
    _tell(breaker, "F", 11.5)
    assert breaker.state is CLOSED
    _tell(breaker, "F", 11.9)
    assert breaker.state is OPEN


def test_a_long_silence_empties_a_window_of_time() -> None:
    breaker = _breaker(window_seconds=10.0)
    _tell(breaker, "FFF", 0.5)
    _tell(breaker, "F", 10.5)
    assert breaker._outcomes == [True]


def test_a_window_of_time_needs_no_number_of_outcomes() -> None:
    BreakerPolicy(window=1, window_seconds=10.0, minimum_calls=100)
    with pytest.raises(ValueError, match="minimum_calls"):
        BreakerPolicy(window=1, minimum_calls=100)


# -- opening and closing


def test_the_open_time_grows_to_its_cap_and_begins_anew_after_a_time_of_health() -> None:
    breaker = _breaker(open_factor=2.0, open_cap=15.0)
    now, seen = 0.0, []
    _tell(breaker, "FFFF", now)
    for _ in range(4):
        seen.append(breaker.retry_in(now))
        now += seen[-1]
        _tell(breaker, "F", now)
    assert seen == [5.0, 10.0, 15.0, 15.0]
    now += 15.0
    _tell(breaker, "SS", now)
    assert breaker.state is CLOSED
    now += 14.9
    _tell(breaker, "FFFF", now)
    assert breaker.retry_in(now) == 15.0, "it was not well for long enough"
    now += 15.0
    _tell(breaker, "SS", now)
    now += 15.0
    _tell(breaker, "FFFF", now)
    assert breaker.retry_in(now) == 5.0


def test_traffic_comes_back_bit_by_bit() -> None:
    breaker = _breaker(ramp=10.0)
    assert _passing(breaker, 0.0) == 100, "nothing has closed yet"
    _tell(breaker, "FFFFF")
    assert breaker.state is OPEN
    _tell(breaker, "SS", 5.0)
    shares = [_passing(breaker, at) for at in (5.0, 7.5, 10.0, 14.0, 15.0)]
    assert shares == [pytest.approx(share, abs=1) for share in (10, 25, 50, 90, 100)]
    assert breaker.ramped == pytest.approx(225, abs=4)
    assert breaker.closed_for(6.0) is None


def _passing(breaker: Breaker, now: float) -> int:
    passed = 0
    for _ in range(100):
        permit = breaker.ask(now)
        if permit is not None:
            passed += 1
            breaker.record(now, permit, failed=False)
    return passed


# -- by hand, and in the shadow


def test_opened_by_hand_it_stays_open_until_somebody_changes_that() -> None:
    breaker = _breaker()
    breaker.open(0.0)
    assert breaker.ask(1e6) is None
    assert not breaker.would_allow(1e6)
    assert breaker.retry_in(1e6) == 0.0
    assert breaker.closed_for(1e6) == 0.0
    breaker.reset(1e6)
    assert breaker.ask(1e6) is not None
    _tell(breaker, "FFFF", 1e6)
    assert breaker.state is OPEN
    assert not breaker.held


def test_closed_by_hand_nothing_opens_it() -> None:
    breaker = _breaker(slow_after=1.0, consecutive_failures=2)
    breaker.close(0.0)
    _tell(breaker, "F" * 50)
    for _ in range(10):
        _permit(breaker, 0.0)
    breaker.notice(5.0)
    assert breaker.state is CLOSED
    breaker.reset(5.0)
    _tell(breaker, "FF", 5.0)
    assert breaker.state is OPEN


def test_the_shadow_refuses_nothing_and_counts_what_it_would_have_refused() -> None:
    breaker = _breaker(shadow=True)
    _tell(breaker, "FFFF")
    assert breaker.state is OPEN
    permits = [breaker.ask(1.0) for _ in range(7)]
    assert permits == [SHADOW] * 7
    assert breaker.would_refuse == 7
    assert breaker.would_allow(1.0)
    assert breaker.closed_for(1.0) is None
    assert breaker.retry_in(1.0) == 0.0
    for permit in permits:
        breaker.record(2.0, SHADOW if permit is None else permit, failed=False)
    _tell(breaker, "S", 5.0)
    last = _permit(breaker, 5.0)
    assert breaker.state is HALF_OPEN
    assert breaker.ask(5.0) == SHADOW
    assert breaker.closed_for(5.0) is None
    breaker.record(5.0, last, failed=False)
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_seconds", 0), ("slow_after", 0), ("slow_ratio", 0), ("consecutive_failures", 0), ("open_factor", 0.5),
        ("ramp", -1), ("exclude", ["text"]), ("exclude", "text"), ("shadow", 1), ("listeners", [1]),
    ],
)  # fmt: skip
def test_bad_values_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"BreakerPolicy.{name}="):
        BreakerPolicy(**{name: value})  # type: ignore[arg-type]


def test_a_cap_below_the_open_time_is_refused_where_it_grows() -> None:
    with pytest.raises(ValueError, match="open_cap"):
        BreakerPolicy(open_for=100.0, open_factor=2.0)
    BreakerPolicy(open_for=100.0)
