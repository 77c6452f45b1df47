"""The adaptive limit against a dependency with a queue: near the knee, after a step, without drift, with little traffic."""

from __future__ import annotations

from random import Random

import pytest

from resilient_mw.calls.adaptive import SAMPLES, AdaptiveLimit, AdaptivePolicy
from tests.calls.adaptive_plant import Plant

SERVICE = 0.1


def even(now: float, rng: Random) -> float:
    return SERVICE * rng.uniform(0.9, 1.1)


def spread(now: float, rng: Random) -> float:
    return rng.expovariate(1 / SERVICE)


def mixed(now: float, rng: Random) -> float:
    """Two routes, of which one in twenty takes twenty times as long; 0.195 s on average."""
    return rng.expovariate(1 / SERVICE) * (20 if rng.random() < 0.05 else 1)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"floor": 1}, "floor=1"), ({"initial": 3}, "initial=3"), ({"floor": 9, "initial": 8}, "initial=8")],
)
def test_bad_values_are_named(fields: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=f"AdaptivePolicy.{named}"):
        AdaptivePolicy(**fields)


@pytest.mark.parametrize("places", [10, 40])
@pytest.mark.parametrize("service", [even, spread])
def test_the_limit_comes_to_rest_near_the_knee(service, places: int) -> None:  # type: ignore[no-untyped-def]
    """At three times the load: nine tenths of the capacity, and at most twice the healthy latency."""
    plant = Plant(lambda now: places, service, lambda now: 3 * places / SERVICE, seed=places).run(240)
    assert plant.goodput(60, 240) >= 0.9 * places / SERVICE
    assert plant.latency(60, 240) <= 2 * SERVICE
    low, high = plant.range_of(60, 240)
    assert 0.7 * places <= low <= high <= 2.5 * places


def test_a_mix_of_routes_is_not_taken_for_a_queue() -> None:
    plant = Plant(lambda now: 10, mixed, lambda now: 150.0, seed=3).run(400)
    assert plant.goodput(100, 400) >= 0.88 * 10 / 0.195
    assert plant.latency(100, 400) <= 2 * 0.195


def test_it_follows_a_capacity_that_halves_and_comes_back() -> None:
    plant = Plant(lambda now: 10 if 150 <= now < 300 else 20, even, lambda now: 600.0, seed=3).run(420)
    for start, end, places in ((60, 150, 20), (200, 300, 10), (340, 420, 20)):
        assert plant.goodput(start, end) >= 0.9 * places / SERVICE
        assert plant.latency(start, end) <= 2 * SERVICE


def test_it_does_not_drift_in_an_hour_of_slight_overload() -> None:
    """At 1.25 times the load Gradient2 doubles its limit within minutes, as its baseline follows the overload."""
    plant = Plant(lambda now: 10, spread, lambda now: 125.0, seed=5).run(3600)
    hours = [(start, start + 600) for start in range(0, 3600, 600)]
    for start, end in hours:
        assert plant.goodput(start, end) >= 0.86 * 10 / SERVICE
        assert plant.latency(start, end) <= 1.5 * SERVICE
        assert plant.range_of(start, end)[1] <= 40


def test_a_start_in_the_middle_of_an_overload_teaches_nothing_wrong() -> None:
    """Every answer is late at first: the losses cut the limit, and it comes to rest where it does after a calm start."""
    policy = AdaptivePolicy(initial=150)
    plant = Plant(lambda now: 10, spread, lambda now: 300.0, timeout=0.5, policy=policy, seed=5).run(200)
    assert plant.limiter.cuts > 0
    assert plant.goodput(60, 200) >= 0.88 * 10 / SERVICE
    assert plant.latency(60, 200) <= 2 * SERVICE


def test_a_dependency_that_sheds_is_not_asked_for_more() -> None:
    plant = Plant(lambda now: 10, spread, lambda now: 300.0, queue=5, seed=3).run(200)
    assert plant.goodput(60, 200) >= 0.88 * 10 / SERVICE
    assert plant.range_of(60, 200)[1] <= 25


def test_little_traffic_changes_nothing_and_is_not_limited() -> None:
    plant = Plant(lambda now: 10, spread, lambda now: 3.0, seed=3).run(1200)
    assert plant.limits == [(0.0, 20)]
    assert plant.refused == 0


def test_a_dependency_that_is_slow_and_not_full_is_not_limited_further() -> None:
    """Six times as slow, and no queue: who compares with a baseline would shrink, and lose most of the traffic."""

    def slow(now: float, rng: Random) -> float:
        return rng.expovariate(1 / (0.1 if now < 60 else 0.6))

    plant = Plant(lambda now: 100, slow, lambda now: 60.0, seed=3).run(300)
    assert plant.range_of(60, 300)[0] >= 18
    assert plant.goodput(200, 300) >= 0.9 * 60


def test_floor_and_cap_always_hold() -> None:
    growing = Plant(lambda now: 1000, even, lambda now: 3000.0, cap=30).run(60)
    assert growing.range_of(0, 60)[1] == 30
    falling = Plant(lambda now: 1, even, lambda now: 50.0, timeout=0.01, policy=AdaptivePolicy(floor=3)).run(
        120
    )
    assert falling.range_of(0, 120)[0] == 3


def test_what_says_nothing_teaches_nothing() -> None:
    one = AdaptiveLimit(AdaptivePolicy(), 100)
    for step in range(20 * SAMPLES):
        one.begun(one.limit)
        one.ended(step * 0.01, step * 0.01, lost=None)
    assert (one.turns, one.cuts, one.limit) == (0, 0, 20)


def test_only_what_began_under_a_limit_speaks_of_it() -> None:
    """Answers of attempts that began before the limit changed are still those of the one before."""
    one = AdaptiveLimit(AdaptivePolicy(), 100)
    for step in range(SAMPLES):
        one.begun(one.limit)
        one.ended(1.0 + step * 0.001, 0.9, lost=False)
    lower = one.limit
    assert lower == 15
    for _ in range(10 * SAMPLES):
        one.begun(one.limit)
        one.ended(1.5, 1.0, lost=False)
    assert one.limit == lower
    assert one.turns == 0
