"""Around the limit nothing flaps: refusals are as few, and the queue moves as little, as chance makes inevitable.

Poisson arrivals, exponential service, ten slots and a queue of ten are the system M/M/10/20, whose figures are known
exactly. A controller that adds oscillation of its own shows as a difference from them.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.simulation import Constant, Even, Figures, Levels, Rate, Simulation
from tests.closed_loop.scenes import CAPACITY, LIMIT, SERVICE, play, traffic

QUEUE = 10
LOADS = (0.95, 1.0, 1.05)
SECONDS = 100.0
LOW, HIGH = 1, QUEUE - 1
POLICY = ServerPolicy(limit=LIMIT, queue=QUEUE)


def erlang_blocking(load: float) -> float:
    """The part of the arrivals that find M/M/10/20 full."""
    weights = [1.0]
    for held in range(1, LIMIT + QUEUE + 1):
        weights.append(weights[-1] * load * LIMIT / min(held, LIMIT))
    return weights[-1] / sum(weights)


def natural_swings(load: float) -> float:
    """How often per second M/M/10/20 goes from a nearly empty to a nearly full queue and back: mean first passages."""
    arrival = load * CAPACITY

    def service(held: int) -> float:
        return min(held, LIMIT) / SERVICE

    up = down = climb = fall = 0.0
    for held in range(LIMIT + HIGH):  # from `held` to one more
        up = 1 / arrival + service(held) / arrival * up
        climb += up if held >= LIMIT + LOW else 0.0
    for held in range(LIMIT + QUEUE, LIMIT + LOW, -1):  # from `held` to one less
        rate = arrival if held < LIMIT + QUEUE else 0.0
        down = 1 / service(held) + rate / service(held) * down
        fall += down if held <= LIMIT + HIGH else 0.0
    return 1 / (climb + fall)


def swings(levels: Levels) -> float:
    """The same, counted in a run."""
    count, low = 0, False
    for waiting in levels.waiting:
        if waiting <= LOW:
            low = True
        elif waiting >= HIGH and low:
            count, low = count + 1, False
    return count / levels.at[-1]


def spread(page: Figures) -> float:
    """The largest difference between the refusal shares of two spans of ten seconds that follow each other."""
    shares = [page.refusal_share(start, start + 10) for start in range(0, int(SECONDS), 10)]
    return max(abs(after - before) for before, after in pairwise(shares))


@pytest.mark.parametrize("load", LOADS)
def test_around_the_limit_refusals_and_swings_are_those_of_chance(load: float) -> None:
    measures = play(SECONDS, traffic(load), policy=POLICY, sample=0.01)
    page = measures.total
    assert page.refusal_share(0, SECONDS) == pytest.approx(erlang_blocking(load), abs=0.02)
    assert swings(measures.levels) <= 1.1 * natural_swings(load)
    assert spread(page) < 0.1


def test_a_limit_that_jumps_is_seen() -> None:
    """Twice a second between 5 and 15: the same on average, and yet more refusals and more swings."""

    def jump(simulation: Simulation) -> None:
        def set_limit(limit: int) -> None:
            controller = simulation.server.controller
            assert controller is not None
            controller.slots.limit = limit

        for half in range(2 * int(SECONDS)):
            simulation.engine.at(half / 2, partial(set_limit, 5 if half % 2 else 15))

    policy = ServerPolicy(limit=15, queue=QUEUE)
    measures = play(SECONDS, traffic(1.0), policy=policy, sample=0.01, meddle=jump)
    assert measures.total.refusal_share(0, SECONDS) > 1.5 * erlang_blocking(1.0)


def test_the_refusal_share_grows_smoothly_with_the_load() -> None:
    """From 0.9 to 1.1 there is no load at which the service suddenly gives up."""
    rate = Rate((0, 0.9 * CAPACITY), (SECONDS, 1.1 * CAPACITY))
    page = play(SECONDS, traffic(rate), policy=POLICY).total
    for start in range(0, int(SECONDS), 20):
        load = 0.9 + 0.2 * (start + 10) / SECONDS
        assert page.refusal_share(start, start + 20) == pytest.approx(erlang_blocking(load), abs=0.05)


@pytest.mark.parametrize("load", [0.95, 1.0])
def test_even_traffic_below_the_limit_is_never_refused(load: float) -> None:
    steady = traffic(1, Constant(SERVICE), arrivals=Even(load * CAPACITY))
    assert play(30, steady, policy=POLICY).total.refused == 0


def test_even_traffic_a_little_above_the_limit_is_refused_evenly_and_the_queue_stands_still() -> None:
    steady = traffic(1, Constant(SERVICE), arrivals=Even(1.05 * CAPACITY))
    measures = play(30, steady, policy=POLICY, sample=0.01)
    shares = [measures.total.refusal_share(second, second + 1) for second in range(5, 30)]
    assert all(share == pytest.approx(1 - 1 / 1.05, abs=0.01) for share in shares)
    waiting = measures.levels.between(measures.levels.waiting, 5, 30)
    assert max(waiting) - min(waiting) <= 1
