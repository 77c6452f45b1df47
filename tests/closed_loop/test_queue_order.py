"""Which order serves whom: the figures behind the default, and what the other order is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.core.priority import DEFAULT_CLASSES, PriorityClass
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation import Bursts, Figures, Traffic
from tests.closed_loop.scenes import CAPACITY, LIMIT, SERVICE, play, traffic

LOADS = (1.2, 2, 5, 10)
WARM = 3.0
SECONDS = 12.0
GIVES_UP = 1.0


def classes(order: str) -> tuple[PriorityClass, ...]:
    return tuple(replace(each, queue_order=order) for each in DEFAULT_CLASSES)


def run(load: float, order: str, queue: int | None, *, hangs_up: bool = True) -> Figures:
    """Callers who give up after a second, which they do not announce; the server may see it or not."""
    callers = traffic(load, deadline=GIVES_UP, sends_deadline=False, patience=GIVES_UP if hangs_up else None)
    policy = ServerPolicy(limit=LIMIT, queue=queue, classes=classes(order))
    return play(SECONDS, callers, policy=policy).total


def in_vain(figures: Figures) -> float:
    """The part of the callers who waited and got nothing."""
    waited = figures.left + figures.late + figures.reasons[Reason.QUEUE_TIMEOUT]
    return waited / figures.offered


@pytest.mark.parametrize("load", [1.2, 10])
def test_in_the_default_queue_both_orders_are_the_same(load: float) -> None:
    """One service time's worth of work hardly ever stands, so nobody is passed by."""
    fifo, newest = run(load, "fifo", None), run(load, "newest_first", None)
    for each in (fifo, newest):
        assert each.goodput(WARM, SECONDS) >= 0.96 * CAPACITY
        assert each.percentile(0.5, WARM, SECONDS) <= 2 * SERVICE
        assert in_vain(each) < 0.005
    assert newest.percentile(0.99, WARM, SECONDS) == pytest.approx(
        fifo.percentile(0.99, WARM, SECONDS), rel=0.1
    )


@pytest.mark.parametrize("load", LOADS)
def test_in_a_long_queue_the_newest_are_served_fast_and_the_rest_wait_in_vain(load: float) -> None:
    fifo, newest = run(load, "fifo", 40), run(load, "newest_first", 40)
    for each in (fifo, newest):
        assert each.goodput(WARM, SECONDS) >= 0.96 * CAPACITY
    assert fifo.percentile(0.5, WARM, SECONDS) > 3.5 * newest.percentile(0.5, WARM, SECONDS)
    assert in_vain(fifo) < 0.005
    assert in_vain(newest) > 0.01
    assert max(fifo.waited) < max(newest.waited)


@pytest.mark.parametrize("load", LOADS)
def test_a_queue_longer_than_callers_wait_keeps_its_goodput_with_the_newest_first_only(load: float) -> None:
    """Who gives up is not seen: under WSGI, or behind a proxy that keeps the connection."""
    fifo = run(load, "fifo", 200, hangs_up=False)
    newest = run(load, "newest_first", 200, hangs_up=False)
    assert fifo.goodput(WARM, SECONDS) < 0.75 * CAPACITY
    assert newest.goodput(WARM, SECONDS) >= 0.96 * CAPACITY
    assert newest.percentile(0.5, WARM, SECONDS) < 1.5 * SERVICE
    assert newest.late < 0.01 * newest.offered


def test_a_harmless_burst_is_served_in_the_order_of_arrival() -> None:
    """Two service times' worth of work at once, every second: nobody waits for longer than the target."""
    longest = []
    for order in ("fifo", "newest_first"):
        policy = ServerPolicy(limit=LIMIT, queue=100, classes=classes(order))
        burst = Traffic(
            name="burst", arrivals=Bursts(size=3 * LIMIT, every=1.0), service=traffic(1).service, deadline=5.0
        )
        figures = play(SECONDS, burst, policy=policy).total
        assert figures.in_time == figures.offered
        longest.append(max(figures.waited))
    assert longest[0] == pytest.approx(longest[1], rel=0.5)


@pytest.mark.parametrize("order", ["fifo", "newest_first"])
def test_tenants_take_turns_in_both_orders(order: str) -> None:
    measures = play(
        SECONDS,
        traffic(5, name="flood", tenant="flood", sends_deadline=False, patience=GIVES_UP),
        traffic(0.3, name="calm", tenant="calm", sends_deadline=False, patience=GIVES_UP),
        policy=ServerPolicy(limit=LIMIT, queue=100, classes=classes(order)),
    )
    assert measures["calm"].in_time >= 0.99 * measures["calm"].offered
    assert measures.total.goodput(WARM, SECONDS) >= 0.96 * CAPACITY
