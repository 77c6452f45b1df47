"""Quantiles of attempt times: right within a bucket, patient about what was cut off, and forgetful."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.calls.latency import EDGES, LONGEST, PANE, REFRESH, LatencyModel, bucket_of, samples_for

WIDTH = 2 ** (1 / 8) * 1.000001
TIMES = st.floats(min_value=0.0002, max_value=150.0)


def _model(times: list[float], **fields: float) -> LatencyModel:
    model = LatencyModel(**fields)  # type: ignore[arg-type]
    for seconds in times:
        model.add(0.0, seconds)
    return model


@given(TIMES)
def test_a_time_lies_in_its_bucket(seconds: float) -> None:
    index = bucket_of(seconds)
    assert seconds <= EDGES[index] * 1.000001
    assert EDGES[index] <= seconds * WIDTH


@pytest.mark.parametrize(("seconds", "edge"), [(0.0, 1e-4), (1e-4, 1e-4), (-1.0, 1e-4), (1e6, math.inf)])
def test_the_ends_of_the_range(seconds: float, edge: float) -> None:
    assert EDGES[bucket_of(seconds)] == edge


@given(st.lists(TIMES, min_size=100, max_size=300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_quantile_is_at_most_a_bucket_above_the_true_one(times: list[float], q: float) -> None:
    true = sorted(times)[math.ceil(q * len(times) - 1e-9) - 1]
    value = _model(times).quantile(0.0, q)
    assert value is not None
    assert true <= value * 1.000001
    assert value <= true * WIDTH


@pytest.mark.parametrize(("q", "needed"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100), (0.999, 1000)])
def test_no_quantile_from_too_few_times(q: float, needed: int) -> None:
    assert samples_for(q) == needed
    assert _model([0.1] * (needed - 1)).quantile(0.0, q) is None
    assert _model([0.1] * needed).quantile(0.0, q) is not None


@given(
    st.lists(st.floats(min_value=0.001, max_value=1.9), min_size=150, max_size=250),
    st.floats(min_value=0.001, max_value=1.9),
    st.integers(min_value=0, max_value=20),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_cutting_the_tail_off_never_lowers_a_quantile(
    times: list[float], cut: float, hung: int, q: float
) -> None:
    whole, seen = LatencyModel(2.0), LatencyModel(2.0)
    for seconds in times:
        whole.add(0.0, seconds)
        if seconds > cut:
            seen.censored(0.0, cut)
        else:
            seen.add(0.0, seconds)
    for _ in range(hung):
        whole.censored(0.0, 2.0)
        seen.censored(0.0, min(cut, 2.0))
    value, true = seen.quantile(0.0, q), whole.quantile(0.0, q)
    if value is not None and true is not None:
        # What was cut off within a bucket may have ended in the same bucket.
        assert value >= min(true, cut / WIDTH) / 1.000001
        assert value * WIDTH >= true or value * WIDTH >= cut


def test_a_cut_attempt_is_not_a_fast_one() -> None:
    """Half of them are cut off at 10 ms and take 1 s in truth."""
    model = _model([1.0] * 200)
    for _ in range(200):
        model.censored(0.0, 0.01)
    value = model.quantile(0.0, 0.5)
    assert value is not None
    assert value > 0.9


def test_a_quantile_beyond_what_is_seen_is_unknown() -> None:
    model = _model([0.1] * 1000, horizon=2.0)
    for _ in range(11):
        model.censored(0.0, 0.5)
    assert model.quantile(0.0, 0.95) is not None
    assert model.quantile(0.0, 0.99) is None


def test_attempts_that_hang_are_left_out() -> None:
    model = _model([0.1] * 1000, horizon=2.0)
    for _ in range(1000):
        model.censored(0.0, 2.0)
    value = model.quantile(0.0, 0.99)
    assert value is not None
    assert 0.1 <= value <= 0.1 * WIDTH


@pytest.mark.parametrize(("watched", "known"), [(0, False), (10, False), (19, True), (100, True)])
def test_attempts_that_were_cut_off_are_judged_by_those_that_were_watched(watched: int, known: bool) -> None:
    """200 were cut off; if one in 20 of them had ended, 10 of 1,010 would be slow."""
    model = _model([0.1] * 1010, horizon=2.0)
    for _ in range(200):
        model.censored(0.0, 0.5)
    for _ in range(watched):
        model.censored(0.0, 2.0)
    assert (model.quantile(0.0, 0.99) is not None) is known


def test_watched_attempts_that_end_late_raise_the_quantile() -> None:
    model = _model([0.1] * 1000 + [1.5] * 10, horizon=2.0)
    for _ in range(200):
        model.censored(0.0, 0.5)
    value = model.quantile(0.0, 0.99)
    assert value is not None
    assert value >= 1.5


def test_it_follows_down_within_two_panes() -> None:
    model = LatencyModel(2.0, pane_samples=100)
    now = 0.0
    for seconds, until in ((1.0, 100.0), (0.1, 100.0 + 2 * PANE + 2 * REFRESH)):
        while now < until:
            model.add(now, seconds)
            now += 0.1
    value = model.quantile(now, 0.99)
    assert value is not None
    assert value <= 0.1 * WIDTH


def test_it_follows_up_as_soon_as_the_share_is_passed() -> None:
    model = _model([0.1] * 1000, horizon=2.0)
    for _ in range(9):
        model.add(1.0, 0.9)
    low = model.quantile(1.0, 0.99)
    for _ in range(9):
        model.add(1.0, 0.9)
    high = model.quantile(1.0 + REFRESH, 0.99)
    assert low is not None
    assert high is not None
    assert low < 0.2
    assert high >= 0.9


def test_a_thin_pane_waits_for_more_but_not_for_ever() -> None:
    model = _model([0.1] * 50)
    assert model.samples(LONGEST - 1.0) == 50
    assert model.samples(LONGEST) == 50  # the pane before
    model.add(LONGEST, 0.1)
    assert model.samples(2 * LONGEST) == 1


def test_nothing_is_known_after_a_long_silence() -> None:
    model = _model([0.1] * 5000)
    assert model.samples(2 * LONGEST) == 0
    assert model.quantile(2 * LONGEST, 0.5) is None


def test_a_quantile_is_kept_for_a_moment() -> None:
    model = _model([0.1] * 100)
    first = model.quantile(0.0, 0.9)
    for _ in range(100):
        model.add(0.0, 1.0)
    assert model.quantile(REFRESH / 2, 0.9) == first
    assert model.quantile(REFRESH, 0.9) != first


def test_many_different_quantiles_are_not_all_kept() -> None:
    model = _model([0.1] * 100)
    for step in range(100):
        model.quantile(0.0, 0.5 + step / 1000)
    assert len(model._kept) <= 4


def test_independent_cuts_leave_the_median_where_it_is() -> None:
    """Callers with budgets of all sizes cut off four in ten."""
    random = Random(5)
    model = LatencyModel(2.0)
    for _ in range(20_000):
        seconds, budget = random.uniform(0.1, 1.0), random.uniform(0.1, 1.8)
        if budget < seconds:
            model.censored(0.0, budget)
        else:
            model.add(0.0, seconds)
    value = model.quantile(0.0, 0.5)
    assert value is not None
    assert 0.5 <= value <= 0.55 * WIDTH * 1.03
