"""No work begins for an answer that nobody can use."""

from __future__ import annotations

import math

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.decision import NOBODY, Decision, Settled
from resilient_mw.admission.entry import Waiter
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation import (
    Constant,
    EventLoop,
    Exponential,
    Figures,
    Poisson,
    Request,
    Traffic,
    Workers,
)
from tests.closed_loop.scenes import LIMIT, play, traffic

# The queue is so long and the bound so wide that deadlines and departures decide.
LONG = ServerPolicy(limit=LIMIT, queue=100, max_wait=10, wait_share=1)


def mixed(policy: ServerPolicy | None, *, stoppable: bool = True) -> Figures:
    """Deadlines of all lengths, and callers who leave when they like; now and then work takes very long."""
    kinds = [traffic(0.5, name=f"d{number}", deadline=0.05 * 2**number) for number in range(6)]
    kinds.append(traffic(1, name="leaver", deadline=0.4, patience=0.4, sends_deadline=False))
    kinds.append(Traffic(name="slow", arrivals=traffic(0.005).arrivals, service=Exponential(2.0), deadline=8))
    return play(20, *kinds, policy=policy, plant=Workers(LIMIT, stoppable=stoppable)).total


@pytest.mark.parametrize("stoppable", [True, False], ids=["cancelled", "threads"])
def test_what_expired_or_was_abandoned_in_the_queue_never_runs(stoppable: bool) -> None:
    figures = mixed(LONG, stoppable=stoppable)
    assert figures.dead_starts == 0
    assert figures.reasons[Reason.PREDICTED_LATE] > 0
    assert figures.left > 0


def dead_admissions() -> tuple[int, int]:
    """On an event loop time passes between the grant of a slot and the moment at which the waiter hears of it."""
    ended: list[Request] = []
    page = Traffic(name="page", arrivals=Poisson(400), service=Exponential(0.02), deadline=0.3)
    play(20, page, policy=LONG, plant=EventLoop(), observe=ended.append)
    admitted = [each.admitted_at - each.deadline_at for each in ended if not math.isnan(each.admitted_at)]
    return sum(late >= 0 for late in admitted), len(admitted)


def test_nobody_is_admitted_whose_deadline_passed_between_the_grant_and_the_start() -> None:
    dead, admitted = dead_admissions()
    assert dead == 0
    assert admitted > 500


def test_a_start_that_does_not_look_at_the_deadline_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = AdmissionController.begin

    def begin_anyway(self: AdmissionController, now: float, waiter: Waiter) -> Decision:
        waiter.deadline_at = math.inf
        return begin(self, now, waiter)

    monkeypatch.setattr(AdmissionController, "begin", begin_anyway)
    assert dead_admissions()[0] > 0


def test_without_admission_most_of_the_work_is_for_nobody() -> None:
    figures = mixed(None, stoppable=False)
    assert figures.dead_starts > 0.5 * figures.offered


def test_a_controller_that_forgets_deadlines_and_departures_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def expire(self: AdmissionController, now: float) -> Settled:
        return NOBODY

    begin = AdmissionController.begin

    def begin_anyway(self: AdmissionController, now: float, waiter: Waiter) -> Decision:
        waiter.deadline_at = math.inf
        return begin(self, now, waiter)

    monkeypatch.setattr(AdmissionController, "_expire", expire)
    monkeypatch.setattr(AdmissionController, "begin", begin_anyway)
    monkeypatch.setattr("resilient_mw.admission.forecast.Forecast.too_late", lambda *_: False)
    page = traffic(2, Constant(0.5), deadline=0.4)
    threads = Workers(LIMIT, stoppable=False)
    assert play(5, page, policy=LONG, plant=threads).total.dead_starts > 0
    monkeypatch.undo()
    assert play(5, page, policy=LONG, plant=threads).total.dead_starts == 0


def test_a_deadline_cuts_running_work_off_on_time() -> None:
    """Half of the work takes longer than its deadline: its callers hear of it then, and its slots come back then."""
    page = play(
        10, traffic(0.2, Constant(3.0), deadline=0.5), policy=ServerPolicy(limit=100), plant=Workers(100)
    ).total
    assert page.expired == page.offered
    assert page.overran == 0


def test_admitted_work_that_is_predicted_to_be_too_late_is_refused_on_arrival() -> None:
    """Not after it has waited in vain."""
    page = play(20, traffic(2, Constant(0.05), deadline=0.12), policy=LONG).total
    assert page.reasons[Reason.PREDICTED_LATE] > 0.95 * page.refused
    assert page.in_time >= 0.95 * page.admitted
