"""Streams of arrivals: as many as the rate says, when it says."""

from __future__ import annotations

from itertools import islice, pairwise, takewhile
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.simulation import Arrivals, Bursts, Even, Poisson, Rate, Script


def until(end: float, arrivals: Arrivals, seed: int = 1) -> list[float]:
    return list(takewhile(lambda instant: instant < end, arrivals.instants(Random(seed))))


def between(instants: list[float], start: float, end: float) -> int:
    return sum(start <= instant < end for instant in instants)


def test_even_arrivals_come_at_even_distances() -> None:
    assert until(1.01, Even(4)) == [0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals_have_the_rate_and_the_spread_of_independent_callers() -> None:
    instants = until(2000, Poisson(50))
    assert len(instants) == pytest.approx(100_000, rel=0.02)
    gaps = [after - before for before, after in pairwise(instants)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    # The gaps of a Poisson process are exponential: their deviation equals their mean.
    assert variance**0.5 == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize("kind", [Poisson, Even])
def test_a_step_changes_the_rate_at_its_instant(kind: type[Poisson | Even]) -> None:
    instants = until(30, kind(Rate.steps((0, 100), (10, 1000), (20, 0))))
    assert between(instants, 0, 10) == pytest.approx(1000, rel=0.15)
    assert between(instants, 10, 20) == pytest.approx(10_000, rel=0.05)
    assert between(instants, 20.01, 30) == 0


@pytest.mark.parametrize("kind", [Poisson, Even])
def test_a_ramp_changes_it_linearly(kind: type[Poisson | Even]) -> None:
    instants = until(40, kind(Rate((0, 0), (20, 1000), (40, 0))))
    assert between(instants, 0, 10) == pytest.approx(2500, rel=0.1)
    assert between(instants, 10, 20) == pytest.approx(7500, rel=0.05)
    assert between(instants, 20, 30) == pytest.approx(7500, rel=0.05)
    assert between(instants, 30, 40) == pytest.approx(2500, rel=0.1)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), min_size=1, max_size=6),
    st.floats(0, 50),
)
def test_even_arrivals_are_the_integral_of_the_rate(steps: list[tuple[float, float]], first: float) -> None:
    points, at = [(0.0, first)], 0.0
    for gap, rate in steps:
        at += gap
        points.append((at, rate))
    expected = sum((after[0] - before[0]) * (before[1] + after[1]) / 2 for before, after in pairwise(points))
    instants = list(
        islice(takewhile(lambda instant: instant <= at, Even(Rate(*points)).instants(Random(1))), 2000)
    )
    assert instants == sorted(instants)
    assert len(instants) == pytest.approx(expected, abs=1 + 1e-6 * expected)


def test_a_rate_that_falls_to_nothing_ends_the_stream() -> None:
    assert len(list(Even(Rate.steps((0, 10), (2, 0))).instants(Random(1)))) == pytest.approx(20, abs=1)
    assert list(Even(0).instants(Random(1))) == []


def test_bursts_come_again_and_again() -> None:
    instants = until(21, Bursts(size=100, spread=0.05, every=5, first=1))
    assert len(instants) == 400
    for start in (1, 6, 11, 16):
        assert between(instants, start, start + 0.05) == 100
    assert instants == sorted(instants)


def test_a_script_is_replayed() -> None:
    assert until(10, Script((0.5, 0.5, 3.0))) == [0.5, 0.5, 3.0]


def test_a_seed_gives_the_same_stream() -> None:
    assert until(5, Poisson(100), seed=3) == until(5, Poisson(100), seed=3)
    assert until(5, Poisson(100), seed=3) != until(5, Poisson(100), seed=4)


@pytest.mark.parametrize(
    "points", [(), ((1, 5),), ((0, 5), (2, 5), (1, 5)), ((0, -1),), ((0, float("nan")),)]
)
def test_wrong_rates_are_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="Rate"):
        Rate(*points)


def test_other_wrong_arrivals_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Bursts\.size=0"):
        Bursts(size=0, every=1)
    with pytest.raises(ValueError, match=r"Bursts\.spread=2"):
        Bursts(size=1, every=1, spread=2)
    with pytest.raises(ValueError, match=r"Script\.at"):
        Script((2.0, 1.0))
