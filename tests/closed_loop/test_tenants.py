"""One tenant's flood is that tenant's trouble."""

from __future__ import annotations

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation import Exponential, Measures
from tests.closed_loop.scenes import CAPACITY, LIMIT, SERVICE, play, traffic

LOADS = (1.2, 2, 5, 10)
QUEUES = {"short": None, "long": 100}
SECONDS = 15


def flooded(
    load: float, *, queue: int | None, named: bool = True, run: float = SERVICE, others: float = 0.3
) -> Measures:
    """One tenant asks for `load` times the capacity, another one for a part of it."""
    return play(
        SECONDS,
        traffic(load, Exponential(run), name="flood", tenant="flood" if named else None),
        traffic(others, name="calm", tenant="calm" if named else None),
        policy=ServerPolicy(limit=LIMIT, queue=queue),
    )


@pytest.mark.parametrize("queue", QUEUES.values(), ids=QUEUES)
@pytest.mark.parametrize("load", LOADS)
def test_a_tenant_within_its_share_is_served_as_if_the_flood_were_not_there(
    load: float, queue: int | None
) -> None:
    measures = flooded(load, queue=queue)
    calm = measures["calm"]
    assert calm.in_time >= 0.995 * calm.offered
    # A slot comes free every 5 ms, and the next turn is always its own.
    assert calm.percentile(0.5) <= 1.2 * SERVICE
    assert measures.total.goodput(2, SECONDS) >= 0.97 * CAPACITY
    assert set(measures["flood"].reasons) <= {
        Reason.QUEUE_FULL, Reason.TENANT_SHARE, Reason.QUEUE_TIMEOUT, Reason.PREDICTED_LATE
    }  # fmt: skip


def test_without_a_name_it_goes_under() -> None:
    calm = flooded(5, queue=None, named=False)["calm"]
    assert calm.in_time < 0.3 * calm.offered


@pytest.mark.parametrize(("queue", "served"), [(None, 0.85), (100, 0.99)], ids=QUEUES)
def test_requests_that_run_ten_times_as_long_do_not_take_the_others_slots(
    queue: int | None, served: float
) -> None:
    """Turns alone would not do: each of them would hold its slot ten times as long.

    When the calm one happens to be idle the flood takes all the slots, and the first one comes back after 50 ms. What
    comes meanwhile has to find a place: half of those of a short queue are not always enough.
    """
    measures = flooded(5, queue=queue, run=10 * SERVICE)
    calm = measures["calm"]
    assert calm.in_time >= served * calm.offered
    assert measures["flood"].in_time > 0


@pytest.mark.parametrize("load", [2, 10])
def test_two_that_ask_for_too_much_get_half_each_whoever_asks_for_more(load: float) -> None:
    measures = flooded(load, queue=None, others=1)
    assert measures["calm"].goodput(2, SECONDS) == pytest.approx(CAPACITY / 2, rel=0.05)
    assert measures["flood"].goodput(2, SECONDS) == pytest.approx(CAPACITY / 2, rel=0.05)


def test_many_small_tenants_beside_a_large_one_are_served() -> None:
    """Forty tenants with one per cent of the capacity each, more of them than slots or places."""
    small = [traffic(0.01, name=f"small{number}", tenant=f"small {number}") for number in range(40)]
    measures = play(
        SECONDS, traffic(5, name="flood", tenant="flood"), *small, policy=ServerPolicy(limit=LIMIT)
    )
    served = sum(measures[each.name].in_time for each in small)
    offered = sum(measures[each.name].offered for each in small)
    assert served >= 0.98 * offered
    assert measures.total.goodput(2, SECONDS) >= 0.97 * CAPACITY


def test_afterwards_nothing_is_remembered() -> None:
    known: list[int] = []

    def look(simulation: object) -> None:
        controller = simulation.server.controller  # type: ignore[attr-defined]
        simulation.engine.after(  # type: ignore[attr-defined]
            SECONDS + 5, lambda: known.extend(len(state.tenants or ()) for state in controller.classes)
        )

    kinds = [traffic(0.1, name=f"t{number}", tenant=f"tenant {number}") for number in range(30)]
    play(SECONDS, *kinds, policy=ServerPolicy(limit=LIMIT), meddle=look)
    assert known == [0, 0, 0]
