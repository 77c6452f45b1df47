"""Other numbers for a controller at work."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.admission.overload_policy import OverloadPolicy
from resilient_mw.admission.reload import check_reload, reload
from resilient_mw.core.priority import DEFAULT_CLASSES, PriorityClass
from resilient_mw.core.rejection import Reason
from tests.admission.desk import PATIENT, Desk


def _reload(desk: Desk, now: float, **changes: Any) -> tuple[Waiter, ...]:
    desk.policy = desk.policy.with_changes(changes)
    desk.entries = desk.entries.under(desk.policy)
    return reload(desk.controller, now, desk.policy)


def _classes(**reserved: int) -> tuple[PriorityClass, ...]:
    return tuple(
        PriorityClass(each.name, each.weight, reserved.get(each.name, 0)) for each in DEFAULT_CLASSES
    )


def test_b41_a_larger_limit_lets_waiters_in_at_once_and_keeps_the_running_ones_counted() -> None:
    desk = Desk(limit=1, **PATIENT)
    desk.admit(0.0)
    waiters = [desk.queue(0.0) for _ in range(3)]
    assert _reload(desk, 1.0, limit=3) == tuple(waiters[:2])
    assert (desk.controller.slots.in_use, desk.controller.waiting) == (3, 1)


def test_b41_with_a_smaller_limit_nothing_new_starts_until_enough_has_come_back() -> None:
    desk = Desk(limit=4, **PATIENT)
    for _ in range(4):
        desk.admit(0.0)
    waiter = desk.queue(0.0)
    assert _reload(desk, 1.0, limit=2) == ()
    assert (desk.controller.slots.in_use, desk.controller.slots.limit) == (4, 2)
    assert desk.release(2.0) == desk.release(2.0) == ()
    assert desk.release(2.0) == (waiter,)
    assert desk.controller.slots.in_use == 2
    for _ in range(2):
        desk.release(3.0)
    assert desk.controller.slots.in_use == 0


def test_waiters_stay_in_a_queue_that_is_too_short_for_them_now() -> None:
    desk = Desk(limit=1, queue=4, **PATIENT)
    desk.admit(0.0)
    waiters = [desk.queue(0.0) for _ in range(4)]
    assert _reload(desk, 1.0, queue=1) == ()
    assert desk.arrive(1.0).reason is Reason.QUEUE_FULL
    for waiter in waiters:
        assert desk.release(2.0) == (waiter,)


def test_waits_that_have_begun_keep_their_bound() -> None:
    desk = Desk(limit=1, max_wait=10.0, wait_share=1.0)
    desk.admit(0.0)
    old = desk.queue(0.0)
    _reload(desk, 1.0, max_wait=2.0)
    assert desk.queue(1.0).give_up_at == 3.0
    assert old.give_up_at == 10.0


def test_a_new_reserve_counts_what_its_class_holds_already() -> None:
    desk = Desk(limit=4, queue=0, **PATIENT)
    desk.admit(0.0, "critical")
    _reload(desk, 1.0, classes=_classes(critical=2))
    desk.admit(1.0)
    desk.admit(1.0)
    assert desk.arrive(1.0).reason is Reason.QUEUE_FULL  # one is kept for critical
    desk.admit(1.0, "critical")
    _reload(desk, 2.0, classes=_classes())
    desk.release(2.0, "critical")
    desk.admit(2.0)


def test_new_weights_decide_the_next_turns() -> None:
    desk = Desk(limit=1, queue=100, **PATIENT)
    desk.admit(0.0, "critical")
    _reload(
        desk,
        0.0,
        classes=(PriorityClass("critical", 1), PriorityClass("normal", 9), PriorityClass("sheddable", 1)),
    )
    for _ in range(10):
        desk.queue(0.0, "critical")
        desk.queue(0.0, "normal")
    served, name = [], "critical"
    for _ in range(10):
        (waiter,) = desk.release(1.0, name)
        name = waiter.route.priority
        served.append(name)
    assert served.count("normal") >= 8


def test_a_waiter_that_can_never_fit_now_is_refused_at_once_and_blocks_nobody() -> None:
    desk = Desk(limit=4, **PATIENT)
    for _ in range(4):
        desk.admit(0.0)
    large, small = desk.queue(0.0, cost=4), desk.queue(0.0)
    assert _reload(desk, 1.0, limit=2) == (large,)
    assert (large.state, large.reason) == (WaiterState.REFUSED, Reason.QUEUE_TIMEOUT)
    for _ in range(2):
        assert desk.release(2.0) == ()
    assert desk.release(2.0) == (small,)


def test_the_ramp_aims_at_the_new_limit() -> None:
    desk = Desk(limit=20, ramp=10.0, queue=0, **PATIENT)
    desk.admit(0.0)
    _reload(desk, 5.0, limit=40)
    for _ in range(21):
        desk.admit(5.0)
    assert desk.arrive(5.0).reason is Reason.QUEUE_FULL
    _reload(desk, 6.0, limit=10)
    assert desk.controller.slots.limit == 1
    assert desk.arrive(10.0).reason is Reason.QUEUE_FULL
    assert desk.controller.slots.limit == 10


def test_a_reload_does_not_begin_the_ramp() -> None:
    desk = Desk(limit=20, ramp=10.0, queue=0, **PATIENT)
    _reload(desk, 0.0, limit=40)
    for _ in range(4):
        desk.admit(100.0)
    assert desk.arrive(100.0).reason is Reason.QUEUE_FULL


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"name": "other"}, "name='other' cannot be reloaded"),
        ({"overload": None}, "overload=None cannot be reloaded"),
        ({"overload": OverloadPolicy(rise=0.5)}, "overload=.* cannot be reloaded"),
        ({"websocket_limit": None}, "websocket_limit=None cannot be reloaded, .* keep 512"),
        ({"ramp": 5.0}, "ramp=5.0 cannot be reloaded"),
        ({"classes": DEFAULT_CLASSES[:2]}, "classes=.* cannot be reloaded"),
        ({"classes": tuple(reversed(DEFAULT_CLASSES))}, "classes=.* cannot be reloaded"),
        ({"classes": [PriorityClass("a"), *DEFAULT_CLASSES]}, "classes=.* cannot be reloaded"),
    ],
)
def test_what_cannot_be_reloaded_is_named(changes: dict[str, Any], named: str) -> None:
    before = ServerPolicy()
    with pytest.raises(ValueError, match=named):
        check_reload(before, before.with_changes(changes))


def test_a_limit_of_websockets_may_become_another_number_and_nothing_may_become_one() -> None:
    check_reload(ServerPolicy(websocket_limit=1), ServerPolicy(websocket_limit=2))
    check_reload(ServerPolicy(websocket_limit=None), ServerPolicy(websocket_limit=None))
    with pytest.raises(ValueError, match="websocket_limit=1 cannot be reloaded"):
        check_reload(ServerPolicy(websocket_limit=None), ServerPolicy(websocket_limit=1))


def test_tenants_keep_what_they_hold_and_their_turns() -> None:
    desk = Desk(limit=2, **PATIENT)
    desk.admit(0.0, tenant="a")
    desk.admit(0.0, tenant="a")
    mine, yours = desk.queue(0.0, tenant="a"), desk.queue(0.0, tenant="b")
    assert _reload(desk, 1.0, limit=3) == (yours,)
    assert desk.release(1.0, tenant="b") == (mine,)
    for _ in range(3):
        desk.release(2.0, tenant="a")
    (tenants,) = [each.tenants for each in desk.controller.classes if each.tenants is not None]
    assert len(tenants) == 0


@pytest.mark.parametrize("before", ["fifo", "newest_first"])
def test_the_order_of_a_class_may_change_while_its_queue_stands(before: str) -> None:
    other = "fifo" if before == "newest_first" else "newest_first"
    orders = {order: [PriorityClass("normal", queue_order=order)] for order in ("fifo", "newest_first")}
    desk = Desk(limit=1, queue=20, classes=orders[before], default_class="normal", **PATIENT)
    desk.learn(0.01)
    served = []
    for order in (before, other):
        _reload(desk, 0.0, classes=orders[order])
        desk.admit(0.0)
        waiters = [desk.queue(0.0) for _ in range(6)]
        now = 1.0
        for _ in range(3):  # it has been too old for long enough
            desk.release(now)
            now += 0.2
        served.append([each.state is WaiterState.GRANTED for each in waiters])
        while desk.controller.slots.in_use:
            desk.release(now)
    assert served[0 if before == "fifo" else 1] == [True, True, True, False, False, False]
    assert served[1 if before == "fifo" else 0] != [True, True, True, False, False, False]


def test_an_equal_overload_policy_is_no_change() -> None:
    check_reload(ServerPolicy(overload=OverloadPolicy()), ServerPolicy(overload=OverloadPolicy()))


class Day:
    """Requests come, wait, run, leave and end at random, and now and then the policy changes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.desk = Desk(limit=3, queue=6, max_wait=2.0, wait_share=1.0)
        self.now = 0.0
        self.running: list[tuple[str, int]] = []
        self.waiting: list[Waiter] = []

    def step(self) -> None:
        self.now += self.random.choice([0.0, 0.05, 0.3])
        (what,) = self.random.choices(
            [self.change, self.end, self.leave, self.arrive, self.tick], [15, 30, 5, 40, 10]
        )
        self.settle(what())
        self.check()

    def change(self) -> tuple[Waiter, ...]:
        limit = self.random.randint(2, 8)
        return _reload(
            self.desk, self.now, limit=limit, queue=self.random.randint(0, 8),
            max_wait=self.random.choice([0.5, 2.0, 9.0]), classes=_classes(critical=self.random.randint(0, limit - 1)),
        )  # fmt: skip

    def end(self) -> tuple[Waiter, ...]:
        if not self.running:
            return ()
        name, cost = self.running.pop(self.random.randrange(len(self.running)))
        return self.desk.release(self.now, name, cost=cost)

    def leave(self) -> tuple[Waiter, ...]:
        if not self.waiting:
            return ()
        waiter = self.waiting.pop(self.random.randrange(len(self.waiting)))
        return self.desk.controller.leave(self.now, waiter)

    def arrive(self) -> tuple[Waiter, ...]:
        name = self.random.choice([each.name for each in DEFAULT_CLASSES])
        cost = self.random.randint(1, min(2, self.desk.policy.most_cost(name)))
        decision = self.desk.arrive(self.now, name, cost=cost)
        if decision.admitted:
            self.running.append((name, cost))
        elif decision.waiter is not None:
            self.waiting.append(decision.waiter)
        return decision.settled

    def tick(self) -> tuple[Waiter, ...]:
        return self.desk.controller.tick(self.now)

    def settle(self, settled: tuple[Waiter, ...]) -> None:
        for waiter in settled:
            self.waiting.remove(waiter)
            if waiter.state is WaiterState.GRANTED and self.desk.controller.begin(self.now, waiter).admitted:
                self.running.append((waiter.route.priority, waiter.cost))

    def check(self) -> None:
        controller = self.desk.controller
        assert controller.slots.in_use == sum(cost for _, cost in self.running)
        assert controller.waiting == len(self.waiting)
        for state in controller.classes:
            assert state.slots == sum(cost for name, cost in self.running if name == state.priority.name)
            assert state.unfilled == max(0, state.priority.reserved - state.slots)
        assert controller.slots.unfilled == sum(state.unfilled for state in controller.classes)
        for state in (
            controller.classes
        ):  # nobody waits while there is room for him, unless slots are saved up for another
            first = state.oldest() if state.queue else None
            assert first is None or not controller.slots.fits(state, first.cost)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_slots_are_neither_lost_nor_made_whatever_is_reloaded_when(seed: int) -> None:
    day = Day(seed)
    for _ in range(150):
        day.step()
    while day.running or day.waiting:
        day.settle(day.end() if day.running else day.leave())
        day.check()
    assert (day.desk.controller.slots.in_use, day.desk.controller.waiting) == (0, 0)
