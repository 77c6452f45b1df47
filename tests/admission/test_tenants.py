"""Tenants: turns inside a class, a bounded share of the queue, and nothing kept of those that are gone."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.admission.tenants import TenantTurns
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.rejection import Reason
from tests.admission.desk import PATIENT, Desk

ROUTE = Desk().route()


def _waiter(tenant: str | None, cost: int = 1) -> Waiter:
    return Waiter(ROUTE, cost, 0.0, 3600.0, 3600.0, tenant)


def _names(waiters: tuple[Waiter, ...]) -> list[str | None]:
    return [waiter.tenant for waiter in waiters]


def _known(desk: Desk) -> int:
    """Return how many tenants of the class `normal` are remembered."""
    turns = desk.controller.classes[1].tenants
    assert turns is not None
    return len(turns)


def _work_off(desk: Desk, running: list[str | None]) -> list[str | None]:
    """End the oldest run again and again; return whose waiters were granted, in order."""
    served: list[str | None] = []
    while running:
        for waiter in desk.release(1.0, tenant=running.pop(0)):
            assert waiter.state is WaiterState.GRANTED
            assert desk.controller.begin(1.0, waiter).admitted
            served.append(waiter.tenant)
            running.append(waiter.tenant)
    return served


# -- turns


def test_tenants_take_turns_whoever_came_first() -> None:
    desk = Desk(limit=1, **PATIENT)
    desk.admit(0.0, tenant="a")
    for tenant in ("a", "a", "a", "b", "b", "c"):
        desk.queue(0.0, tenant=tenant)
    assert _work_off(desk, ["a"]) == ["b", "c", "a", "b", "a", "a"], (
        "whoever has just been served is the last"
    )


def test_within_a_tenant_the_oldest_is_served_first() -> None:
    desk = Desk(limit=1, **PATIENT)
    desk.admit(0.0, tenant="b")
    first, second = desk.queue(0.0, tenant="a"), desk.queue(0.1, tenant="a")
    assert desk.release(1.0, tenant="b") == (first,)
    assert desk.release(1.0, tenant="a") == (second,)


def test_requests_without_a_tenant_are_one_tenant_of_their_own() -> None:
    desk = Desk(limit=1, **PATIENT)
    desk.admit(0.0)
    for tenant in (None, None, "a", None, "a"):
        desk.queue(0.0, tenant=tenant)
    assert _work_off(desk, [None]) == ["a", None, "a", None, None]


def test_without_tenants_the_order_is_that_of_arrival_and_nothing_is_kept() -> None:
    desk = Desk(limit=1, **PATIENT)
    desk.admit(0.0)
    waiters = [desk.queue(0.0) for _ in range(5)]
    assert [desk.release(1.0)[0] for _ in range(5)] == waiters
    assert [state.tenants for state in desk.controller.classes] == [None, None, None]


def test_who_holds_all_the_slots_lets_the_others_go_first() -> None:
    """Its runs may be ten times as long as theirs: what counts is what runs."""
    desk = Desk(limit=4, **PATIENT)
    for _ in range(4):
        desk.admit(0.0, tenant="a")
    for tenant in ("a", "a", "a", "b", "b", "b"):
        desk.queue(0.0, tenant=tenant)
    assert [_names(desk.release(1.0, tenant="a")) for _ in range(2)] == [["b"], ["b"]]
    # Now they hold two slots each.
    assert _names(desk.release(2.0, tenant="b")) == ["b"]
    assert _names(desk.release(3.0, tenant="a")) == ["a"]
    assert _names(desk.release(4.0, tenant="a")) == ["a"]


def test_slots_count_not_requests() -> None:
    desk = Desk(limit=4, **PATIENT)
    desk.admit(0.0, tenant="a", cost=3)
    desk.admit(0.0, tenant="b")
    for tenant in ("a", "a", "b", "b"):
        desk.queue(0.0, tenant=tenant)
    assert _names(desk.release(1.0, tenant="b")) == ["b"]
    assert _names(desk.release(2.0, tenant="b")) == ["b"]
    assert _names(desk.release(3.0, tenant="a", cost=3)) == ["a", "a"]


def test_a_tenant_that_was_idle_has_no_credit() -> None:
    desk = Desk(limit=1, **PATIENT)
    desk.admit(0.0, tenant="a")
    for _ in range(6):
        desk.queue(0.0, tenant="a")
    running = "a"
    for _ in range(3):
        (granted,) = desk.release(1.0, tenant=running)
        running = granted.tenant or ""
    for _ in range(3):
        desk.queue(2.0, tenant="b")
    assert _work_off(desk, [running]) == ["b", "a", "b", "a", "b", "a"]


def test_slots_that_a_grant_gives_back_unused_are_taken_from_its_tenant() -> None:
    desk = Desk(limit=2, max_wait=60.0, wait_share=1.0, queue=20)
    desk.admit(0.0, tenant="a")
    desk.admit(0.0, tenant="a")
    late = desk.queue(0.0, tenant="b", budget=5.0)
    gone = desk.queue(0.0, tenant="c")
    assert desk.release(1.0, tenant="a") == (late,)
    assert desk.release(1.0, tenant="a") == (gone,)
    assert desk.controller.begin(6.0, late).reason is Reason.EXPIRED_IN_QUEUE
    desk.controller.leave(6.0, gone)
    assert _known(desk) == 0
    assert desk.controller.slots.in_use == 0


def test_slots_taken_under_one_name_cannot_be_given_back_under_another() -> None:
    desk = Desk(limit=2)
    desk.admit(0.0, tenant="a")
    with pytest.raises(RuntimeError, match=r"1 slots of the tenant 'b' were given back, but it holds 0"):
        desk.release(1.0, tenant="b")


def test_slots_taken_under_one_name_cannot_be_given_back_under_another_that_waits() -> None:
    desk = Desk(limit=1)
    desk.admit(0.0, tenant="a")
    desk.queue(0.0, tenant="b")
    with pytest.raises(RuntimeError, match=r"1 slots of the tenant 'b' were given back, but it holds 0"):
        desk.release(1.0, tenant="b")


def test_an_expensive_first_waiter_stays_the_first_when_another_tenant_comes() -> None:
    """Otherwise slots would never be saved up for it: a cheap request of a new tenant would always come before."""
    desk = Desk(limit=4, **PATIENT)
    for tenant in ("a", "b", "b", "c"):
        desk.admit(0.0, tenant=tenant)
    big = desk.queue(0.0, tenant="d", cost=4)
    assert desk.release(1.0, tenant="c") == ()
    small = desk.queue(1.0, tenant="e")
    for tenant in ("a", "b"):
        assert desk.release(2.0, tenant=tenant) == ()
    assert desk.release(2.0, tenant="b") == (big,)
    assert desk.release(3.0, tenant="d", cost=4) == (small,)


def test_an_expensive_waiter_that_another_class_has_passed_stays_the_first() -> None:
    """No slot is free at the end of that, so it is the passing that tells."""
    desk = Desk(limit=4, classes=(PriorityClass("x"), PriorityClass("normal")), **PATIENT)
    desk.admit(0.0, "x", tenant="a")
    for _ in range(3):
        desk.admit(0.0)
    big = desk.queue(0.0, "x", tenant="a", cost=4)
    passing = desk.queue(0.0)
    assert desk.release(1.0) == (passing,)
    small = desk.queue(1.0, "x", tenant="b")
    assert [desk.release(2.0) for _ in range(3)] == [(), (), ()]
    assert desk.release(3.0, "x", tenant="a") == (big,)
    assert small.state is WaiterState.WAITING


# -- the share of the queue


def test_a_tenant_with_fewer_places_takes_one_from_the_largest() -> None:
    desk = Desk(limit=1, queue=6, **PATIENT)
    desk.admit(0.0, tenant="a")
    hog = [desk.queue(0.1 * i, tenant="a") for i in range(6)]
    assert desk.arrive(1.0, tenant="a").reason is Reason.QUEUE_FULL, "nobody else holds more"
    lost = [desk.arrive(1.0, tenant="b").settled for _ in range(3)]
    assert lost == [(hog[5],), (hog[4],), (hog[3],)], "the newest of the largest tenant"
    assert {waiter.reason for waiter in hog[3:]} == {Reason.TENANT_SHARE}
    assert all(waiter.retry_after is not None for waiter in hog[3:])
    assert desk.arrive(1.0, tenant="b").reason is Reason.QUEUE_FULL, "three each"
    assert desk.arrive(1.0, tenant="a").reason is Reason.QUEUE_FULL
    assert len(desk.arrive(1.0, tenant="c").settled) == 1
    assert len(desk.arrive(1.0, tenant="c").settled) == 1
    assert desk.arrive(1.0, tenant="c").reason is Reason.QUEUE_FULL, "two each"
    assert desk.controller.waiting == 6


def test_of_an_odd_number_of_places_nobody_takes_the_last_from_the_other() -> None:
    """They would go on pushing each other out for ever."""
    desk = Desk(limit=1, queue=5, **PATIENT)
    desk.admit(0.0, tenant="a")
    for _ in range(5):
        desk.queue(0.0, tenant="a")
    assert [len(desk.arrive(1.0, tenant="b").settled) for _ in range(2)] == [1, 1]
    assert desk.arrive(1.0, tenant="b").reason is Reason.QUEUE_FULL, "two and three"


def test_a_bounded_class_is_shared_too_while_the_queue_has_places() -> None:
    desk = Desk(limit=1, queue=20, classes=(PriorityClass("normal", queue_length=3),), **PATIENT)
    desk.admit(0.0)
    hog = [desk.queue(0.0) for _ in range(3)]
    assert desk.arrive(0.0).reason is Reason.QUEUE_FULL
    assert desk.arrive(0.0, tenant="a").settled == (hog[2],)


def test_a_higher_class_pushes_out_the_newest_of_the_largest_tenant() -> None:
    desk = Desk(limit=1, queue=6, **PATIENT)
    desk.admit(0.0)
    hog = [desk.queue(0.0, "sheddable", tenant="a") for _ in range(4)]
    desk.queue(0.1, "sheddable", tenant="b")
    desk.queue(0.2, "sheddable", tenant="c")
    settled = desk.arrive(1.0, "critical", tenant="b").settled
    assert settled == (hog[3],)
    assert hog[3].reason is Reason.PUSHED_OUT


def test_while_a_class_is_shed_its_own_places_are_shared() -> None:
    desk = Desk(limit=1, queue=26, **PATIENT)
    desk.admit(0.0)
    desk.controller.overloaded = True
    hog = [desk.queue(0.0, "sheddable", tenant="a") for _ in range(2)]
    assert desk.arrive(0.0, "sheddable", tenant="a").reason is Reason.OVERLOADED
    assert desk.arrive(0.0, "sheddable", tenant="b").settled == (hog[1],)
    assert desk.arrive(0.0, "sheddable", tenant="c").reason is Reason.OVERLOADED, "one each"


def test_the_wait_of_a_small_tenant_is_not_predicted_from_the_backlog_of_a_large_one() -> None:
    desk = Desk(limit=1, queue=50, **PATIENT)
    desk.learn(0.1)
    desk.admit(0.0, tenant="a")
    for _ in range(40):
        desk.queue(0.0, tenant="a")
    assert desk.arrive(0.0, tenant="a", budget=2.0).reason is Reason.PREDICTED_LATE
    assert desk.arrive(0.0, tenant="b", budget=2.0).waiter is not None
    assert desk.arrive(0.0, tenant="b", budget=0.25).reason is Reason.PREDICTED_LATE, (
        "a turn of each, its own, a run"
    )


def test_the_wait_of_a_small_tenant_of_two_classes_is_not_predicted_from_their_backlog() -> None:
    desk = Desk(limit=1, queue=50, **PATIENT)
    desk.learn(0.1, "sheddable")
    desk.admit(0.0, "sheddable", tenant="a")
    for _ in range(20):
        desk.queue(0.0, "sheddable", tenant="a")
    desk.queue(0.0, "critical")
    assert desk.arrive(0.0, "sheddable", tenant="a", budget=1.0).reason is Reason.PREDICTED_LATE
    assert desk.arrive(0.0, "sheddable", tenant="b", budget=0.5).waiter is not None


def test_many_tenants_that_wait_with_one_request_each_are_a_backlog() -> None:
    desk = Desk(limit=1, queue=50, **PATIENT)
    desk.learn(0.1)
    desk.admit(0.0)
    for number in range(40):
        desk.queue(0.0, tenant=f"tenant {number}")
    assert desk.arrive(0.0, tenant="new", budget=2.0).reason is Reason.PREDICTED_LATE
    assert desk.arrive(0.0, tenant="new", budget=5.0).waiter is not None


# -- what is kept


def test_of_tenants_that_are_gone_nothing_is_left() -> None:
    desk = Desk(limit=2, queue=4)
    turns: TenantTurns | None = None
    for number in range(20_000):
        name = f"tenant {number}"
        desk.admit(0.0, tenant=name)
        desk.admit(0.0, tenant=name)
        waiter = desk.queue(0.0, tenant=f"{name} waits")
        (granted,) = desk.release(0.0, tenant=name)
        desk.release(0.0, tenant=name)
        desk.controller.leave(0.0, granted)
        assert granted is waiter
        turns = desk.controller.classes[1].tenants
    assert turns is not None
    assert (len(turns), turns._by_slots, turns._by_places, turns._most) == (0, {}, {}, 0)


def test_requests_from_before_the_first_tenant_keep_their_places() -> None:
    desk = Desk(limit=3, **PATIENT)
    desk.admit(0.0)
    desk.admit(0.0)
    desk.admit(0.0)
    for _ in range(2):
        desk.queue(0.0)
    desk.queue(0.0, tenant="a")
    # Three slots are held without a tenant, so the tenant that holds none goes first.
    assert _work_off(desk, [None, None, None]) == ["a", None, None]
    assert _known(desk) == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "remove", "serve", "give back"]), st.integers(0, 5), st.integers(1, 3)
    ),
    max_size=60,
)


@given(STEPS)
def test_turns_agree_with_an_account_of_lists(steps: list[tuple[str, int, int]]) -> None:
    turns = TenantTurns((), 0)
    waiting: list[Waiter] = []
    running: list[Waiter] = []
    since: dict[str | None, int] = {}  # the step at which a waiting tenant got its place among its equals

    def holds(name: str | None) -> int:
        return sum(waiter.cost for waiter in running if waiter.tenant == name)

    for number, (what, pick, cost) in enumerate(steps):
        if what == "append":
            waiter = _waiter(None if pick == 0 else f"tenant {pick}", cost)
            turns.append(waiter)
            waiting.append(waiter)
            since.setdefault(waiter.tenant, number)
        elif what == "remove" and waiting:
            waiter = waiting.pop(pick % len(waiting))
            turns.remove(waiter)
        elif what == "serve" and waiting:
            waiter = turns.first(newest_first=cost == 3)
            turns.took(waiter.tenant, waiter.cost)
            turns.remove(waiter)
            waiting.remove(waiter)
            running.append(waiter)
            since[waiter.tenant] = number
        elif what == "give back" and running:
            waiter = running.pop(pick % len(running))
            turns.gave_back(waiter.tenant, waiter.cost)
            if waiter.tenant in since:
                since[waiter.tenant] = number
        places = Counter(waiter.tenant for waiter in waiting)
        since = {name: at for name, at in since.items() if name in places}
        assert len(turns) == len({waiter.tenant for waiter in (*waiting, *running)})
        for name in (None, "tenant 1", "tenant 2", "never seen"):
            own = [waiter.cost for waiter in waiting if waiter.tenant == name]
            rivals = sum(other != name and holds(other) <= holds(name) for other in places)
            assert turns.ahead(name) == rivals + sum(own)
            assert turns.may_displace(name) is (places[name] + 1 < max(places.values(), default=0))
        if waiting:
            turn = min(places, key=lambda name: (holds(name), since[name]))
            line = [waiter for waiter in waiting if waiter.tenant == turn]
            assert turns.first(newest_first=False) is line[0]
            assert turns.first(newest_first=True) is line[-1]
            loser = turns.last(newest_first=False)
            assert places[loser.tenant] == max(places.values())
            line = [waiter for waiter in waiting if waiter.tenant == loser.tenant]
            assert loser is line[-1]
            assert turns.last(newest_first=True) is line[0]


# -- what it costs


def _instructions(work: Callable[[], Any]) -> int:
    """Count the bytecode instructions that a call executes in Python code."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # what listens to it is Python code, too
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def _cost(waiters: int, tenants: int) -> dict[str, int]:
    """Instructions of each verb with that many waiters of that many tenants (0: nobody names one)."""
    # A refusal by the prediction would hide the rest, so nothing is learned.
    desk = Desk(limit=10, queue=waiters + 1, **PATIENT)

    def name(number: int) -> str | None:
        return f"tenant {number % tenants}" if tenants else None

    for number in range(10):
        desk.admit(0.0, tenant=name(number))
    for number in range(waiters):
        desk.queue(0.0, tenant=name(number))
    late: list[Waiter] = []
    return {
        "arrive": _instructions(lambda: late.append(desk.queue(1.0, tenant=name(1)))),
        "refused or pushing": _instructions(lambda: desk.arrive(1.0, tenant="new" if tenants else None)),
        "leave": _instructions(lambda: desk.controller.leave(2.0, late[0])),
        "release": _instructions(lambda: desk.release(3.0, tenant=name(2))),
    }


@pytest.mark.parametrize(("tenants", "more"), [(0, 0), (1, 1), (10, 10), (10, 100_000)])
def test_a_verb_costs_the_same_with_ten_waiters_and_with_a_hundred_thousand(tenants: int, more: int) -> None:
    _cost(10, tenants)  # Python 3.12 tells too little of what it traces for the first time
    few, many = _cost(10, tenants), _cost(100_000, more)
    assert {verb: many[verb] for verb in few if many[verb] > 1.2 * few[verb]} == {}


def test_the_numbers_that_tenants_are_grouped_by_stay_few() -> None:
    """Different numbers of slots add up to the limit, so there are at most some sqrt(2 x limit) of them."""
    turns = TenantTurns((), 0)
    for held in range(100):
        for _ in range(50):
            turns.append(_waiter(f"{held}"))
        if held:
            turns.took(f"{held}", held)
    assert len(turns._by_slots) == 100
    assert sum(range(100)) == 4950, "so many slots it takes"
    assert len(turns._by_places) == 1
