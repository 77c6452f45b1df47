"""Priority changes outcomes, and starves nobody."""

from __future__ import annotations

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation import Bursts, Constant, Even, Measures, Traffic, Workers
from tests.closed_loop.scenes import CAPACITY, LIMIT, play, traffic

WEIGHTS = {"critical": 8, "normal": 4, "sheddable": 1}


def classes(*, reserved: int = 0, equal: bool = False) -> tuple[PriorityClass, ...]:
    return tuple(
        PriorityClass(name, weight=1 if equal else weight, reserved=reserved if name == "critical" else 0)
        for name, weight in WEIGHTS.items()
    )


def all_backlogged(policy: ServerPolicy) -> Measures:
    return play(40, *(traffic(0.8, name=name, priority=name) for name in WEIGHTS), policy=policy)


def off_weight(measures: Measures) -> dict[str, float]:
    """By how much each class got more or less than its weight, relative to it."""
    served = {name: measures.of_class(name).in_time for name in WEIGHTS}
    whole = sum(served.values())
    return {
        name: served[name] / whole / (weight / sum(WEIGHTS.values())) - 1 for name, weight in WEIGHTS.items()
    }


def test_with_all_classes_backlogged_each_is_served_by_its_weight() -> None:
    measures = all_backlogged(ServerPolicy(limit=LIMIT, queue=26))
    assert max(abs(off) for off in off_weight(measures).values()) < 0.1
    assert measures.total.goodput(2, 40) >= 0.98 * CAPACITY


def test_the_weights_do_that() -> None:
    measures = all_backlogged(ServerPolicy(limit=LIMIT, queue=26, classes=classes(equal=True)))
    assert off_weight(measures)["sheddable"] > 1


@pytest.mark.parametrize("queue", [26, None], ids=["long queue", "default queue"])
def test_sheddable_gets_its_share_while_critical_alone_is_five_times_too_much(queue: int | None) -> None:
    measures = play(
        20,
        traffic(5, name="checkout", priority="critical"),
        traffic(1, name="report", priority="sheddable"),
        policy=ServerPolicy(limit=LIMIT, queue=queue),
    )
    share = WEIGHTS["sheddable"] / (WEIGHTS["sheddable"] + WEIGHTS["critical"]) * CAPACITY
    assert measures["report"].goodput(2, 20) == pytest.approx(share, rel=0.1)
    assert measures["checkout"].goodput(2, 20) == pytest.approx(CAPACITY - share, rel=0.05)


def test_sheddable_is_refused_first() -> None:
    """Critical within the capacity, everything together far above it."""
    measures = play(
        20,
        traffic(0.5, name="checkout", priority="critical"),
        traffic(2, name="page"),
        traffic(2, name="report", priority="sheddable"),
        policy=ServerPolicy(limit=LIMIT, queue=26),
    )
    assert measures["checkout"].in_time >= 0.99 * measures["checkout"].offered
    assert measures["report"].refusal_share(2, 20) > measures["page"].refusal_share(2, 20) + 0.1


def crowd(reserved: int) -> Measures:
    """Critical at 0.3 of the capacity beside five times too much of normal."""
    return play(
        20,
        traffic(0.3, name="checkout", priority="critical"),
        traffic(5, name="page"),
        policy=ServerPolicy(limit=LIMIT, classes=classes(reserved=reserved)),
    )


def had_to_wait(measures: Measures) -> float:
    waited = measures["checkout"].waited
    return sum(wait > 0 for wait in waited) / len(waited)


def test_reserved_slots_are_there_at_once_and_the_others_use_the_rest() -> None:
    measures = crowd(reserved=8)
    assert measures["checkout"].in_time == measures["checkout"].offered
    assert had_to_wait(measures) < 0.1
    assert measures["page"].goodput(2, 20) >= 0.9 * 2 / LIMIT * CAPACITY
    assert max(measures.levels.in_use_of["normal"]) <= 2


def test_without_the_reserve_critical_requests_wait() -> None:
    assert had_to_wait(crowd(reserved=0)) > 0.8


def test_exempt_traffic_does_not_notice_ten_times_the_load() -> None:
    """Four of fourteen workers stay free: the limit takes the place of the workers."""

    def health(priority: str | None, limit: int) -> Measures:
        check = Traffic(name="health", arrivals=Even(20), service=Constant(0.001), priority=priority)
        return play(5, traffic(10), check, policy=ServerPolicy(limit=limit), plant=Workers(14))

    protected = health("exempt", LIMIT)["health"]
    assert protected.in_time == protected.offered
    assert protected.percentile(0.99) <= 0.0011
    # Neither without the exemption, nor where the limit leaves no worker free.
    assert health(None, LIMIT)["health"].refusal_share(1, 5) > 0.5
    assert health("exempt", 14)["health"].percentile(0.99) > 0.01


def test_a_flood_of_exempt_requests_meets_its_own_bound_and_harms_nobody() -> None:
    flood = Traffic(
        name="health", arrivals=Bursts(size=300, every=5), service=Constant(1.0), priority="exempt"
    )
    measures = play(15, traffic(0.5), flood, policy=ServerPolicy(limit=LIMIT), plant=Workers(LIMIT + 100))
    assert measures["health"].reasons == {Reason.EXEMPT_LIMIT: 3 * 200}
    assert measures["page"].in_time == measures["page"].offered
