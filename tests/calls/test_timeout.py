"""Measured timeouts: bounds, patience with few samples, and the closed loop with what the timeout itself cuts off."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from resilient_mw.calls.latency import REFRESH, LatencyModel
from resilient_mw.calls.timeout import AdaptiveTimeout, TimeoutPolicy

CAP = 2.0
P50, P99 = 0.03, 0.2
SPREAD = math.log(P99 / P50) / 2.3263
P999 = P50 * math.exp(SPREAD * 3.0902)


def _healthy(random: Random) -> float:
    """Log-normal: p50 30 ms, p99 200 ms, p99.9 373 ms."""
    return P50 * math.exp(SPREAD * random.gauss(0.0, 1.0))


class Loop:
    """A dependency that is called with the timeout that follows from it, in virtual time."""

    def __init__(
        self, takes: Callable[[Random, float], float], policy: TimeoutPolicy, seconds: float
    ) -> None:
        random = Random(11)
        adaptive = AdaptiveTimeout(policy, CAP)
        ends: list[tuple[float, float, bool]] = []
        now = 0.0
        self.timeouts: list[tuple[float, float]] = []
        self.false: list[float] = []
        while now < seconds:
            now += random.expovariate(100.0)
            while ends and ends[0][0] <= now:
                end, took, cut = heapq.heappop(ends)
                (adaptive.model.censored if cut else adaptive.model.add)(end, took)
            timeout, would_take = adaptive.seconds(now), takes(random, now)
            if timeout < would_take <= CAP:
                self.false.append(now)
            heapq.heappush(
                ends, (now + min(timeout, would_take), min(timeout, would_take), would_take > timeout)
            )
            self.timeouts.append((now, timeout))

    def median(self, since: float, until: float = math.inf) -> float:
        """The median of the timeouts in a span."""
        values = sorted(timeout for now, timeout in self.timeouts if since <= now < until)
        return values[len(values) // 2]

    def false_share(self, since: float = 0.0) -> float:
        """The share of attempts that were cut off although they would have ended within the cap."""
        return sum(now >= since for now in self.false) / sum(now >= since for now, _ in self.timeouts)


def test_few_false_timeouts_at_a_healthy_dependency() -> None:
    loop = Loop(lambda random, _: _healthy(random), TimeoutPolicy(), 200.0)
    assert loop.false_share() <= 0.001
    assert P999 <= loop.median(60.0) <= 2.0 * P999


def test_the_accepted_share_is_kept_without_any_factor() -> None:
    """Whoever takes what was cut off for fast ones loses some 5 % in the end."""
    loop = Loop(lambda random, _: _healthy(random), TimeoutPolicy(factor=1.0), 300.0)
    assert 0.0 < loop.false_share() <= 0.0015
    assert loop.median(60.0) >= 0.85 * P999


def test_the_timeout_follows_a_dependency_that_becomes_three_times_slower() -> None:
    loop = Loop(lambda random, now: _healthy(random) * (3.0 if now > 60.0 else 1.0), TimeoutPolicy(), 180.0)
    assert loop.median(30.0, 60.0) <= 2.0 * P999
    assert loop.median(130.0) >= 3.0 * P999
    assert loop.false_share(60.0) <= 0.002


def test_the_timeout_stays_where_a_dependency_hangs_for_a_share_of_calls() -> None:
    def takes(random: Random, now: float) -> float:
        return math.inf if now > 60.0 and random.random() < 0.2 else _healthy(random)

    loop = Loop(takes, TimeoutPolicy(), 240.0)
    assert loop.median(60.0) <= 3.0 * P999
    after = [timeout for now, timeout in loop.timeouts if now > 60.0]
    assert sum(timeout >= CAP for timeout in after) / len(after) <= 0.35
    assert loop.false_share(60.0) <= 0.001


def test_the_timeout_comes_back_down() -> None:
    def takes(random: Random, now: float) -> float:
        return _healthy(random) * (4.0 if 60.0 < now < 70.0 else 1.0)

    loop = Loop(takes, TimeoutPolicy(), 200.0)
    assert loop.median(75.0, 85.0) > 2.5 * P999
    assert loop.median(140.0) <= 2.0 * P999


def _filled(policy: TimeoutPolicy, seconds: float, count: int, fixed: float = CAP) -> AdaptiveTimeout:
    adaptive = AdaptiveTimeout(policy, fixed)
    for _ in range(count):
        adaptive.model.add(0.0, seconds)
    return adaptive


def test_the_cap_counts_until_enough_is_known() -> None:
    policy = TimeoutPolicy(false_timeouts=0.01, minimum_samples=150)
    assert _filled(policy, 0.1, 149).seconds(0.0) == CAP
    assert 0.15 <= _filled(policy, 0.1, 150).seconds(0.0) <= 0.15 * 1.1


def test_floor_and_caps_bound_it() -> None:
    policy = TimeoutPolicy(false_timeouts=0.01, floor=0.05, cap=0.4)
    assert _filled(policy, 0.001, 500).seconds(0.0) == 0.05
    assert _filled(policy, 1.0, 500).seconds(0.0) == 0.4
    assert _filled(policy, 1.0, 500, fixed=0.3).seconds(0.0) == 0.3
    assert AdaptiveTimeout(TimeoutPolicy(), math.inf).seconds(0.0) == math.inf


def test_it_is_looked_at_anew_after_a_moment() -> None:
    adaptive = AdaptiveTimeout(TimeoutPolicy(false_timeouts=0.01), CAP)
    assert adaptive.seconds(0.0) == CAP
    for _ in range(500):
        adaptive.model.add(0.0, 0.1)
    assert adaptive.seconds(REFRESH / 2) == CAP
    assert adaptive.seconds(REFRESH) < 0.2


def test_a_model_can_be_shared() -> None:
    model = LatencyModel(CAP)
    assert AdaptiveTimeout(TimeoutPolicy(), CAP, model).model is model


@pytest.mark.parametrize(
    "fields",
    [
        {"false_timeouts": 0},
        {"false_timeouts": 0.6},
        {"false_timeouts": True},
        {"factor": 0.9},
        {"floor": 0.0},
        {"cap": 0.01},
        {"minimum_samples": 0},
        {"minimum_samples": 10},
        {"minimum_samples": 999},
        {"false_timeouts": 0.01, "minimum_samples": 99},
    ],
)
def test_bad_values_are_named(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"TimeoutPolicy.{list(fields)[-1]}="):
        TimeoutPolicy(**fields)


def test_too_few_samples_are_explained() -> None:
    with pytest.raises(ValueError, match="quantile p99.9, of which fewer than 1000 samples say nothing"):
        TimeoutPolicy(minimum_samples=10)


@pytest.mark.parametrize(("share", "samples"), [(0.001, 2000), (0.01, 200), (0.05, 40)])
def test_samples_by_default(share: float, samples: int) -> None:
    assert TimeoutPolicy(false_timeouts=share).samples == samples
    assert TimeoutPolicy(false_timeouts=share, minimum_samples=samples).samples == samples
