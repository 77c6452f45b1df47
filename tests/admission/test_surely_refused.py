"""What is surely refused is refused, whatever the deadline, and asking changes nothing."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_mw import ServerPolicy
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.admission.surely import surely_refused
from resilient_mw.core.marks import Mark
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.rejection import Reason
from tests.admission.desk import PATIENT, Desk

BOUNDED = (PriorityClass("high", weight=3, queue_length=1), PriorityClass("low"))
RESERVING = (PriorityClass("high", weight=2, reserved=1), PriorityClass("low"))
EVEN = (PriorityClass("high"), PriorityClass("low"))


def full_desk(**policy: Any) -> Desk:
    """Return a desk with both slots taken and both places of the queue."""
    desk = Desk(**{**PATIENT, "limit": 2, "queue": 2, **policy})
    for _ in range(2):
        desk.admit(0.0)
    for _ in range(2):
        desk.queue(0.0)
    return desk


def test_not_while_there_is_a_slot_or_a_place() -> None:
    desk = Desk(**PATIENT, limit=1)
    assert not surely_refused(desk.controller, 0.0, desk.route())
    desk.admit(0.0)
    assert not surely_refused(desk.controller, 0.0, desk.route())


def test_not_where_more_than_the_path_decides() -> None:
    desk = full_desk()
    assert surely_refused(desk.controller, 0.0, desk.route()) is Reason.QUEUE_FULL
    for policy, mark in (
        (ServerPolicy(tenant="X-Tenant"), Mark()),
        (ServerPolicy(), Mark(cost=lambda head: 1)),
    ):
        assert surely_refused(desk.controller, 0.0, RouteEntries(policy).get("/x", mark)) is None


def test_once_slots_and_queue_are_full() -> None:
    desk = full_desk()
    assert surely_refused(desk.controller, 0.0, desk.route()) is Reason.QUEUE_FULL
    assert not surely_refused(desk.controller, 0.0, desk.route("exempt"))


def test_not_where_a_higher_class_would_push_somebody_out() -> None:
    desk = full_desk()
    assert not surely_refused(desk.controller, 0.0, desk.route("critical"))


def test_not_where_a_waiter_is_about_to_give_up() -> None:
    desk = full_desk(max_wait=1.0)
    assert surely_refused(desk.controller, 0.9, desk.route())
    assert not surely_refused(desk.controller, 1.0, desk.route())


def test_the_overloaded_lowest_class_has_but_its_own_places() -> None:
    desk = Desk(**PATIENT, limit=1, queue=20)
    desk.admit(0.0)
    own = next(each.places for each in desk.controller.classes if each.priority.name == "sheddable")
    for _ in range(own):
        desk.queue(0.0, "sheddable")
    assert not surely_refused(desk.controller, 0.0, desk.route("sheddable"))
    desk.controller.overloaded = True
    assert surely_refused(desk.controller, 0.0, desk.route("sheddable")) is Reason.OVERLOADED
    assert not surely_refused(desk.controller, 0.0, desk.route("normal"))


def test_everybody_but_the_exempt_while_draining() -> None:
    desk = Desk(**PATIENT, limit=1)
    desk.controller.drain()
    assert surely_refused(desk.controller, 0.0, desk.route()) is Reason.DRAINING
    assert not surely_refused(desk.controller, 0.0, desk.route("exempt"))


class Story:
    """What happened at a desk so far: who holds slots, and what time it is."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.now = 0.0
        self.held: list[tuple[str, int]] = []

    def go_on(self, what: str, high: bool, number: int) -> None:
        desk, priority = self.desk, "high" if high else "low"
        if what == "arrive":
            cost = min(number, desk.policy.most_cost(priority))
            if desk.arrive(self.now, priority, cost=cost).admitted:
                self.held.append((priority, cost))
        elif what == "release" and self.held:
            gone, slots = self.held.pop()
            for waiter in desk.release(self.now, gone, cost=slots):
                if desk.controller.begin(self.now, waiter).admitted:
                    self.held.append((waiter.route.priority, waiter.cost))
        elif what == "wait":
            self.now += number / 4
        elif what == "overloaded":
            desk.controller.overloaded = high
        elif what == "drain" and number == 3:
            desk.controller.drain()


@settings(deadline=None, max_examples=100)
@given(
    classes=st.sampled_from([BOUNDED, RESERVING, EVEN]),
    limit=st.integers(2, 4),
    queue=st.integers(0, 4),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["arrive", "release", "wait", "overloaded", "drain"]),
            st.booleans(),
            st.integers(1, 3),
        ),
        max_size=30,
    ),
    budget=st.sampled_from([0.0, 0.001, 0.5, 3600.0]),
)
def test_arrive_agrees(
    classes: Any, limit: int, queue: int, steps: list[tuple[str, bool, int]], budget: float
) -> None:
    """After any history: who is surely refused gets a refusal from `arrive`, and his slots are nobody's loss."""
    desk = Desk(
        limit=limit,
        queue=queue,
        classes=classes,
        default_class="low",
        max_wait=0.5,
        wait_share=1.0,
        exempt_limit=2,
        deadline_default=3600.0,
        deadline_maximum=3600.0,
    )
    story = Story(desk)
    for step in steps:
        story.go_on(*step)
        now = story.now
        for name in ("high", "low", "exempt"):
            route = desk.route(name, min(step[2], desk.policy.most_cost("low")))
            if surely_refused(desk.controller, now, route) is not None:
                other = copy.deepcopy(desk.controller)
                decision = other.arrive(now, copy.deepcopy(route), route.cost, now + budget)
                assert decision.reason is not None, (name, decision)
                assert other.slots.in_use == desk.controller.slots.in_use


def test_asking_changes_nothing() -> None:
    desk = full_desk()
    route = desk.route()
    before = (route.arrived, dict(route.refused), desk.controller.waiting)
    surely_refused(desk.controller, 0.0, route)
    assert (route.arrived, dict(route.refused), desk.controller.waiting) == before


def test_a_drain_refuses_surely_when_its_delay_is_over() -> None:
    desk = Desk(**PATIENT, limit=2)
    desk.controller.drain(5.0)
    assert surely_refused(desk.controller, 4.9, desk.route()) is None
    assert surely_refused(desk.controller, 5.0, desk.route()) is Reason.DRAINING


def test_not_where_the_limit_has_grown_since_anybody_looked() -> None:
    desk = Desk(**PATIENT, limit=20, queue=0, ramp=10.0)
    assert surely_refused(desk.controller, 0.0, desk.route(cost=3)) is None  # an arrival begins the ramp
    for _ in range(2):
        desk.admit(0.0)
    assert surely_refused(desk.controller, 0.0, desk.route()) is Reason.QUEUE_FULL
    assert surely_refused(desk.controller, 9.9, desk.route()) is None
    desk.admit(9.9)
