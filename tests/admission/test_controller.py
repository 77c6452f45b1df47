"""Every verdict and every reason of the admission controller."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import pytest

from resilient_mw.admission.decision import ADMITTED, NOBODY
from resilient_mw.admission.entry import COMPLETED, Waiter, WaiterState
from resilient_mw.admission.forecast import ENOUGH_TO_LEARN
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.priority import CRITICAL, DEFAULT_CLASSES, NORMAL, SHEDDABLE, PriorityClass
from resilient_mw.core.rejection import Reason
from tests.admission.desk import PATIENT, Desk

# -- slots


def test_as_many_as_the_limit_run_and_the_next_one_waits() -> None:
    desk = Desk(limit=3)
    assert [desk.arrive(0.0).admitted for _ in range(3)] == [True, True, True]
    decision = desk.arrive(0.0)
    assert not decision.admitted
    assert decision.waiter is not None
    assert decision.waiter.state is WaiterState.WAITING
    assert desk.controller.slots.in_use == 3


def test_the_automatic_limit_is_forty() -> None:
    desk = Desk(queue=0)
    assert [desk.arrive(0.0).admitted for _ in range(41)] == [True] * 40 + [False]


def test_a_released_slot_goes_to_the_first_waiter_at_once() -> None:
    desk = Desk(limit=1)
    desk.admit(0.0)
    first, second = desk.queue(0.1), desk.queue(0.2)
    assert desk.release(0.3) == (first,)
    assert first.state is WaiterState.GRANTED
    assert second.state is WaiterState.WAITING
    assert desk.controller.begin(0.3, first) is ADMITTED
    assert desk.release(0.4) == (second,)


def test_a_granted_slot_is_taken_before_its_waiter_begins() -> None:
    """B37: nobody slips in between the grant and the wake-up."""
    desk = Desk(limit=1, queue=1)
    desk.admit(0.0)
    desk.queue(0.1)
    desk.release(0.2)
    assert not desk.arrive(0.2).admitted


def test_the_hot_verbs_return_shared_constants() -> None:
    desk = Desk(limit=2)
    assert desk.arrive(0.0) is ADMITTED
    assert desk.release(0.1) is NOBODY
    assert desk.arrive(0.0, "exempt") is ADMITTED
    assert desk.release(0.1, "exempt") is NOBODY
    assert desk.controller.tick(0.2) is NOBODY


def test_a_request_takes_as_many_slots_as_it_costs() -> None:
    desk = Desk(limit=10)
    desk.admit(0.0, cost=6)
    assert not desk.arrive(0.0, cost=5).admitted
    assert desk.controller.slots.in_use == 6
    assert len(desk.release(0.1, cost=6)) == 1
    assert desk.controller.slots.in_use == 5


def test_one_release_can_start_several_waiters() -> None:
    desk = Desk(limit=5, queue=10)
    desk.admit(0.0, cost=5)
    waiters = [desk.queue(0.1) for _ in range(7)]
    assert desk.release(0.2, cost=5) == tuple(waiters[:5])


def test_nobody_passes_a_waiter_of_his_own_class() -> None:
    desk = Desk(limit=5)
    desk.admit(0.0, cost=3)
    big = desk.queue(0.1, cost=5)
    small = desk.queue(0.1, cost=1)  # it would fit
    assert desk.release(0.2, cost=3) == (big,)
    assert small.state is WaiterState.WAITING


def test_slots_given_back_twice_are_an_error() -> None:
    desk = Desk(limit=3)
    desk.admit(0.0)
    desk.admit(0.0, "critical")
    desk.release(0.1)
    with pytest.raises(RuntimeError, match="'normal' were given back, but it holds 0"):
        desk.release(0.2)
    assert desk.controller.slots.in_use == 1


def test_slots_that_are_not_held_are_not_given_back_in_one_step() -> None:
    desk = Desk(limit=3)
    desk.admit(0.0, "critical")
    with pytest.raises(RuntimeError, match="'normal' were given back, but it holds 0"):
        desk.controller.end(0.1, desk.route(), 1, COMPLETED, 0.1)
    assert desk.controller.slots.in_use == 1


# -- reserved slots

RESERVING = (
    PriorityClass("critical", weight=8, reserved=2),
    PriorityClass("normal", weight=4, reserved=1),
    SHEDDABLE,
)


def test_reserved_slots_stay_free_for_their_class() -> None:
    desk = Desk(limit=5, queue=0, classes=RESERVING)
    assert [desk.arrive(0.0, "sheddable").admitted for _ in range(3)] == [True, True, False]
    assert [desk.arrive(0.0, "normal").admitted for _ in range(2)] == [True, False]
    assert [desk.arrive(0.0, "critical").admitted for _ in range(3)] == [True, True, False]


def test_a_class_fills_its_reserve_and_then_the_shared_slots() -> None:
    desk = Desk(limit=5, queue=0, classes=RESERVING)
    assert [desk.arrive(0.0, "critical").admitted for _ in range(5)] == [True] * 4 + [False]
    assert desk.arrive(0.0, "normal").admitted, "the slot that it reserved"


def test_a_reserved_slot_that_comes_free_is_kept_for_its_class() -> None:
    desk = Desk(limit=3, classes=(*RESERVING[:1], NORMAL, SHEDDABLE))
    for _ in range(2):
        desk.admit(0.0, "critical")
    desk.admit(0.0)
    waiting = desk.queue(0.1)
    assert desk.release(0.2, "critical") == NOBODY, "only two critical ones may run, whatever the others want"
    assert desk.release(0.3) == (waiting,)


def test_a_waiter_may_start_in_its_own_reserve_while_slots_are_saved_up_for_another() -> None:
    classes = (PriorityClass("critical", weight=8, reserved=1), NORMAL, SHEDDABLE)
    desk = Desk(limit=4, queue=20, classes=classes, **PATIENT)
    for _ in range(3):
        desk.admit(0.0, "sheddable")
    big = desk.queue(0.0, cost=3)
    for step in range(1, 20):  # sheddable traffic passes the big one until it may no longer
        desk.arrive(step / 10, "sheddable")
        desk.release(step / 10, "sheddable")
        if desk.held("sheddable") == 2:
            break
    assert desk.held("sheddable") == 2, "a slot is being saved up"
    desk.admit(3.0, "critical")
    for _ in range(2):
        desk.release(4.0, "sheddable")
    assert big.state is WaiterState.GRANTED


def test_reserved_slots_stay_out_of_the_turns() -> None:
    """A class with 8 of 10 slots reserved still competes for the other two by its weight."""
    classes = (PriorityClass("gold", weight=1, reserved=8), PriorityClass("plain", weight=1))
    desk = Desk(limit=10, queue=200, classes=classes, default_class="plain", **PATIENT)
    running = ["gold"] * 10
    for _ in range(10):
        desk.admit(0.0, "gold")
    for name in ("gold", "plain"):
        for _ in range(50):
            desk.queue(0.0, name)
    shared = {"gold": 0, "plain": 0}
    for step in range(1, 1001):  # the oldest ends first, and its class sends another
        ended = running.pop(0)
        before = desk.held("gold") - 1 if ended == "gold" else desk.held("gold")
        settled = desk.release(step / 100, ended)
        for waiter in settled:
            name = waiter.route.priority
            if name == "plain" or before >= 8:
                shared[name] += 1
            running.append(name)
            desk.controller.begin(step / 100, waiter)
            desk.arrive(step / 100, name)
    assert shared["gold"] == pytest.approx(shared["plain"], rel=0.1)


# -- the queue and its bounds


def test_the_queue_is_bounded_for_all_classes_together() -> None:
    desk = Desk(limit=1, queue=3)
    desk.admit(0.0)
    for _ in range(3):
        desk.queue(0.0)
    decision = desk.arrive(0.0)
    assert decision.reason is Reason.QUEUE_FULL
    assert decision.retry_after is not None
    assert desk.controller.waiting == 3


def test_without_a_number_as_many_wait_as_run() -> None:
    desk = Desk(limit=4, queue=None)
    desk.admit(0.0, cost=4)
    assert [desk.arrive(0.0).reason for _ in range(5)] == [None] * 4 + [Reason.QUEUE_FULL]


def test_a_class_has_its_own_bound() -> None:
    classes = (CRITICAL, PriorityClass("normal", weight=4, queue_length=2), SHEDDABLE)
    desk = Desk(limit=1, queue=10, classes=classes)
    desk.admit(0.0)
    assert [desk.arrive(0.0).reason for _ in range(3)] == [None, None, Reason.QUEUE_FULL]
    desk.queue(0.0, "critical")
    assert desk.controller.waiting == 3


def test_a_class_at_its_own_bound_pushes_nobody_out() -> None:
    classes = (PriorityClass("critical", weight=8, queue_length=1), NORMAL, SHEDDABLE)
    desk = Desk(limit=1, queue=3, classes=classes)
    desk.admit(0.0)
    desk.queue(0.0, "critical")
    low = [desk.queue(0.0, "sheddable") for _ in range(2)]
    assert desk.arrive(0.0, "critical").reason is Reason.QUEUE_FULL
    assert [waiter.state for waiter in low] == [WaiterState.WAITING] * 2


def test_without_a_queue_everybody_above_the_limit_is_refused_at_once() -> None:
    """B37: 500 arrivals at one instant, five slots, no queue."""
    desk = Desk(limit=5, queue=0)
    reasons = [desk.arrive(1.0).reason for _ in range(500)]
    assert reasons == [None] * 5 + [Reason.QUEUE_FULL] * 495
    assert desk.controller.slots.in_use == 5


def test_a_class_that_may_not_queue_is_refused_at_once() -> None:
    classes = (CRITICAL, NORMAL, PriorityClass("sheddable", queue_length=0))
    desk = Desk(limit=1, queue=5, classes=classes)
    desk.admit(0.0, "sheddable")
    assert desk.arrive(0.0, "sheddable").reason is Reason.QUEUE_FULL
    desk.queue(0.0, "normal")


# -- pushing out


def test_a_higher_class_pushes_out_the_newest_waiter_of_the_lowest_class() -> None:
    desk = Desk(limit=1, queue=6, **PATIENT)
    desk.admit(0.0)
    normal = [desk.queue(0.0, "normal") for _ in range(3)]
    low = [desk.queue(0.1 * i, "sheddable") for i in range(3)]
    pushed: list[Waiter] = []
    for i in range(3):
        decision = desk.arrive(1.0 + i, "critical")
        assert decision.waiter is not None
        pushed += decision.settled
        assert desk.controller.waiting == 6
    # The last sheddable one keeps the place that is its class's own.
    assert pushed == [low[2], low[1], normal[2]]
    assert {waiter.reason for waiter in pushed} == {Reason.PUSHED_OUT}
    assert all(waiter.retry_after is not None and waiter.state is WaiterState.REFUSED for waiter in pushed)
    decision = desk.arrive(4.0, "critical")
    assert decision.settled == (normal[1],), (
        "nobody lower has more than its own: the next class loses its newest"
    )


def test_an_equal_or_lower_class_pushes_nobody_out() -> None:
    desk = Desk(limit=1, queue=4, classes=(CRITICAL, NORMAL, SHEDDABLE))
    desk.admit(0.0)
    for _ in range(4):
        desk.queue(0.0, "critical")
    assert desk.arrive(0.0, "critical").reason is Reason.QUEUE_FULL
    desk = Desk(limit=1, queue=2, classes=(CRITICAL, NORMAL, SHEDDABLE))
    desk.admit(0.0)
    for _ in range(2):
        desk.queue(0.0, "critical")
    assert desk.arrive(0.0, "sheddable").reason is Reason.QUEUE_FULL, (
        "a queue shorter than the number of classes has no place of its own for the smallest share"
    )


def test_a_class_keeps_the_places_that_its_weight_gives_it() -> None:
    desk = Desk(limit=1, queue=13, **PATIENT)  # by weight: 8, 4 and 1 places
    desk.admit(0.0)
    low = [desk.queue(0.0, "sheddable") for _ in range(13)]
    outcomes = [desk.arrive(1.0, "critical") for _ in range(13)]
    assert [decision.settled for decision in outcomes[:12]] == [(waiter,) for waiter in reversed(low[1:])]
    assert outcomes[12].reason is Reason.QUEUE_FULL
    assert low[0].state is WaiterState.WAITING, "the last one of its class has a place that nobody takes"


def test_a_class_takes_its_own_places_back_even_from_a_higher_class() -> None:
    desk = Desk(limit=1, queue=13, **PATIENT)
    desk.admit(0.0)
    high = [desk.queue(0.0, "critical") for _ in range(13)]
    taken = [desk.arrive(1.0, "normal").settled for _ in range(4)]
    assert taken == [(waiter,) for waiter in reversed(high[9:])]
    assert desk.arrive(1.0, "normal").reason is Reason.QUEUE_FULL
    assert desk.arrive(1.0, "sheddable").settled == (high[8],)
    assert desk.arrive(1.0, "sheddable").reason is Reason.QUEUE_FULL


def test_a_push_out_of_one_that_slots_were_saved_for_starts_others() -> None:
    """The pushed-out waiter was the first of its class and blocked the free slots: they must not stay idle."""
    desk = Desk(limit=2, queue=1, **PATIENT)
    desk.admit(0.0, "sheddable")
    big = desk.queue(0.0, "sheddable", cost=2)
    for step in range(1, 5):  # others pass it until the one free slot is saved up for it
        if not desk.arrive(step / 10).admitted:
            break
        desk.release(step / 10)
    assert big.state is WaiterState.REFUSED, "the one that did not get the saved slot took its place"
    assert big.reason is Reason.PUSHED_OUT
    assert desk.controller.waiting == 0
    assert desk.controller.slots.in_use == 2


# -- how long a wait lasts


@pytest.mark.parametrize(
    ("max_wait", "share", "budget", "expected"),
    [
        (1.0, 0.25, 10.0, 1.0),
        (1.0, 0.25, 2.0, 0.5),
        (1.0, 0.5, 1.0, 0.5),
        (5.0, 1.0, 3.0, 3.0),
        (2.0, 1.0, 3.0, 2.0),
        (1.0, 0.25, FOREVER, 1.0),
    ],
)
def test_a_wait_ends_at_the_smaller_of_max_wait_and_the_share_of_the_budget(
    max_wait: float, share: float, budget: float, expected: float
) -> None:
    desk = Desk(limit=1, max_wait=max_wait, wait_share=share)
    desk.admit(0.0)
    waiter = desk.queue(100.0, budget=budget)
    assert waiter.give_up_at == 100.0 + expected
    assert desk.controller.next_wakeup() == 100.0 + expected
    assert desk.controller.tick(math.nextafter(100.0 + expected, 0)) == NOBODY
    assert desk.controller.tick(100.0 + expected) == (waiter,)


def test_a_wait_that_ends_before_the_deadline_is_a_503() -> None:
    desk = Desk(limit=1, max_wait=1.0)
    desk.admit(0.0)
    waiter = desk.queue(0.0, budget=10.0)
    desk.controller.tick(1.0)
    assert waiter.state is WaiterState.REFUSED
    assert waiter.reason is Reason.QUEUE_TIMEOUT
    assert waiter.retry_after is not None
    assert desk.controller.begin(1.0, waiter).reason is Reason.QUEUE_TIMEOUT


def test_a_wait_that_ends_with_the_deadline_is_a_504() -> None:
    """With a share of 1, bound and deadline are the same instant: the answer is worthless, not merely late."""
    desk = Desk(limit=1, max_wait=5.0, wait_share=1.0)
    desk.admit(0.0)
    waiter = desk.queue(0.3, budget=0.7)
    assert waiter.give_up_at == waiter.deadline_at, "bit for bit, or a timer on time would give a 503"
    desk.controller.tick(waiter.deadline_at)
    assert waiter.reason is Reason.EXPIRED_IN_QUEUE
    assert waiter.retry_after is None


def test_a_timer_that_is_very_late_finds_the_deadline_passed() -> None:
    desk = Desk(limit=1, max_wait=1.0)
    desk.admit(0.0)
    waiter = desk.queue(0.0, budget=10.0)
    desk.controller.tick(10.0)
    assert waiter.reason is Reason.EXPIRED_IN_QUEUE


def test_who_may_not_wait_at_all_is_refused_at_once() -> None:
    desk = Desk(limit=1, max_wait=0.0)
    desk.admit(0.0)
    assert desk.arrive(0.0).reason is Reason.QUEUE_TIMEOUT
    assert desk.controller.waiting == 0


def test_waiters_are_settled_in_the_order_of_their_bounds() -> None:
    desk = Desk(limit=1, max_wait=10.0, wait_share=1.0)
    desk.admit(0.0)
    waiters = {budget: desk.queue(0.0, budget=budget) for budget in (4.0, 1.0, 3.0, 2.0)}
    seen = []
    while (at := desk.controller.next_wakeup()) is not None:
        settled = desk.controller.tick(at)
        seen.append(at)
        assert settled == (waiters[at],)
    assert seen == [1.0, 2.0, 3.0, 4.0]


def test_the_work_of_expiring_grows_with_the_number_of_waiters_and_not_with_its_square() -> None:
    """B29: after a stall a whole queue is refused at once, under the lock. A ratio within one run, with much room."""

    def seconds(waiters: int) -> float:
        desk = Desk(limit=1, queue=waiters, max_wait=1.0)
        desk.admit(0.0)
        for _ in range(waiters):
            desk.queue(0.0)
        began = time.process_time()
        assert len(desk.controller.tick(2.0)) == waiters
        return time.process_time() - began

    few = min(seconds(1_000) for _ in range(3))
    assert seconds(16_000) < 60 * few


# -- deadlines


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (-1.0, Reason.EXPIRED_ON_ARRIVAL),
        (0.0, Reason.EXPIRED_ON_ARRIVAL),
        (0.004, Reason.INSUFFICIENT_BUDGET),
        (0.006, None),
    ],
)
def test_a_useless_budget_is_refused_before_anything_else(budget: float, reason: Reason | None) -> None:
    desk = Desk(limit=1, smallest_budget=0.005)
    decision = desk.arrive(50.0, budget=budget)
    assert decision.reason is reason
    assert decision.retry_after is None
    assert desk.controller.slots.in_use == (reason is None)


@pytest.mark.parametrize("budget", [0.0, -0.0, -5.0])
@pytest.mark.parametrize("priority", ["normal", "exempt"])
def test_the_dead_are_not_admitted_even_if_no_budget_is_too_small(budget: float, priority: str) -> None:
    desk = Desk(limit=1, smallest_budget=0.0)
    assert desk.arrive(50.0, priority, budget=budget).reason is Reason.EXPIRED_ON_ARRIVAL


def test_one_that_expired_while_it_waited_is_refused_by_the_release_that_would_start_it() -> None:
    """Its timer is late: the slot goes to one that is alive."""
    desk = Desk(limit=1, max_wait=1.0)
    desk.admit(0.0)
    dead, alive = desk.queue(0.0), desk.queue(0.5)
    assert set(desk.release(1.2)) == {dead, alive}
    assert dead.reason is Reason.QUEUE_TIMEOUT
    assert alive.state is WaiterState.GRANTED


def test_a_dead_waiter_holds_no_place_against_an_arrival() -> None:
    desk = Desk(limit=1, queue=1, max_wait=1.0)
    desk.admit(0.0)
    dead = desk.queue(0.0)
    decision = desk.arrive(1.0)
    assert decision.waiter is not None
    assert decision.settled == (dead,)
    assert dead.reason is Reason.QUEUE_TIMEOUT


def test_a_dead_first_waiter_does_not_block_an_arrival() -> None:
    desk = Desk(limit=3, max_wait=1.0)
    desk.admit(0.0)
    dead = desk.queue(0.0, cost=3)
    decision = desk.arrive(1.0)
    assert decision.admitted
    assert decision.settled == (dead,)


def test_a_dead_first_waiter_blocks_nobody_after_the_tick_that_found_it_dead() -> None:
    desk = Desk(limit=3, max_wait=1.0)
    desk.admit(0.0)
    dead, behind = desk.queue(0.0, cost=3), desk.queue(0.5)
    assert desk.controller.tick(1.0) == (dead, behind)
    assert behind.state is WaiterState.GRANTED


def test_a_grant_that_came_too_late_is_not_begun_and_its_slot_goes_on() -> None:
    desk = Desk(limit=1, max_wait=10.0, wait_share=1.0)
    desk.admit(0.0)
    late, following = desk.queue(0.0, budget=1.0), desk.queue(0.0, budget=5.0)
    assert desk.release(0.9) == (late,)
    decision = desk.controller.begin(1.0, late)
    assert decision.reason is Reason.EXPIRED_IN_QUEUE
    assert decision.settled == (following,)
    assert desk.controller.begin(1.0, following) is ADMITTED
    assert desk.route().refused == {Reason.EXPIRED_IN_QUEUE: 1}


def test_a_grant_begun_between_its_wait_bound_and_its_deadline_runs() -> None:
    desk = Desk(limit=1, max_wait=1.0)
    desk.admit(0.0)
    waiter = desk.queue(0.0, budget=10.0)
    desk.release(0.9)
    assert desk.controller.begin(1.1, waiter) is ADMITTED


def test_a_waiter_begins_once() -> None:
    desk = Desk(limit=1)
    desk.admit(0.0)
    waiter = desk.queue(0.0)
    with pytest.raises(RuntimeError, match="'waiting' cannot begin"):
        desk.controller.begin(0.0, waiter)
    desk.release(0.1)
    desk.controller.begin(0.1, waiter)
    with pytest.raises(RuntimeError, match="'running' cannot begin"):
        desk.controller.begin(0.1, waiter)


def test_time_spent_waiting_does_not_extend_the_deadline() -> None:
    """B31: the deadline is an instant, so a long wait leaves less, not a fresh budget."""
    desk = Desk(limit=1, max_wait=10.0, wait_share=1.0)
    desk.admit(0.0)
    waiter = desk.queue(0.0, budget=1.0)
    desk.release(0.7)
    desk.controller.begin(0.7, waiter)
    assert waiter.deadline_at == 1.0


# -- predicted to be late


def test_one_whose_answer_would_come_too_late_is_refused_on_arrival() -> None:
    desk = Desk(limit=1, queue=100, max_wait=60.0, wait_share=1.0)
    desk.learn(0.5)  # two a second, by what the limit allows
    desk.admit(0.0)
    for _ in range(10):
        desk.queue(0.0)
    # Eleven others' worth of waiting, and its own half second: six seconds.
    assert desk.arrive(0.0, budget=5.8).reason is Reason.PREDICTED_LATE
    desk.queue(0.0, budget=6.2)


def test_nothing_is_predicted_before_the_run_time_is_known() -> None:
    desk = Desk(limit=1, queue=100, max_wait=60.0, wait_share=1.0)
    desk.learn(0.5, runs=9)
    desk.admit(0.0)
    for _ in range(10):
        desk.queue(0.0)
    desk.queue(0.0, budget=0.1)


def test_the_prediction_follows_the_measured_drain_rate() -> None:
    desk = Desk(limit=1, queue=100, max_wait=60.0, wait_share=1.0)
    desk.learn(0.5)
    desk.admit(0.0)
    for _ in range(60):
        desk.queue(0.0, budget=60.0)
    for step in range(1, 51):  # in truth, ten a second are worked off
        for waiter in desk.release(step / 10):
            desk.controller.begin(step / 10, waiter)
    # Ten wait: the eleventh is served after 1.1 s at the measured rate, and runs for half a second.
    assert desk.arrive(5.0, budget=1.5).reason is Reason.PREDICTED_LATE
    desk.queue(5.0, budget=1.8)


@pytest.mark.parametrize("held", [False, True], ids=["slots given back", "slots held on"])
def test_a_cut_off_run_does_not_make_a_route_look_fast(held: bool) -> None:
    """B40: cancelled and failed runs teach nothing about how long the work takes."""
    desk = Desk(limit=1)
    desk.learn(0.5)
    for outcome in ("client_disconnect", "deadline", "error"):
        for _ in range(100):
            if held:
                desk.controller.finish(desk.route(), outcome, 0.001)
            else:
                desk.admit(0.0)
                desk.controller.end(0.0, desk.route(), 1, outcome, 0.001)
    desk.controller.forecast.learn()
    median = desk.route().median.value
    assert median == pytest.approx(0.5)
    assert desk.route().outcomes == {"completed": 30, "client_disconnect": 100, "deadline": 100, "error": 100}


def test_completed_runs_are_learned_from_before_they_pile_up() -> None:
    desk = Desk(limit=1)
    for _ in range(1000):
        desk.admit(0.0)
        desk.controller.end(0.0, desk.route(), 1, COMPLETED, 0.5)
        assert len(desk.route().runs) <= ENOUGH_TO_LEARN
    desk.controller.forecast.learn()
    route = desk.route()
    assert (route.outcomes, route.run.total, route.median.value) == ({"completed": 1000}, 500.0, 0.5)
    assert desk.controller.forecast.typical_run == 0.5


def test_a_higher_class_is_not_refused_for_the_backlog_of_a_lower_one() -> None:
    desk = Desk(limit=1, queue=100, max_wait=60.0, wait_share=1.0)
    desk.learn(0.1)
    desk.learn(0.1, "critical")
    desk.admit(0.0)
    for _ in range(80):
        desk.queue(0.0, budget=60.0)
    # Its share is two thirds of ten a second: its turn comes within 0.15 s, not after eight seconds.
    desk.queue(0.0, "critical", budget=0.3)


# -- leaving


def test_a_waiter_that_leaves_gives_its_place_back() -> None:
    desk = Desk(limit=1, queue=1)
    desk.admit(0.0)
    gone = desk.queue(0.0)
    assert desk.controller.leave(0.1, gone) == NOBODY
    assert gone.state is WaiterState.LEFT
    assert desk.controller.next_wakeup() is None
    desk.queue(0.1)
    assert desk.route().left == 1


def test_a_waiter_that_leaves_unblocks_those_behind_it() -> None:
    desk = Desk(limit=3)
    desk.admit(0.0)
    big, small = desk.queue(0.0, cost=3), desk.queue(0.0)
    assert desk.controller.leave(0.1, big) == (small,)


def test_one_that_leaves_between_the_grant_and_its_start_gives_the_slot_back() -> None:
    """B32."""
    desk = Desk(limit=1)
    desk.admit(0.0)
    gone, following = desk.queue(0.0), desk.queue(0.0)
    desk.release(0.1)
    assert desk.controller.leave(0.2, gone) == (following,)
    assert desk.controller.slots.in_use == 1
    desk.controller.leave(0.3, following)
    assert desk.controller.slots.in_use == 0


def test_leaving_twice_or_after_the_end_changes_nothing() -> None:
    desk = Desk(limit=1, max_wait=1.0)
    desk.admit(0.0)
    left, refused, running = desk.queue(0.0), desk.queue(0.0), desk.queue(0.5)
    desk.controller.leave(0.0, left)
    desk.controller.tick(1.0)
    desk.release(1.1)
    desk.controller.begin(1.1, running)
    for waiter in (left, refused, running):
        assert desk.controller.leave(1.2, waiter) == NOBODY
    assert (desk.route().left, desk.controller.slots.in_use) == (1, 1)
    with pytest.raises(RuntimeError, match="'left' cannot begin"):
        desk.controller.begin(1.2, left)


# -- turns


def _serve(desk: Desk, steps: int, names: tuple[str, ...], running: list[str]) -> dict[str, int]:
    """Release one slot a step and keep every class backlogged; return how many of each class were started."""
    served = dict.fromkeys(names, 0)
    for step in range(1, steps + 1):
        for waiter in desk.release(step / 1000, running.pop(0)):
            desk.controller.begin(step / 1000, waiter)
            name = waiter.route.priority
            served[name] += 1
            running.append(name)
            desk.arrive(step / 1000, name)
    return served


@pytest.mark.parametrize("limit", [1, 7, 10])
def test_backlogged_classes_are_served_by_their_weights(limit: int) -> None:
    desk = Desk(limit=limit, queue=39, **PATIENT)
    for _ in range(limit):
        desk.admit(0.0, "sheddable")
    for name in ("sheddable", "normal", "critical"):
        for _ in range({"critical": 24, "normal": 12, "sheddable": 3}[name]):
            desk.queue(0.0, name)
    served = _serve(desk, 1300, ("critical", "normal", "sheddable"), ["sheddable"] * limit)
    assert sum(served.values()) == 1300
    for name, weight in (("critical", 8), ("normal", 4), ("sheddable", 1)):
        assert served[name] == pytest.approx(1300 * weight / 13, rel=0.1)


def test_a_class_without_backlog_leaves_its_share_to_the_others() -> None:
    desk = Desk(limit=4, queue=39, **PATIENT)
    for _ in range(4):
        desk.admit(0.0)
    for name in ("normal", "sheddable"):
        for _ in range(10):
            desk.queue(0.0, name)
    served = _serve(desk, 500, ("normal", "sheddable"), ["normal"] * 4)
    assert served["normal"] == pytest.approx(400, rel=0.1)


def test_a_class_that_was_idle_gets_no_credit_for_it() -> None:
    desk = Desk(limit=1, queue=39, **PATIENT)
    desk.admit(0.0, "sheddable")
    for _ in range(10):
        desk.queue(0.0, "sheddable")
    running = ["sheddable"]
    _serve(desk, 300, ("sheddable",), running)
    for _ in range(8):
        desk.queue(1.0, "critical")
    served = _serve(desk, 90, ("critical", "sheddable"), running)
    assert served["sheddable"] == pytest.approx(10, abs=2), "one turn in nine, from the first moment on"


def test_a_class_is_not_charged_for_ever_for_slots_that_others_could_not_use() -> None:
    """Cheap requests pass a costly one that does not fit, as they may; that must not starve their class later."""
    desk = Desk(limit=10, queue=39, **PATIENT)
    now = 0.0
    for _ in range(200):
        now += 1.0
        for _ in range(6):
            desk.admit(now, "sheddable")
        big = desk.queue(now, "critical", cost=5)
        for _ in range(9):
            desk.admit(now + 0.1, "sheddable")
            desk.release(now + 0.1, "sheddable")
        assert desk.release(now + 0.2, "sheddable") == (big,)
        desk.controller.begin(now + 0.2, big)
        desk.release(now + 0.3, "critical", cost=5)
        while desk.held("sheddable"):
            desk.release(now + 0.4, "sheddable")
        assert (desk.controller.waiting, desk.controller.slots.in_use) == (0, 0)
    for _ in range(10):
        desk.admit(now + 1, "critical")
    for name in ("critical", "sheddable"):
        for _ in range(5):
            desk.queue(now + 1, name)
    served = _serve(desk, 90, ("critical", "sheddable"), ["critical"] * 10)
    assert served["sheddable"] == pytest.approx(10, abs=2)


# -- requests that need several slots


@pytest.mark.parametrize("others", ["normal", "critical", "sheddable"])
def test_a_costly_request_behind_cheap_traffic_starts_within_its_wait_bound(others: str) -> None:
    """Ten slots of 0.2 s, cheap traffic at twice the capacity, in its own class or in another one."""
    desk = Desk(limit=10, queue=20, max_wait=1.0)
    ends: list[tuple[float, str, int]] = []

    def start(now: float, priority: str, cost: int) -> None:
        ends.append((now + 0.2, priority, cost))

    costly: list[Waiter] = []
    started: list[float] = []
    for tick in range(1, 1000):
        now = tick / 100
        while ends and ends[0][0] <= now:
            _, priority, cost = ends.pop(0)
            for waiter in desk.release(now, priority, cost=cost):
                if waiter.state is WaiterState.GRANTED:
                    desk.controller.begin(now, waiter)
                    start(now, waiter.route.priority, waiter.cost)
                    if waiter.cost == 5:
                        started.append(now - waiter.arrived_at)
        desk.controller.tick(now)
        if desk.arrive(now, others).admitted:
            start(now, others, 1)
        if (
            len(costly) < tick // 100
        ):  # its class's queue may be full; what counts is what happens to one that waits
            queued = desk.arrive(now, "normal", cost=5).waiter
            costly += [] if queued is None else [queued]
    assert len(costly) == 9
    assert [waiter.reason for waiter in costly] == [None] * 9
    assert len(started) == 9
    assert max(started) <= 1.0


def test_others_pass_a_costly_request_for_one_limit_of_slots_and_no_longer() -> None:
    desk = Desk(limit=4, queue=20, **PATIENT)
    for _ in range(3):
        desk.admit(0.0, "critical")
    desk.queue(0.0, cost=4)
    passed = 0
    for step in range(1, 20):
        if not desk.arrive(step / 10, "critical").admitted:
            break
        passed += 1
        desk.release(step / 10, "critical")
    assert passed == 4


def test_two_costly_requests_do_not_block_each_other() -> None:
    classes = (PriorityClass("critical", weight=8, reserved=1), NORMAL, SHEDDABLE)
    desk = Desk(limit=6, queue=20, classes=classes, **PATIENT)
    for _ in range(5):
        desk.admit(0.0, "sheddable")
    waiters = [desk.queue(0.0, "critical", cost=6), desk.queue(0.0, "normal", cost=5)]
    for waiter in waiters:
        waiter.bypassed = 100  # slots are saved up for both
    for _ in range(5):
        desk.release(1.0, "sheddable")
    for now in (2.0, 3.0):
        granted = next(waiter for waiter in waiters if waiter.state is WaiterState.GRANTED)
        desk.controller.begin(now, granted)
        desk.release(now, granted.route.priority, cost=granted.cost)
    assert [waiter.state for waiter in waiters] == [WaiterState.RUNNING] * 2


# -- exempt requests


def test_exempt_requests_have_a_bound_of_their_own() -> None:
    desk = Desk(limit=1, queue=0)
    desk.admit(0.0)
    decisions = [desk.arrive(0.0, "exempt") for _ in range(101)]
    assert [decision.admitted for decision in decisions] == [True] * 100 + [False]
    assert decisions[100].reason is Reason.EXEMPT_LIMIT
    assert decisions[100].retry_after is not None
    assert desk.controller.slots.in_use == 1
    desk.release(0.1, "exempt")
    desk.admit(0.1, "exempt")


def test_exempt_requests_pass_a_full_queue() -> None:
    """B26."""
    desk = Desk(limit=1, queue=1)
    desk.admit(0.0)
    desk.queue(0.0)
    assert desk.arrive(0.0, "exempt").admitted


# -- draining


def test_a_draining_server_takes_no_new_work_and_finishes_what_waits() -> None:
    desk = Desk(limit=1)
    desk.admit(0.0)
    waiter = desk.queue(0.0)
    desk.controller.drain()
    decision = desk.arrive(0.1)
    assert decision.reason is Reason.DRAINING
    assert decision.retry_after is not None
    assert desk.arrive(0.1, "exempt").admitted
    assert desk.release(0.2) == (waiter,)
    assert desk.controller.begin(0.2, waiter) is ADMITTED
    desk.release(0.3)
    assert desk.arrive(0.4).reason is Reason.DRAINING, "also when it is idle"


def test_a_refusal_while_draining_still_settles_the_dead() -> None:
    desk = Desk(limit=1, max_wait=1.0)
    desk.admit(0.0)
    dead = desk.queue(0.0)
    desk.controller.drain()
    assert desk.arrive(1.0).settled == (dead,)


# -- Retry-After


def _draining(rate: float, seed: int, releases: int = 40) -> tuple[Desk, float]:
    """Return a desk with a full queue of 20 that has been draining at a rate, and the instant of the last release."""
    desk = Desk(seed, limit=1, queue=20, **PATIENT)
    desk.admit(0.0)
    for _ in range(20):
        desk.queue(0.0)
    now = 0.0
    for step in range(1, releases + 1):
        now = step / rate
        for waiter in desk.release(now):
            desk.controller.begin(now, waiter)
        desk.queue(now)
    return desk, now


@pytest.mark.parametrize(("rate", "low", "high"), [(2.0, 8, 14), (200.0, 1, 2)])
@pytest.mark.parametrize("releases", [3, 40, 500])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_retry_after_says_when_the_queue_will_be_worked_off(
    rate: float, low: int, high: int, releases: int, part: float
) -> None:
    """Whenever between two releases the refused one comes."""
    desk, last = _draining(rate, 7, releases)
    said = {desk.arrive(last + part / rate).retry_after for _ in range(1000)}
    assert None not in said
    assert min(said) >= low  # type: ignore[type-var, operator]
    assert max(said) <= high  # type: ignore[type-var, operator]


def test_retry_after_is_spread_so_that_nobody_comes_back_together() -> None:
    desk, last = _draining(2.0, 7)
    said = [desk.arrive(last).retry_after for _ in range(1000)]
    counts = [said.count(second) for second in range(9, 15)]
    assert min(counts) > 100, counts


def test_retry_after_grows_while_nothing_moves() -> None:
    desk, last = _draining(2.0, 7)
    said = [desk.arrive(last + still).retry_after or 0 for still in (0.0, 16.0, 64.0)]
    assert said == sorted(said)
    assert said[2] > 2 * said[0]


def test_retry_after_is_a_minute_at_most_and_a_second_at_least() -> None:
    slow, last = _draining(0.01, 3)
    assert max(slow.arrive(last).retry_after or 0 for _ in range(1000)) in {59, 60}
    fast, last = _draining(10_000.0, 3)
    assert min(fast.arrive(last).retry_after or 0 for _ in range(1000)) == 1


def test_a_standstill_counts_also_when_the_queue_emptied_by_itself() -> None:
    """Nobody was served for a minute, and everybody who waited gave up in between: the rate is no longer the old one."""
    desk = Desk(limit=1, queue=20, max_wait=10.0, wait_share=1.0)
    desk.admit(0.0)
    now = 0.0
    for step in range(1, 41):
        now = step / 10
        desk.queue(now - 0.1)
        for waiter in desk.release(now):
            desk.controller.begin(now, waiter)
    before = desk.controller.forecast.rate(now)
    assert before == pytest.approx(10.0)
    for _ in range(6):  # one waiter at a time
        desk.queue(now)
        now += 10.0
        desk.controller.tick(now)
    after = desk.controller.forecast.rate(now)
    assert after is not None
    assert after < 1.0


def test_idle_time_does_not_count_as_a_standstill() -> None:
    desk, last = _draining(2.0, 7)
    while desk.controller.waiting:
        last += 0.5
        for waiter in desk.release(last):
            desk.controller.begin(last, waiter)
    desk.release(last + 0.5)
    desk.admit(last + 1000.0)
    leaving = desk.queue(last + 1000.0)
    desk.controller.leave(last + 1000.0, leaving)
    assert desk.controller.forecast.rate(last + 1000.0) == pytest.approx(2.0, rel=0.05)


# -- figures


def test_every_arrival_is_accounted_for() -> None:
    """As admitted, refused, left, waiting or granted, whatever happened."""
    desk = Desk(limit=2, queue=4, max_wait=1.0)
    route = desk.route()
    for step in range(40):
        desk.arrive(step / 10)
    waiters = list(desk.controller.classes[1].queue)
    desk.controller.leave(4.0, waiters[0])
    granted = [waiter for waiter in desk.release(4.0) if waiter.state is WaiterState.GRANTED]
    assert len(granted) == 1
    waiting = desk.controller.waiting
    assert waiting > 0
    refused = sum(route.refused.values())
    assert route.arrived == 40 == route.admitted + refused + route.left + waiting + len(granted)
    assert route.admitted == 2
    assert route.left == 1


def test_waits_are_counted_for_those_that_ran() -> None:
    desk = Desk(limit=1)
    desk.admit(0.0)
    waiter = desk.queue(0.0)
    desk.release(0.3)
    desk.controller.begin(0.4, waiter)
    snapshot = desk.route().snapshot()
    assert sum(snapshot.wait.counts) == 1
    assert snapshot.wait.total == pytest.approx(0.4)


def test_the_default_classes_cover_what_the_tests_say() -> None:
    assert [each.name for each in DEFAULT_CLASSES] == ["critical", "normal", "sheddable"]


def test_no_order_of_ends_leaves_a_slot_behind() -> None:
    """All orders in which two running and two waiting requests can end."""
    for order in itertools.permutations(range(4)):
        desk = Desk(limit=2, **PATIENT)
        desk.admit(0.0)
        desk.admit(0.0)
        waiters = [desk.queue(0.0), desk.queue(0.0)]
        for step, which in enumerate(order):
            if which < 2:
                desk.release(float(step))
            else:
                waiter = waiters[which - 2]
                if waiter.state is WaiterState.GRANTED and step % 2:
                    desk.controller.begin(float(step), waiter)
                    desk.release(float(step))
                else:
                    desk.controller.leave(float(step), waiter)
        assert desk.controller.slots.in_use == 0, order
        assert desk.controller.waiting == 0, order


# -- overload


def _overloaded(**policy: Any) -> Desk:
    desk = Desk(limit=1, **policy)
    desk.controller.overloaded = True
    return desk


def test_while_overloaded_the_lowest_class_waits_in_its_own_places_only() -> None:
    desk = _overloaded(queue=26)  # two of 26 places for a weight of 1 of 13
    desk.admit(0.0)
    desk.queue(0.0, "sheddable")
    desk.queue(0.0, "sheddable")
    decision = desk.arrive(0.0, "sheddable")
    assert decision.reason is Reason.OVERLOADED
    assert decision.retry_after is not None
    assert desk.route("sheddable").refused == {Reason.OVERLOADED: 1}
    assert desk.controller.waiting == 2
    for priority in ("normal", "critical"):
        for _ in range(5):
            desk.queue(0.0, priority)


def test_while_overloaded_a_free_slot_admits_the_lowest_class_too() -> None:
    desk = _overloaded(queue=0)
    desk.admit(0.0, "sheddable")
    assert desk.arrive(0.0, "sheddable").reason is Reason.OVERLOADED
    desk.release(1.0, "sheddable")
    desk.admit(1.0, "sheddable")


def test_while_overloaded_a_reserved_slot_is_there_for_the_lowest_class() -> None:
    classes = (PriorityClass("critical"), PriorityClass("sheddable", reserved=1))
    desk = Desk(limit=2, queue=1, classes=classes, default_class="critical")
    desk.controller.overloaded = True
    desk.admit(0.0, "critical")
    desk.queue(0.0, "critical")
    desk.admit(0.0, "sheddable")
    assert desk.arrive(0.0, "sheddable").reason is Reason.OVERLOADED


def test_when_it_is_no_longer_overloaded_the_lowest_class_waits_as_before() -> None:
    desk = _overloaded(queue=2)
    desk.admit(0.0)
    assert desk.arrive(0.0, "sheddable").reason is Reason.OVERLOADED
    desk.controller.overloaded = False
    desk.queue(0.0, "sheddable")


def test_a_class_that_is_the_only_one_is_not_shed() -> None:
    """There is nobody for whom a place is kept."""
    desk = _overloaded(queue=2, classes=(PriorityClass("only"),), default_class="only")
    desk.admit(0.0, "only")
    desk.queue(0.0, "only")
    desk.queue(0.0, "only")
    assert desk.arrive(0.0, "only").reason is Reason.QUEUE_FULL
