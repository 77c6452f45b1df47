"""When a queue stands, and who is served first then."""

from __future__ import annotations

import pytest

from resilient_mw.admission.entry import Waiter
from resilient_mw.admission.standing import StandingQueue
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.rejection import Reason
from tests.admission.desk import PATIENT, Desk

RUN = 0.1


def _looks(*looks: tuple[float, float], run: float = RUN) -> list[bool]:
    """Look at instants, each with the age of the oldest waiter."""
    queue = StandingQueue()
    seen = []
    for now, age in looks:
        queue.look(now, now - age, run)
        seen.append(queue.standing)
    return seen


def test_a_queue_stands_when_waits_stay_above_twice_the_run_time_for_100_ms() -> None:
    assert _looks((1.0, 0.1), (1.08, 0.25), (1.12, 0.25), (1.14, 0.25)) == [False, False, False, True]


def test_one_short_wait_ends_it() -> None:
    looks = ((1.0, 0.4), (1.05, 0.19), (1.1, 0.25), (1.14, 0.25), (1.2, 0.25))
    assert _looks(*looks) == [True, False, False, False, True]


def test_after_a_standstill_the_oldest_has_been_waiting_all_the_time() -> None:
    assert _looks((1.0, 0.1), (3.0, 2.0)) == [False, True]
    assert _looks((3.0, 0.29)) == [False], "it passed twice the run time only 90 ms ago"


def test_the_target_is_five_milliseconds_at_least() -> None:
    assert _looks((1.0, 0.004), (2.0, 0.004), run=0.0001) == [False, False]
    assert _looks((1.0, 0.006), (2.0, 0.006), run=0.0001) == [False, True]


def test_while_the_run_time_is_unknown_nothing_stands() -> None:
    assert _looks((1.0, 50.0), (2.0, 50.0), run=0.0) == [False, False]


# -- the order


def _desk(order: str = "newest_first", **policy: object) -> Desk:
    classes = (PriorityClass("normal", queue_order=order),)
    desk = Desk(limit=1, classes=classes, default_class="normal", **(PATIENT | policy))
    desk.learn(RUN)
    desk.admit(0.0)
    return desk


def _served(desk: Desk, *instants: float) -> list[Waiter]:
    return [waiter for now in instants for waiter in desk.release(now)]


def test_the_newest_are_served_first_while_the_queue_stands_and_the_oldest_before_and_after() -> None:
    desk = _desk()
    old = [desk.queue(0.0) for _ in range(4)]
    # At 0.1 the wait is short; from 0.25 on it is not; from 0.35 on it has been long for 100 ms.
    assert _served(desk, 0.1, 0.25, 0.35) == old[:3]
    new = [desk.queue(0.36) for _ in range(3)]
    assert _served(desk, 0.4, 0.45) == [new[2], new[1]]
    desk.controller.leave(0.46, old[3])
    # The oldest has been waiting for 0.1 s only, so the queue stands no more, as the next service shows.
    newest = [desk.queue(0.47) for _ in range(2)]
    assert _served(desk, 0.48, 0.49, 0.5) == [newest[1], new[0], newest[0]]


def test_the_order_of_arrival_is_kept_where_nothing_else_is_said() -> None:
    desk = _desk("fifo")
    waiters = [desk.queue(0.0) for _ in range(8)]
    assert _served(desk, *(0.3 + i / 10 for i in range(8))) == waiters


def test_an_empty_queue_stands_no_more() -> None:
    desk = _desk()
    for _ in range(3):
        desk.queue(0.0)
    _served(desk, 0.5, 1.0, 1.5)
    assert desk.controller.classes[0].newest_first is False
    first, second = desk.queue(1.5), desk.queue(1.5)
    assert _served(desk, 1.6, 1.7) == [first, second]


def _standing() -> tuple[Desk, list[Waiter]]:
    """A queue that stands; two have been served."""
    desk = _desk(queue=6)
    old = [desk.queue(0.0) for _ in range(8 - 2)]
    assert _served(desk, 0.5, 0.7) == [old[0], old[-1]]
    return desk, old[1:-1]


def test_with_the_newest_first_the_turns_of_tenants_are_kept() -> None:
    desk, old = _standing()
    a, b = [desk.queue(0.7, tenant="a"), desk.queue(0.71, tenant="a")], desk.queue(0.72, tenant="b")
    # Who named no tenant came first, but held the slot.
    assert desk.release(0.8) == (a[1],)
    assert desk.release(0.9, tenant="a") == (b,)
    assert desk.release(1.0, tenant="b") == (old[-1],)


def test_with_the_newest_first_the_oldest_of_the_largest_tenant_goes() -> None:
    """It is the one that would be served last."""
    desk, old = _standing()
    assert desk.queue(0.7, tenant="a").state.value == "waiting"
    desk.queue(0.71, tenant="b")
    assert desk.arrive(0.72, tenant="c").settled == (old[0],)
    assert old[0].reason is Reason.TENANT_SHARE


def test_with_the_newest_first_a_higher_class_pushes_out_the_oldest() -> None:
    classes = (PriorityClass("high"), PriorityClass("normal", queue_order="newest_first"))
    desk = Desk(limit=1, queue=4, classes=classes, **PATIENT)
    desk.learn(RUN)
    desk.admit(0.0)
    for _ in range(4):
        desk.queue(0.0)
    _served(desk, 0.5)
    new = desk.queue(0.6)
    _served(desk, 0.7)
    old = desk.controller.classes[1].oldest()
    assert new.state.value == "granted"
    desk.queue(0.7)
    decision = desk.arrive(0.8, "high")
    assert decision.settled == (old,)
    assert old.reason is Reason.PUSHED_OUT


def test_a_newcomer_who_will_be_served_next_is_not_refused_for_the_backlog() -> None:
    desk, _ = _standing()
    assert desk.arrive(0.75, budget=1.0).waiter is not None
    fifo = _desk("fifo", queue=6)
    for _ in range(6):
        fifo.queue(0.0)
    _served(fifo, 0.5, 0.7)
    assert fifo.arrive(0.75, budget=1.0).reason is Reason.PREDICTED_LATE


@pytest.mark.parametrize("cost", [1, 2])
def test_one_that_slots_are_saved_up_for_stays_the_first(cost: int) -> None:
    """Cheap newcomers of its class do not pass it by."""
    desk = Desk(limit=3, queue=9, classes=(PriorityClass("normal", queue_order="newest_first"),), **PATIENT)
    desk.learn(RUN)
    for _ in range(3):
        desk.admit(0.0)
    for _ in range(3):
        desk.queue(0.0)
    _served(desk, 0.5, 0.7)
    assert desk.controller.classes[0].newest_first
    big = desk.queue(0.71, cost=3)
    assert desk.release(0.72) == ()
    small = desk.queue(0.73, cost=cost)
    assert desk.release(0.74) == ()
    assert desk.release(0.75) == (big,)
    assert desk.release(0.76, cost=3)[0] is small
