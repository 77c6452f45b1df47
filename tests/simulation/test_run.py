"""Scenarios, users, the server, measures and the table."""

from __future__ import annotations

import math
from array import array
from itertools import pairwise

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation import (
    Constant,
    EventLoop,
    Figures,
    Outcome,
    PlantKind,
    Request,
    Scenario,
    Script,
    Simulation,
    Traffic,
    Workers,
    percentile,
    run_scenario,
    table,
)


def one(*at: float, name: str = "page", service: float = 1.0, **other: object) -> Traffic:
    return Traffic(name=name, arrivals=Script(at), service=Constant(service), **other)  # type: ignore[arg-type]


def trace(policy: ServerPolicy | None, *traffic: Traffic, plant: PlantKind | None = None) -> list[Request]:
    ended: list[Request] = []
    scenario = Scenario(seconds=100, plant=plant or Workers(1), traffic=traffic, policy=policy)
    Simulation(scenario, 1, observe=ended.append).run()
    return sorted(ended, key=lambda request: request.sent_at)


def verdicts(requests: list[Request]) -> list[tuple[Outcome | None, float]]:
    return [(request.outcome, request.ended_at) for request in requests]


POLICY = ServerPolicy(limit=1, queue=1, max_wait=3.0, wait_share=1.0)


def test_one_runs_one_waits_and_the_third_is_refused_at_once() -> None:
    requests = trace(POLICY, one(0.0, 0.25, 0.5))
    assert verdicts(requests) == [(Outcome.IN_TIME, 1.0), (Outcome.IN_TIME, 2.0), (Outcome.REFUSED, 0.5)]
    assert [request.began_at for request in requests[:2]] == [0.0, 1.0]
    assert math.isnan(requests[2].began_at)
    assert requests[2].reason is Reason.QUEUE_FULL
    assert requests[2].retry_after in (1, 2)


def test_a_waiter_is_refused_when_its_wait_is_over() -> None:
    requests = trace(POLICY, one(0.0, service=8.0), one(0.25, name="late"))
    assert verdicts(requests) == [(Outcome.IN_TIME, 8.0), (Outcome.REFUSED, 3.25)]
    assert requests[1].reason is Reason.QUEUE_TIMEOUT


def test_a_deadline_ends_a_wait_and_a_run() -> None:
    requests = trace(POLICY, one(0.0, service=8.0, deadline=4.0), one(0.5, name="late", deadline=2.0))
    assert verdicts(requests) == [(Outcome.EXPIRED, 4.0), (Outcome.REFUSED, 2.5)]
    assert requests[1].reason is Reason.EXPIRED_IN_QUEUE


def test_a_caller_who_hangs_up_frees_the_place_or_the_slot() -> None:
    requests = trace(
        POLICY,
        one(0.0, service=8.0, patience=Constant(2.0)),
        one(0.25, name="waits", patience=Constant(0.5)),
        one(1.0, name="next"),
    )
    assert verdicts(requests) == [(Outcome.LEFT, 2.0), (Outcome.LEFT, 0.75), (Outcome.IN_TIME, 3.0)]


def test_a_caller_who_hangs_up_at_the_instant_of_the_grant_leaves_no_slot_behind() -> None:
    requests = trace(POLICY, one(0.0), one(0.5, name="waits", patience=Constant(0.5)), one(1.25, name="next"))
    assert verdicts(requests)[1:] == [(Outcome.LEFT, 1.0), (Outcome.IN_TIME, 2.25)]
    assert math.isnan(requests[1].began_at)


def test_a_thread_keeps_its_slot_after_the_deadline() -> None:
    plant = Workers(1, stoppable=False)
    requests = trace(POLICY, one(0.0, service=2.0, deadline=1.0), one(1.5, name="next"), plant=plant)
    assert verdicts(requests) == [(Outcome.EXPIRED, 1.0), (Outcome.IN_TIME, 3.0)]


def test_without_a_policy_the_plant_does_everything_in_order_and_too_late() -> None:
    requests = trace(None, one(0.0, 0.1, 0.2, deadline=2.0))
    assert verdicts(requests) == [(Outcome.IN_TIME, 1.0), (Outcome.IN_TIME, 2.0), (Outcome.LATE, 3.0)]
    measures = run_scenario(
        Scenario(seconds=1, plant=Workers(1), traffic=[one(0.0, 0.1, 0.2, deadline=1.5)]), 1
    )
    assert measures.total.dead_starts == 1


def test_a_budget_that_is_not_sent_is_the_servers_default() -> None:
    policy = POLICY.with_changes({"deadline_default": 5.0})
    requests = trace(policy, one(0.0, service=8.0, deadline=1.0, sends_deadline=False))
    assert verdicts(requests) == [(Outcome.EXPIRED, 5.0)]


def test_a_refused_caller_comes_back_after_the_told_delay_as_often_as_it_likes() -> None:
    requests = trace(
        POLICY.with_changes({"queue": 0}), one(0.0, service=50.0), one(0.5, name="again", returns=2)
    )
    again = [request for request in requests if request.route.template == "again"]
    assert [request.attempt for request in again] == [0, 1, 2]
    for earlier, later in pairwise(again):
        assert later.sent_at == earlier.ended_at + (earlier.retry_after or 0)


