"""The queue of one class, and the timetable of all waiters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.admission.queue import ClassState, Timetable
from resilient_mw.core.priority import PriorityClass
from tests.admission.desk import Desk

ROUTE = Desk().route()


def _waiter(give_up_at: float, cost: int = 1) -> Waiter:
    return Waiter(ROUTE, cost, 0.0, give_up_at, give_up_at)


def test_a_class_knows_its_oldest_and_newest_waiter_whoever_left() -> None:
    state = ClassState(PriorityClass("a"), 0, places=1, most=9)
    waiters = [_waiter(1.0, cost) for cost in (1, 2, 3, 4)]
    for waiter in waiters:
        state.append(waiter)
    for gone, oldest, newest, cost in ((1, 0, 3, 8), (3, 0, 2, 4), (0, 2, 2, 3)):
        state.remove(waiters[gone])
        assert (state.first(), state.last(), state.queued_cost) == (waiters[oldest], waiters[newest], cost)
    with pytest.raises(KeyError):
        state.remove(waiters[0])


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=40), st.integers(0, 20))
def test_due_waiters_come_in_the_order_of_their_time_and_the_gone_do_not_come(
    added: list[tuple[int, bool]], now: int
) -> None:
    timetable = Timetable()
    waiters = [_waiter(float(at)) for at, _ in added]
    for number, waiter in enumerate(waiters):
        timetable.add(waiter, number + 1)
    for waiter, (_, gone) in zip(waiters, added, strict=True):
        if gone:
            waiter.state = WaiterState.LEFT
    alive = [waiter for waiter in waiters if waiter.state is WaiterState.WAITING]
    assert timetable.next_due() == min((waiter.give_up_at for waiter in alive), default=None)
    due: list[Waiter] = []
    while (popped := timetable.pop_due(float(now))) is not None:
        popped.state = WaiterState.REFUSED
        due.append(popped)
    # Equal times in the order of arrival: sorted() is stable.
    expected = sorted((each for each in alive if each.give_up_at <= now), key=lambda each: each.give_up_at)
    assert due == expected


def test_waiters_that_left_do_not_pile_up() -> None:
    """One waits for an hour while thousands of others come and go."""
    timetable = Timetable()
    timetable.add(_waiter(3600.0), 1)
    longest = 0
    for number in range(20_000):
        waiter = _waiter(4000.0 + number)
        timetable.add(waiter, 2)
        waiter.state = WaiterState.LEFT
        longest = max(longest, len(timetable))
    assert longest <= 2 * 2 + Timetable.SLACK
    assert timetable.next_due() == 3600.0
