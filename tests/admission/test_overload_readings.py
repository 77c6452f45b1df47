"""What admission tells of itself: slots, queue, and the age of the oldest waiter."""

from __future__ import annotations

import pytest

from resilient_mw.admission.overload_policy import Signal
from resilient_mw.admission.overload_readings import admission_readings
from tests.admission.desk import PATIENT, Desk


def _readings(desk: Desk, now: float) -> tuple[float, float, float]:
    readings = admission_readings(desk.controller, now)
    assert list(readings) == [Signal.SLOTS, Signal.QUEUE, Signal.QUEUE_AGE]
    slots, queue, age = readings.values()
    return slots, queue, age


def test_nothing_is_in_use_at_the_start() -> None:
    assert _readings(Desk(limit=4), 0.0) == (0.0, 0.0, 0.0)


def test_slots_count_by_their_cost_and_waiters_by_their_places() -> None:
    desk = Desk(limit=4, queue=10)
    desk.admit(0.0, cost=3)
    assert _readings(desk, 0.0) == (0.75, 0.0, 0.0)
    desk.admit(0.0)
    desk.queue(0.0, cost=4)
    assert _readings(desk, 0.0) == (1.0, 0.1, 0.0)


def test_exempt_requests_use_no_slots() -> None:
    desk = Desk(limit=4)
    desk.admit(0.0, "exempt")
    assert _readings(desk, 0.0) == (0.0, 0.0, 0.0)


def test_the_oldest_waiter_is_measured_by_what_it_would_wait_at_most() -> None:
    desk = Desk(**{**PATIENT, "limit": 1, "queue": 10, "max_wait": 8.0})
    desk.admit(0.0)
    desk.queue(0.0)
    desk.queue(2.0)
    for now, age in ((2.0, 0.25), (4.0, 0.5), (7.0, 0.875)):
        assert _readings(desk, now) == (1.0, 0.2, age)


def test_the_impatient_waiter_of_another_class_counts() -> None:
    desk = Desk(**{**PATIENT, "limit": 1, "queue": 10, "max_wait": 8.0})
    desk.admit(0.0)
    desk.queue(0.0, "critical")
    desk.queue(1.0, "sheddable", budget=2.0)
    assert _readings(desk, 1.0)[2] == pytest.approx(0.125), "one that has just come hides nobody"
    assert _readings(desk, 2.0)[2] == pytest.approx(0.5)
    desk.controller.tick(3.0)
    assert _readings(desk, 3.0)[2] == pytest.approx(0.375), "it gave up, and only the other is left"


def test_without_a_queue_a_full_house_is_a_full_queue() -> None:
    desk = Desk(limit=2, queue=0)
    desk.admit(0.0)
    assert _readings(desk, 0.0) == (0.5, 0.0, 0.0)
    desk.admit(0.0)
    assert _readings(desk, 0.0) == (1.0, 1.0, 0.0)


def test_a_limit_that_was_lowered_shows_as_more_than_full() -> None:
    desk = Desk(limit=4)
    for _ in range(4):
        desk.admit(0.0)
    desk.controller.slots.limit = 2
    assert _readings(desk, 0.0)[0] == 2.0
