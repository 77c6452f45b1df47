"""An expensive request gets its slots although cheap ones could always use the next free one."""

from __future__ import annotations

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.queue import ClassState
from resilient_mw.admission.slots import Slots
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation import Even, Figures, Traffic
from tests.closed_loop.scenes import CAPACITY, LIMIT, play, traffic

LIGHT = PriorityClass("light", weight=4)
HEAVY = PriorityClass("heavy", weight=1)
WAIT = 1.0


def heavy(priority: str, *, load: float, rate: float = 1.0) -> Figures:
    """Now and then a request of five slots behind a crowd of requests of one slot."""
    expensive = Traffic(
        name="export",
        arrivals=Even(rate),
        service=traffic(1).service,
        priority=priority,
        cost=5,
        deadline=4 * WAIT,
    )
    policy = ServerPolicy(
        limit=LIMIT,
        queue=20,
        max_wait=WAIT,
        classes=(HEAVY, LIGHT, PriorityClass("low", weight=1)),
        default_class="light",
    )
    measures = play(15, traffic(load, priority="light"), expensive, policy=policy)
    # Saving slots up costs a little: five of ten stand idle while the last of them is waited for.
    assert measures["page"].goodput(2, 15) + 5 * measures["export"].goodput(2, 15) >= 0.93 * CAPACITY
    return measures["export"]


@pytest.mark.parametrize("load", [1.2, 2, 5])
@pytest.mark.parametrize("priority", ["heavy", "low"])
def test_a_cost_of_five_starts_within_its_wait_bound(load: float, priority: str) -> None:
    """Above or below the crowd's own class."""
    export = heavy(priority, load=load)
    assert export.in_time == export.offered
    assert max(export.waited) <= WAIT


@pytest.mark.parametrize("load", [1.2, 2])
def test_in_the_class_of_the_crowd_it_waits_its_turn(load: float) -> None:
    """Refused with the crowd when the queue is full; what got a place starts in time."""
    export = heavy("light", load=load, rate=2.0)
    assert export.in_time > 5
    assert set(export.reasons) <= {Reason.QUEUE_FULL}
    assert max(export.waited) <= WAIT


def test_without_saving_up_it_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(self: Slots, state: ClassState, cost: int) -> bool:
        return cost <= self.available(state)

    monkeypatch.setattr(Slots, "fits", fits)
    export = heavy("heavy", load=5)
    assert export.reasons[Reason.QUEUE_TIMEOUT] > 0.9 * export.offered
