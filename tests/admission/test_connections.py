"""Open websockets: places, shares, and when to come back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.connections import Connections, shares
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.core.marks import Mark
from resilient_mw.core.priority import EXEMPT, PriorityClass
from resilient_mw.core.rejection import Reason


def made(limit: int, **more: object) -> Connections:
    return Connections(ServerPolicy(**more), limit, random.Random(7))  # type: ignore[arg-type]


def entry(connections: Connections, priority: str) -> RouteEntry:
    return connections.entries.get("/ws", Mark(priority=priority))


def ask(
    connections: Connections,
    priority: str = "normal",
    now: float = 0.0,
    *,
    draining: bool = False,
    overloaded: bool = False,
) -> Reason | None:
    route = entry(connections, priority)
    return connections.arrive(now, route, draining=draining, overloaded=overloaded).reason


@given(
    reserved=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    free=st.integers(1, 50),
    limit=st.integers(1, 2000),
)
def test_a_share_is_no_larger_than_of_the_slots_and_every_class_can_have_one(
    reserved: list[int], free: int, limit: int
) -> None:
    slots = sum(reserved) + free
    classes = [PriorityClass(f"c{number}", reserved=each) for number, each in enumerate(reserved)]
    scaled = shares(classes, slots, limit)
    for before, after in zip(classes, scaled, strict=True):
        assert before.reserved / slots - 1 / limit < after.reserved / limit <= before.reserved / slots
        assert limit - (sum(each.reserved for each in scaled) - after.reserved) >= 1


@given(
    limit=st.integers(1, 6),
    reserved=st.integers(0, 30),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["critical", "normal", "sheddable", EXEMPT, "end"]),
            st.booleans(),
            st.booleans(),
            st.integers(0, 50),
        ),
        max_size=60,
    ),
)
def test_places_are_conserved(limit: int, reserved: int, steps: list[tuple[str, bool, bool, int]]) -> None:
    classes = [
        PriorityClass("critical", reserved=reserved),
        PriorityClass("normal"),
        PriorityClass("sheddable"),
    ]
    connections = made(limit, classes=classes, exempt_limit=2)
    kept = reserved * limit // 40
    held: list[str] = []
    for number, (what, draining, overloaded, which) in enumerate(steps):
        now = float(number)
        if what == "end":
            if held:
                connections.end(now, entry(connections, held.pop(which % len(held))), "completed")
        else:
            places = [each for each in held if each != EXEMPT]
            for_others = 0 if what == "critical" else max(0, kept - places.count("critical"))
            reason = ask(connections, what, now, draining=draining, overloaded=overloaded)
            expected: Reason | None = None
            if what == EXEMPT:
                expected = Reason.EXEMPT_LIMIT if held.count(EXEMPT) == 2 else None
            elif draining:
                expected = Reason.DRAINING
            elif overloaded and what == "sheddable":
                expected = Reason.OVERLOADED
            elif len(places) + for_others >= limit:
                expected = Reason.WEBSOCKET_LIMIT
            assert reason is expected
            if reason is None:
                held.append(what)
        assert connections.slots.in_use == len(held) - held.count(EXEMPT) <= limit
        assert connections.exempt == held.count(EXEMPT)
    for route in connections.entries.all():
        assert route.arrived == route.admitted + sum(route.refused.values())
        assert route.admitted == sum(route.outcomes.values()) + held.count(route.priority)


def test_nothing_is_given_back_twice() -> None:
    connections = made(2)
    for priority in ("normal", EXEMPT):
        assert ask(connections, priority) is None
        connections.end(1.0, entry(connections, priority), "completed")
        with pytest.raises(RuntimeError, match="given back"):
            connections.end(1.0, entry(connections, priority), "completed")


def test_the_only_class_is_not_the_lowest() -> None:
    connections = made(2, classes=[PriorityClass("only")], default_class="only")
    assert ask(connections, "only", overloaded=True) is None


def test_who_is_refused_comes_back_when_a_place_usually_comes_free() -> None:
    """The typical gap between two endings, or the present one if it lasts longer; jittered by 0.8 to 1.4."""
    connections = made(1)
    route = entry(connections, "normal")

    def told(now: float, **more: bool) -> set[int | None]:
        asked = [
            connections.arrive(
                now, route, draining=more.get("draining", False), overloaded=more.get("overloaded", False)
            )
            for _ in range(200)
        ]
        assert all(each.reason is not None for each in asked)
        return {each.retry_after for each in asked}

    connections.arrive(0.0, route, draining=False, overloaded=False)
    assert told(5.0) == {1, 2}  # nothing is known
    for now in range(10, 110, 10):
        connections.end(float(now), route, "completed")
        connections.arrive(float(now), route, draining=False, overloaded=False)
    assert told(100.0) == set(range(9, 15))
    assert told(130.0) == set(range(25, 43))
    assert told(1000.0) == set(range(35, 61))
    assert told(1000.0, draining=True) == {1, 2}


def test_other_numbers_keep_the_open_ones_and_what_was_counted() -> None:
    classes = (PriorityClass("critical"), PriorityClass("normal"))
    connections = made(4, classes=classes)
    for _ in range(4):
        assert ask(connections) is None
    reserving = (PriorityClass("critical", reserved=20), PriorityClass("normal"))
    policy = ServerPolicy(limit=40, classes=reserving, exempt_limit=1, deadline_default=3.0)
    connections.change(policy, 6)
    assert ask(connections) is Reason.WEBSOCKET_LIMIT  # half of six is kept for the other class
    for _ in range(2):
        assert ask(connections, "critical") is None
    assert ask(connections, "critical") is Reason.WEBSOCKET_LIMIT  # six are open
    assert ask(connections, EXEMPT) is None
    assert ask(connections, EXEMPT) is Reason.EXEMPT_LIMIT
    assert [each.slots for each in connections.slots.classes] == [2, 4]
    # The route has another deadline now, so it is another entry; the one before goes on counting its own.
    assert sum(each.admitted for each in connections.entries.all()) == 7
    connections.end(1.0, entry(connections, "normal"), "completed")
    assert ask(connections, "critical") is None


def test_in_a_forked_child_nothing_is_open() -> None:
    connections = made(2, exempt_limit=1)
    for priority in ("normal", "normal", EXEMPT):
        assert ask(connections, priority) is None
    connections.end(1.0, entry(connections, "normal"), "completed")
    connections.restart()
    assert (connections.slots.in_use, connections.exempt) == (0, 0)
    assert [each.admitted for each in connections.entries.all()] == [0, 0]
    for priority in ("normal", "normal", EXEMPT):
        assert ask(connections, priority) is None
    assert ask(connections) is Reason.WEBSOCKET_LIMIT
