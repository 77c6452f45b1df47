"""Above the sustainable load the service goes on doing as much useful work as it can."""

from __future__ import annotations

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation import (
    Bimodal,
    Constant,
    Duration,
    EventLoop,
    Exponential,
    Outcome,
    Poisson,
    Request,
    Traffic,
    percentile,
)
from tests.closed_loop.scenes import CAPACITY, LIMIT, SERVICE, play, traffic

LOADS = (2, 5, 10)
WARM = 2.0
SECONDS = 12.0
# The same mean for all of them, so the same capacity.
SERVICES = {
    "constant": Constant(SERVICE),
    "exponential": Exponential(SERVICE),
    "bimodal": Bimodal(usual=Constant(0.4 * SERVICE), rare=Constant(6.4 * SERVICE), share=0.1),
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_goodput_is_the_capacity_and_admitted_work_is_done_in_time(load: int, service: Duration) -> None:
    served: list[Request] = []
    page = play(
        SECONDS, traffic(load, service), policy=ServerPolicy(limit=LIMIT), observe=served.append
    ).total
    took = [
        each.ended_at - each.began_at
        for each in served
        if each.outcome is Outcome.IN_TIME and WARM <= each.ended_at < SECONDS
    ]
    # The mean of what was drawn, not of the distribution: chance is not to be blamed on admission.
    capacity = LIMIT / (sum(took) / len(took))
    assert capacity == pytest.approx(CAPACITY, rel=0.15)
    assert page.offered_rate(WARM, SECONDS) > 0.95 * load * CAPACITY
    assert page.goodput(WARM, SECONDS) >= 0.98 * capacity
    assert page.in_time == page.admitted
    # The queue holds one service time's worth of work, so that is what waiting adds to the work itself.
    assert page.percentile(0.99) <= percentile(took, 0.99) + 2 * SERVICE
    assert page.percentile(0.5) <= percentile(took, 0.5) + 1.25 * SERVICE


@pytest.mark.parametrize("load", LOADS)
def test_without_admission_goodput_collapses(load: int) -> None:
    page = play(SECONDS, traffic(load), policy=None).total
    assert page.goodput(WARM, SECONDS) < 0.05 * CAPACITY
    assert page.late > 0.8 * page.offered


def test_with_a_queue_longer_than_callers_wait_goodput_collapses() -> None:
    """What is bounded is not yet short enough: the bound in time does the work."""
    long = ServerPolicy(limit=LIMIT, queue=1000, max_wait=60, wait_share=1)
    page = play(SECONDS + 5, traffic(2, sends_deadline=False), policy=long).total
    assert page.goodput(WARM + 5, SECONDS + 5) < 0.05 * CAPACITY


def loop_traffic(
    rate: float, deadline: float, *, sends_deadline: bool = True, hang_up: bool = True
) -> Traffic:
    """5 ms of CPU around 20 ms of something else; callers hang up when the answer is worth nothing."""
    return Traffic(
        name="page",
        arrivals=Poisson(rate),
        service=Exponential(0.005),
        deadline=deadline,
        sends_deadline=sends_deadline,
        patience=Constant(deadline) if hang_up else None,
    )


def test_one_event_loop_at_three_times_its_load_does_all_the_work_that_refusing_leaves() -> None:
    """Reading and refusing need the same CPU: 600 x 0.2 ms to read, and 0.2 ms for each refusal."""
    page = play(
        20, loop_traffic(600, deadline=1.0), policy=ServerPolicy(limit=LIMIT), plant=EventLoop()
    ).total
    possible = (1 - 600 * 0.0004) / (0.005 - 0.0002)
    assert page.goodput(WARM, 20) >= 0.97 * possible
    assert page.percentile(0.99) < 0.3


def test_one_event_loop_without_admission_does_nothing_useful() -> None:
    page = play(20, loop_traffic(600, deadline=1.0), policy=None, plant=EventLoop()).total
    assert page.goodput(WARM, 20) < 5


def test_short_deadlines_keep_their_goodput() -> None:
    """300 requests per second with 300 ms each, where 192 are possible; nothing is hung up upon."""
    page = play(
        20, loop_traffic(300, deadline=0.3), policy=ServerPolicy(limit=LIMIT), plant=EventLoop()
    ).total
    possible = (1 - 300 * 0.0004) / (0.005 - 0.0002)
    assert page.goodput(WARM, 20) >= 0.97 * possible
    assert page.left + page.expired < 0.001 * page.offered


def test_short_deadlines_behind_a_long_queue_are_saved_by_the_prediction() -> None:
    """The same load where only the prediction bounds the wait; a median errs for half of those at the edge."""
    long = ServerPolicy(limit=LIMIT, queue=200, max_wait=5, wait_share=1)
    possible = (1 - 300 * 0.0004) / (0.005 - 0.0002)
    told = play(20, loop_traffic(300, deadline=0.3), policy=long, plant=EventLoop()).total
    assert told.reasons[Reason.PREDICTED_LATE] > 0.95 * told.refused
    assert told.goodput(WARM, 20) >= 0.75 * possible
    untold = play(
        20, loop_traffic(300, deadline=0.3, sends_deadline=False), policy=long, plant=EventLoop()
    ).total
    assert untold.goodput(WARM, 20) < 0.5 * possible
    deaf = loop_traffic(300, deadline=0.3, hang_up=False)
    assert play(20, deaf, policy=None, plant=EventLoop()).total.goodput(WARM, 20) < 5


def test_a_prediction_on_arrival_keeps_goodput_where_a_long_queue_alone_loses_it() -> None:
    long = ServerPolicy(limit=LIMIT, queue=200, max_wait=5, wait_share=1)
    service = Constant(SERVICE)
    told = play(20, traffic(1.5, service, deadline=0.3, patience=0.3), policy=long).total
    untold = play(
        20, traffic(1.5, service, deadline=0.3, patience=0.3, sends_deadline=False), policy=long
    ).total
    assert told.goodput(WARM, 20) >= 0.95 * CAPACITY
    assert untold.goodput(WARM, 20) < 0.8 * CAPACITY
