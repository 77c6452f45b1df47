"""However much arrives: what waits, what runs and what is remembered stays bounded, and so does the wait."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import Waiter
from resilient_mw.admission.queue import Timetable
from resilient_mw.simulation import Constant, Script, Simulation, Traffic, Workers
from tests.closed_loop.scenes import LIMIT, play, traffic

POLICY = ServerPolicy(limit=LIMIT, queue=20, max_wait=30, wait_share=1, deadline_default=60)


class Memory:
    """Looks every now and then at what the controller holds."""

    def __init__(self) -> None:
        self.timetable = 0
        self.waiters = 0
        self._before = 0

    def watch(self, simulation: Simulation) -> None:
        self._before = waiters_alive()
        for number in range(1, 300):
            simulation.engine.at(number * 0.01, partial(self._look, simulation))
        for number in range(1, 4):
            simulation.engine.at(number * 0.7, self._count)

    def _look(self, simulation: Simulation) -> None:
        controller = simulation.server.controller
        assert controller is not None
        assert controller.waiting == sum(len(state.queue) for state in controller.classes)
        self.timetable = max(self.timetable, len(controller._timetable))

    def _count(self) -> None:
        self.waiters = max(self.waiters, waiters_alive() - self._before)


def waiters_alive() -> int:
    gc.collect()
    return sum(type(each) is Waiter for each in gc.get_objects())  # isinstance would wake lazy objects


def memory_of(*kinds: Traffic) -> Memory:
    memory = Memory()
    play(3, *kinds, policy=POLICY, meddle=memory.watch)
    return memory


# All slots are taken, a patient caller is the first who would give up, and behind him many come and go.
LEAVERS = (
    traffic(1, Constant(50.0), name="stuck", arrivals=Script((0.0,) * LIMIT), deadline=60.0),
    traffic(1, name="patient", arrivals=Script((0.001,)), deadline=20.0),
    traffic(10, deadline=50.0, patience=0.02),
)
MOST_REMEMBERED = 2 * POLICY.queue_length + Timetable.SLACK


@pytest.mark.parametrize(
    "kinds",
    [[traffic(10, deadline=50.0)], [traffic(10, deadline=50.0, patience=0.08)], LEAVERS],
    ids=["patient", "impatient", "leavers"],
)
def test_at_ten_times_the_load_queue_timetable_and_waiters_are_bounded(kinds: Sequence[Traffic]) -> None:
    memory = memory_of(*kinds)
    assert 0 < memory.timetable <= MOST_REMEMBERED
    # Those in the timetable, and those that have been granted and have not begun.
    assert 0 < memory.waiters <= MOST_REMEMBERED + LIMIT


def test_without_compaction_the_timetable_would_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timetable, "SLACK", 10**9)
    memory = memory_of(*LEAVERS)
    assert memory.timetable > 10 * MOST_REMEMBERED
    assert memory.waiters > 5 * MOST_REMEMBERED


def test_without_a_bound_the_queue_would_grow() -> None:
    endless = POLICY.with_changes({"queue": 10**6})
    measures = play(3, traffic(10, deadline=50.0), policy=endless)
    assert measures.most_waiting > 100 * POLICY.queue_length


def test_a_full_queue_is_reached_and_not_passed_and_all_slots_are_used() -> None:
    measures = play(5, traffic(10), policy=POLICY, sample=0.01)
    assert measures.most_waiting == POLICY.queue_length
    assert measures.most_running == LIMIT
    assert min(measures.levels.between(measures.levels.in_use, 1, 5)) == LIMIT


@pytest.mark.parametrize(
    ("max_wait", "share", "deadline"),
    [(0.1, 1.0, 1.0), (0.1, 0.5, 1.0), (1.0, 0.25, 0.4), (0.0, 1.0, 1.0)],
    ids=str,
)
def test_nobody_waits_longer_than_the_bound(max_wait: float, share: float, deadline: float) -> None:
    policy = ServerPolicy(limit=LIMIT, queue=100, max_wait=max_wait, wait_share=share)
    page = play(10, traffic(2, deadline=deadline), policy=policy).total
    bound = min(max_wait, share * deadline)
    assert max(page.waited) <= bound + 1e-9
    assert page.refused > 0
    # The bound decides here, not the length of the queue: without it they wait longer.
    patient = policy.with_changes({"max_wait": 10.0, "wait_share": 1.0})
    assert max(play(10, traffic(2, deadline=10.0), policy=patient).total.waited) > bound + 0.1


def test_callers_who_leave_give_their_places_and_slots_back() -> None:
    """Everybody hangs up: many while they wait, the rest while they are worked for."""
    page = play(10, traffic(3, Constant(5.0), deadline=9.0, patience=0.3), policy=POLICY).total
    assert page.left > 100
    assert page.in_time == 0
    assert page.admitted > 10 * LIMIT


def test_slots_of_threads_that_cannot_be_stopped_stay_taken() -> None:
    """All callers give up long before their work ends: never more at work than there are threads."""
    measures = play(
        10,
        traffic(1, Constant(2.0), deadline=0.5),
        policy=ServerPolicy(limit=LIMIT),
        plant=Workers(LIMIT, stoppable=False),
    )
    assert measures.most_running == LIMIT
    assert measures.total.overran == measures.total.admitted
    assert max(measures.levels.backlog) == 0