def test_exempt_traffic_passes_and_costs_are_slots() -> None:
    policy = ServerPolicy(limit=4, queue=0)
    requests = trace(
        policy,
        one(0.0, cost=3),
        one(0.1, name="two", cost=2),
        one(0.2, name="health", priority="exempt"),
        plant=Workers(9),
    )
    assert [request.outcome for request in requests] == [Outcome.IN_TIME, Outcome.REFUSED, Outcome.IN_TIME]


def test_on_an_event_loop_a_refusal_waits_for_the_cpu() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    plant = EventLoop(accept=0.0, refuse=0.125, io=Constant(0.0))
    requests = trace(policy, one(0.0, 0.25, service=2.0), plant=plant)
    # The first half of the first request takes a second, and is not interrupted.
    assert requests[1].outcome is Outcome.REFUSED
    assert requests[1].ended_at == 1.0 + 0.125


def test_levels_are_looked_at_in_regular_intervals() -> None:
    scenario = Scenario(seconds=3, plant=Workers(1), traffic=[one(0.0, 0.1)], policy=POLICY, sample=0.5)
    measures = run_scenario(scenario, 1)
    assert list(measures.levels.at) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert list(measures.levels.waiting)[1] == 1
    assert list(measures.levels.in_use_of["normal"]) == list(measures.levels.in_use)
    assert list(measures.levels.between(measures.levels.waiting, 1.5, 2.5)) == [0, 0]
    assert measures.ended_at == pytest.approx(3.0)


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([3.0], 0.5) == 3.0
    assert math.isnan(percentile([], 0.5))


def test_figures_of_a_span_of_time() -> None:
    figures = Figures(
        sent_at=array("d", [0.0, 1.0, 1.5, 2.0]),
        finished_at=array("d", [1.0, 2.0, 4.0]),
        latency=array("d", [1.0, 0.5, 2.0]),
        refused_at=array("d", [1.0]),
    )
    assert figures.goodput(1.0, 3.0) == 1.0
    assert figures.offered_rate(1.0, 2.0) == 2.0
    assert figures.refusal_share(1.0, 2.0) == 0.5
    assert figures.refusal_share(5.0, 6.0) == 0.0
    assert figures.percentile(0.99, 1.0, 4.0) == 1.0
    assert figures.percentile(0.99) == 2.0


def test_figures_add_up_by_class() -> None:
    scenario = Scenario(
        seconds=5,
        plant=Workers(9),
        traffic=[one(0.0, 2.0, name="a"), one(1.0, name="b"), one(0.5, name="c", priority="critical")],
        policy=ServerPolicy(limit=9),
    )
    measures = run_scenario(scenario, 1)
    assert list(measures.of_class("normal").finished_at) == [1.0, 2.0, 3.0]
    assert list(measures.total.sent_at) == [0.0, 0.5, 1.0, 2.0]
    assert measures.of_class("critical").offered == measures["c"].in_time == 1
    assert measures.of_class("sheddable").offered == 0


def test_the_table_shows_every_kind_of_traffic_and_every_reason() -> None:
    traffic = [one(0.0, 0.1, 0.2, name="page"), one(5.0, name="report", priority="sheddable", deadline=0.5)]
    measures = run_scenario(Scenario(seconds=8, plant=Workers(1), traffic=traffic, policy=POLICY), 1)
    lines = table(measures).splitlines()
    assert lines[0].split()[:4] == ["traffic", "class", "offered", "in"]
    assert lines[1].split() == ["page", "normal", "3", "2", "1", "0", "0", "0", "0.2", "1000", "1900"]
    assert lines[2].split() == ["queue_full", "1"]
    assert lines[3].split() == ["report", "sheddable", "1", "0", "0", "1", "0", "0", "0.0", "-", "-"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"traffic": []}, r"Scenario\.traffic="),
        ({"traffic": [one(0.0), one(1.0)]}, r"Scenario\.traffic="),
        ({"traffic": [one(0.0, priority="urgent")]}, "'urgent', which does not exist"),
        ({"traffic": [one(0.0, cost=2)], "policy": POLICY}, "cost=2"),
        ({"seconds": 0}, r"Scenario\.seconds=0"),
        ({"sample": 0}, r"Scenario\.sample=0"),
    ],
)
def test_wrong_scenarios_are_refused(changes: dict[str, object], complaint: str) -> None:
    whole: dict[str, object] = {"seconds": 1, "plant": Workers(1), "traffic": [one(0.0)], **changes}
    with pytest.raises(ValueError, match=complaint):
        Scenario(**whole)  # type: ignore[arg-type]


def test_wrong_traffic_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Traffic\('page'\)\.deadline=-1"):
        one(0.0, deadline=-1)
    with pytest.raises(ValueError, match=r"Traffic\.name='a b'"):
        one(0.0, name="a b")
