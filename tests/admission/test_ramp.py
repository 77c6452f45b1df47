"""The start-up ramp: how the limit grows, and that nobody is forgotten while it does."""

from __future__ import annotations

import asyncio
import math
import threading
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.admission.ramp import Ramp
from resilient_mw.core.priority import DEFAULT_CLASSES, EXEMPT, PriorityClass
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.async_gate import AsyncWait
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.thread_gate import wait_in_thread
from tests.admission.desk import PATIENT, Desk
from tests.runtime.virtual_time import Bench

RESERVING = (PriorityClass("critical", reserved=5), PriorityClass("normal"))


def test_it_grows_from_a_tenth_to_the_whole_in_equal_steps() -> None:
    ramp = Ramp(10.0, 40, DEFAULT_CLASSES)
    assert ramp.first == 4
    assert ramp.limit(100.0) == (4, False)
    assert ramp.limit(105.0) == (22, False)
    assert ramp.limit(109.9) == (39, False)
    assert ramp.limit(110.0) == (40, True)


def test_time_before_the_first_request_does_not_count() -> None:
    ramp = Ramp(10.0, 40, DEFAULT_CLASSES)
    assert ramp.next_at() == math.inf
    assert ramp.limit(1e6) == (4, False)


def test_a_clock_that_was_read_earlier_takes_nothing_back() -> None:
    ramp = Ramp(10.0, 40, DEFAULT_CLASSES)
    ramp.limit(0.0)
    assert ramp.limit(5.0) == ramp.limit(4.0) == (22, False)


def test_no_class_is_shut_out_by_what_others_have_reserved() -> None:
    assert Ramp(10.0, 40, RESERVING).first == 6
    assert Ramp(10.0, 3, (PriorityClass("a", reserved=2), PriorityClass("b"))).first == 3


@given(st.floats(0.001, 3600.0), st.integers(1, 500), st.floats(0.0, 1e9))
def test_at_the_instant_that_is_told_it_has_grown(seconds: float, full: int, start: float) -> None:
    """So that a waiter who sets a timer for it does not spin."""
    ramp = Ramp(seconds, full, DEFAULT_CLASSES)
    before, whole = ramp.limit(start)
    steps = 0
    while not whole:
        at = ramp.next_at()
        limit, whole = ramp.limit(at)
        assert at <= start + seconds
        assert limit > before or (whole and limit == full)
        before, steps = limit, steps + 1
        assert steps <= full
    assert before == full


def test_the_controller_admits_no_more_than_the_ramp_allows() -> None:
    desk = Desk(limit=20, ramp=10.0, **PATIENT)
    desk.admit(0.0)
    desk.admit(0.0)
    waiter = desk.queue(0.0)
    assert desk.controller.slots.limit == 2
    assert desk.controller.next_wakeup() == pytest.approx(10.0 / 18)
    assert desk.controller.tick(0.5) == ()
    assert desk.controller.tick(0.6) == (waiter,)
    assert waiter.state is WaiterState.GRANTED


def test_an_arrival_alone_raises_the_limit() -> None:
    desk = Desk(limit=20, ramp=10.0, queue=0, **PATIENT)
    desk.admit(0.0)
    for _ in range(10):
        desk.admit(5.0)
    assert desk.arrive(5.0).reason is Reason.QUEUE_FULL
    for _ in range(9):
        desk.admit(10.0)
    assert desk.arrive(10.0).reason is Reason.QUEUE_FULL
    assert desk.controller.attentive is False  # from now on it costs nothing


def test_a_release_hands_out_what_has_grown_since() -> None:
    desk = Desk(limit=20, ramp=10.0, **PATIENT)
    desk.admit(0.0)
    desk.admit(0.0)
    waiters = [desk.queue(0.0) for _ in range(4)]
    assert desk.release(1.2) == tuple(waiters[:3])  # one that was free, two that are new


def test_health_checks_do_not_begin_it() -> None:
    desk = Desk(limit=20, ramp=10.0)
    assert desk.controller.arrive(0.0, desk.route(EXEMPT), 1, math.inf).admitted
    assert desk.controller.grows_at() == math.inf


def test_reserved_slots_stay_reserved_while_it_grows() -> None:
    desk = Desk(limit=20, ramp=10.0, queue=0, classes=RESERVING, **PATIENT)
    desk.admit(0.0)
    assert desk.arrive(0.0).reason is Reason.QUEUE_FULL
    for _ in range(5):
        desk.admit(0.0, "critical")
    assert desk.controller.slots.in_use == desk.controller.slots.limit == 6


@given(st.integers(0, 2**32), st.sampled_from([DEFAULT_CLASSES, RESERVING]))
def test_nobody_waits_while_there_is_room(seed: int, classes: tuple[PriorityClass, ...]) -> None:
    """Arrivals, releases and wake-ups at random, through the whole ramp and beyond."""
    random = Random(seed)
    desk = Desk(limit=12, ramp=4.0, queue=6, classes=classes, **PATIENT)
    controller, names = desk.controller, [each.name for each in classes]
    now = 0.0
    running: list[str] = []
    waiting: list[Waiter] = []
    for _ in range(120):
        now += random.choice([0.0, 0.01, 0.1])
        if running and random.random() < 0.4:
            name = running.pop(random.randrange(len(running)))
            settled = desk.release(now, name)
        elif random.random() < 0.8:
            name = random.choice(names)
            decision = desk.arrive(now, name)
            settled = decision.settled
            if decision.admitted:
                running.append(name)
            elif decision.waiter is not None:
                waiting.append(decision.waiter)
        else:
            settled = controller.tick(now)
            first = [state for state in controller.classes if state.queue]
            assert not any(controller.slots.available(state) >= 1 for state in first)
            assert (controller.next_wakeup() is None) is (not first)
        for waiter in settled:
            waiting.remove(waiter)
            if waiter.state is WaiterState.GRANTED and controller.begin(now, waiter).admitted:
                running.append(waiter.route.priority)
        assert len(running) == controller.slots.in_use <= controller.slots.limit <= 12
        assert len(waiting) == controller.waiting


def test_waiters_on_a_loop_start_when_the_limit_grows() -> None:
    """Nobody comes, nobody goes, there is no tick: only time passes."""
    bench = Bench(limit=20, ramp=10.0, **PATIENT)
    bench.admit()
    bench.admit()

    async def main() -> list[tuple[Decision | None, float]]:
        async def wait(waiter: Waiter) -> tuple[Decision | None, float]:
            loop = asyncio.get_running_loop()
            return await AsyncWait(bench.guard, waiter, loop).wait(), bench.clock.now()

        return await asyncio.gather(*(wait(bench.queue()) for _ in range(3)))

    decisions = bench.run(main)
    assert all(decision is not None and decision.admitted for decision, _ in decisions)
    assert [at for _, at in decisions] == pytest.approx([10.0 / 18, 20.0 / 18, 30.0 / 18])


def test_a_waiter_in_a_thread_starts_when_the_limit_grows() -> None:
    bench = Bench(MONOTONIC, limit=11, ramp=1.0, **PATIENT)
    bench.admit()
    waiter, decisions = bench.queue(), []
    thread = threading.Thread(target=lambda: decisions.append(wait_in_thread(bench.guard, waiter)))
    thread.start()
    thread.join(10)
    assert [each.admitted for each in decisions] == [True]
