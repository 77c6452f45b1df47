"""The places of streams: taken on arrival, given back exactly once, never more than there are."""

from __future__ import annotations

import random

import pytest

from resilient_mw.admission.decision import ADMITTED, Decision
from resilient_mw.admission.entry import RouteEntry, Waiter, WaiterState
from resilient_mw.admission.streams import OpenStreams
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import StreamRouteSnapshot
from resilient_mw.core.streams import StreamRule


def entry(template: str = "/events", slot: str = "head", cost: int = 1) -> RouteEntry:
    return RouteEntry(
        template, "normal", 1, cost, DeadlineRule(10.0, 0.0, 60.0), None, StreamRule(slot, "head")
    )


def waiter(route: RouteEntry) -> Waiter:
    return Waiter(route, 1, 0.0, 1.0, 10.0)


def test_places_are_conserved() -> None:  # noqa: C901  one branch for each thing that can happen
    """Against a model that counts: every way from an arrival to an end, in random orders."""
    dice = random.Random(7)
    for limit in (1, 2, 5):
        streams, route = OpenStreams(limit), entry()
        waiting: list[Waiter] = []
        running: list[bool] = []  # whether its head has been sent
        for _ in range(4000):
            what = dice.randrange(8)
            if what < 3:
                taken = streams.take()
                assert taken == (len(waiting) + len(running) < limit)
                if taken and what == 0:
                    streams.placed(ADMITTED)
                    running.append(False)
                elif taken and what == 1:
                    waiting.append(waiter(route))
                    streams.placed(Decision(waiter=waiting[-1]))
                elif taken:
                    streams.placed(dice.choice([None, Decision(reason=Reason.QUEUE_FULL)]))
            elif what == 3 and waiting:
                one = waiting.pop(dice.randrange(len(waiting)))
                one.state = dice.choice([WaiterState.REFUSED, WaiterState.LEFT])
            elif what == 4 and waiting:
                waiting.pop(dice.randrange(len(waiting))).state = WaiterState.RUNNING
                running.append(False)
            elif what == 5 and waiting:
                one = waiting.pop(dice.randrange(len(waiting)))
                one.state = WaiterState.RUNNING
                streams.left(one)
            elif what == 6 and running:
                number = dice.randrange(len(running))
                if not running[number]:
                    running[number] = True
                    streams.open(route)
            elif what == 7 and running:
                opened = running.pop(dice.randrange(len(running)))
                streams.end(route, "completed" if opened else None)
            assert sum(each.opened for each in streams.snapshot().routes) == sum(running)
            assert len(waiting) + len(running) <= streams.places <= limit


def test_nothing_is_given_back_twice() -> None:
    streams, route = OpenStreams(1), entry()
    assert streams.take()
    streams.placed(ADMITTED)
    streams.end(route, None)
    with pytest.raises(RuntimeError, match="none is taken"):
        streams.end(route, None)


def test_those_whose_wait_is_over_are_not_kept() -> None:
    streams, route = OpenStreams(100_000), entry()
    most = 0
    for _ in range(5000):
        assert streams.take()
        one = waiter(route)
        streams.placed(Decision(waiter=one))
        one.state = WaiterState.REFUSED
        most = max(most, len(streams._waiting))
    assert most <= 64
    assert streams.places <= 64


def test_who_has_no_place_gives_none_back() -> None:
    streams = OpenStreams(1)
    streams.left(waiter(entry(slot="body")))
    assert streams.places == 0


def test_figures_are_one_per_route_and_class() -> None:
    streams = OpenStreams(10)
    cheap, dear, other = entry(), entry(cost=3), entry("/files")
    for route in (cheap, cheap, dear, other):
        assert streams.take()
        streams.placed(ADMITTED)
        streams.open(route)
    streams.end(cheap, "completed")
    streams.end(dear, "completed")
    streams.end(other, "error")
    assert streams.snapshot().routes == (
        StreamRouteSnapshot("/events", "normal", 1, {"completed": 2}),
        StreamRouteSnapshot("/files", "normal", 0, {"error": 1}),
    )
    assert streams.snapshot().limit == 10
