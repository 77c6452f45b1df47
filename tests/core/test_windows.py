"""The running median and the drain rate."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.core.windows import MEDIAN_SAMPLES, DrainRate, RunningMedian

# -- the running median


def _fed(*samples: float) -> RunningMedian:
    median = RunningMedian()
    for sample in samples:
        median.add(sample)
    return median


def test_a_median_is_not_believed_before_ten_samples() -> None:
    assert RunningMedian().value is None
    assert _fed(*[0.1] * (MEDIAN_SAMPLES - 1)).value is None
    assert _fed(*[0.1] * MEDIAN_SAMPLES).value == 0.1


@pytest.mark.parametrize("seed", range(5))
def test_it_comes_close_to_the_median_and_not_to_the_mean(seed: int) -> None:
    random = Random(seed)
    samples = [random.expovariate(1.0) for _ in range(3000)]  # median 0.69, mean 1
    median = RunningMedian()
    seen = []
    for sample in samples:
        median.add(sample)
        seen.append(median.value or 0.0)
    late = seen[500:]
    assert sum(late) / len(late) == pytest.approx(math.log(2), rel=0.15)


def test_one_outlier_moves_it_by_one_step() -> None:
    median = _fed(*[0.1] * 50)
    median.add(1000.0)
    assert median.value == pytest.approx(0.105)
    median.add(0.000001)
    assert median.value == pytest.approx(0.1)


def test_it_follows_a_dependency_that_becomes_slow_and_fast_again() -> None:
    median = _fed(*[0.05] * 100, *[3.0] * 90)
    assert median.value == pytest.approx(3.0)
    for _ in range(90):
        median.add(0.05)
    assert median.value == pytest.approx(0.05)


def test_a_first_sample_out_of_the_ordinary_is_forgotten() -> None:
    for first in (0.0, 100.0):
        assert _fed(first, *[0.1] * 300).value == pytest.approx(0.1, rel=0.05)


@given(st.lists(st.floats(0, 1e6), min_size=MEDIAN_SAMPLES, max_size=60))
def test_it_stays_between_the_smallest_and_the_largest_sample(samples: list[float]) -> None:
    value = _fed(*samples).value
    assert value is not None
    assert max(min(samples), 1e-6) * 0.999999 <= value <= max(*samples, 1e-6)


# -- the drain rate


def _drained(rate: float, releases: int, units: int = 1) -> DrainRate:
    drain = DrainRate()
    drain.began(100.0)
    for step in range(1, releases + 1):
        drain.released(100.0 + step / rate, units)
    return drain


def test_there_is_no_rate_before_the_first_release() -> None:
    drain = DrainRate()
    assert drain.rate(5.0, standing=False) is None
    drain.began(5.0)
    assert drain.rate(50.0, standing=True) is None


@pytest.mark.parametrize("rate", [0.1, 2.0, 200.0])
@pytest.mark.parametrize("releases", [1, 5, 500])
def test_a_steady_stream_has_its_rate_at_any_instant_between_two_releases(rate: float, releases: int) -> None:
    drain = _drained(rate, releases)
    last = 100.0 + releases / rate
    for part in (0.0, 0.3, 0.999):
        assert drain.rate(last + part / rate, standing=True) == pytest.approx(rate, rel=1e-6)


def test_slots_count_and_not_requests() -> None:
    drain = _drained(2.0, 50, units=5)
    assert drain.rate(125.0, standing=False) == pytest.approx(10.0)


def test_a_standstill_lowers_it() -> None:
    drain = _drained(2.0, 40)
    rates = [drain.rate(120.0 + still, standing=True) or 0.0 for still in (0.0, 1.0, 10.0, 100.0, 1000.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.1


def test_time_without_a_backlog_does_not_count() -> None:
    drain = _drained(2.0, 40)
    drain.ended(120.0)
    assert drain.rate(1e6, standing=False) == pytest.approx(2.0)
    drain.began(1e6)
    drain.released(1e6 + 0.5, 1)
    assert drain.rate(1e6 + 0.5, standing=False) == pytest.approx(2.0)


def test_a_backlog_that_nobody_worked_off_counts_when_it_ends() -> None:
    drain = _drained(2.0, 40)
    drain.ended(120.0)
    drain.began(200.0)
    drain.ended(300.0)
    rate = drain.rate(300.0, standing=False)
    assert rate is not None
    assert rate < 0.25
    drain.ended(300.0)
    assert drain.rate(300.0, standing=False) == rate, "ending it twice adds nothing"


def test_it_follows_a_change_within_some_sixty_releases() -> None:
    drain = _drained(2.0, 500)
    for step in range(1, 101):
        drain.released(350.0 + step / 20, 1)
    assert drain.rate(355.0, standing=False) == pytest.approx(20.0, rel=0.5)


def test_releases_at_one_instant_have_no_rate_until_time_passes() -> None:
    drain = DrainRate()
    drain.began(1.0)
    drain.released(1.0, 3)
    assert drain.rate(1.0, standing=True) is None
    assert drain.rate(2.0, standing=True) == pytest.approx(3.0)


@given(
    st.lists(
        st.tuples(st.sampled_from("brse"), st.integers(-10, 1000), st.integers(1, 10)),
        min_size=1,
        max_size=40,
    )
)
def test_it_is_never_negative_whatever_the_order_of_calls(calls: list[tuple[str, int, int]]) -> None:
    """Threads read the clock before they get the lock: instants may go back a little."""
    drain = DrainRate()
    now = 0.0
    for kind, passed, units in calls:
        now += passed / 1000
        if kind == "b":
            drain.began(now)
        elif kind == "r":
            drain.released(now, units)
        elif kind == "e":
            drain.ended(now)
        for standing in (False, True):
            rate = drain.rate(now, standing=standing)
            assert rate is None or 0 < rate < math.inf
