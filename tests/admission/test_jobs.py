"""The decisions of a bounded queue of jobs."""

from __future__ import annotations

import math
from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from resilient_mw.admission.job import Job, JobState
from resilient_mw.admission.jobs import JobQueue
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.core.priority import CRITICAL, NORMAL, PriorityClass
from resilient_mw.core.rejection import Reason

_ids = count()


def job(priority: str = "normal", expires_at: float = math.inf) -> Job:
    name = f"job-{next(_ids)}"
    return Job(name, name, print, priority=priority, expires_at=expires_at)


def queue(**fields: Any) -> JobQueue:
    return JobQueue(JobsPolicy(**fields))


def put(jobs: JobQueue, priority: str = "normal", *, now: float = 0.0, wait: float = 0.0, **more: Any) -> Job:
    made = job(priority, more.pop("expires_at", math.inf))
    jobs.put(now, made, wait, **more)
    return made


def test_a_job_is_promised_while_there_is_a_place_and_refused_afterwards() -> None:
    jobs = queue(places=2, shares={})
    made = [put(jobs) for _ in range(3)]
    assert [each.state for each in made] == [JobState.QUEUED, JobState.QUEUED, JobState.REFUSED]
    assert made[2].reason is Reason.QUEUE_FULL


def test_the_last_places_are_for_higher_classes() -> None:
    jobs = queue(places=10)
    made = [put(jobs, "sheddable") for _ in range(10)]
    assert sum(each.state is JobState.QUEUED for each in made) == 5
    assert sum(put(jobs, "normal").state is JobState.QUEUED for _ in range(10)) == 4
    assert [put(jobs, "critical").state for _ in range(2)] == [JobState.QUEUED, JobState.REFUSED]


def test_a_class_has_a_bound_of_its_own() -> None:
    jobs = queue(places=10, shares={}, classes=(CRITICAL, PriorityClass("normal", queue_length=1)))
    assert [put(jobs).state for _ in range(2)] == [JobState.QUEUED, JobState.REFUSED]
    assert put(jobs, "critical").state is JobState.QUEUED


@pytest.mark.parametrize("name", ["critical", "normal", "sheddable"])
def test_a_queue_of_one_place_has_it_for_every_class(name: str) -> None:
    assert put(queue(places=1), name).state is JobState.QUEUED


def test_whoever_waits_gets_the_place_of_a_job_that_is_taken() -> None:
    jobs = queue(places=1)
    first = put(jobs)
    second = put(jobs, wait=1.0)
    assert second.reason is None
    assert jobs.next_wakeup() == 1.0
    assert jobs.take(0.5) == (first, (second,))
    assert second.state is JobState.QUEUED
    assert jobs.next_wakeup() is None


def test_nobody_overtakes_who_waits_in_the_same_class() -> None:
    jobs = queue(places=1, shares={})
    put(jobs)
    second, third = put(jobs, wait=5.0), put(jobs, wait=5.0)
    assert jobs.take(1.0)[1] == (second,)
    fourth = put(jobs, now=1.0)
    assert (third.state, fourth.reason) == (JobState.WAITING, Reason.QUEUE_FULL)


def test_a_wait_is_over_at_its_end_or_at_the_deadline_of_the_caller() -> None:
    jobs = queue(places=0)
    patient, late = put(jobs, wait=2.0), put(jobs, wait=2.0, deadline_at=1.0)
    assert jobs.tick(0.9) == ()
    assert jobs.tick(1.0) == (late,)
    assert jobs.tick(2.0) == (patient,)
    assert (late.reason, patient.reason) == (Reason.EXPIRED_IN_QUEUE, Reason.QUEUE_TIMEOUT)


def test_a_caller_whose_deadline_has_passed_is_told_so() -> None:
    assert put(queue(), deadline_at=0.0).reason is Reason.EXPIRED_ON_ARRIVAL


def test_those_who_wait_are_bounded_too() -> None:
    jobs = queue(places=0, waiters=1)
    put(jobs, wait=1.0)
    assert put(jobs, wait=1.0).reason is Reason.QUEUE_FULL


def test_classes_take_turns_by_their_weights() -> None:
    jobs = queue(places=100, shares={}, classes=(CRITICAL, NORMAL))
    for _ in range(40):
        put(jobs, "critical")
        put(jobs, "normal")
    taken: Counter[str] = Counter()
    for _ in range(30):
        found, _ = jobs.take(0.0)
        assert found is not None
        taken[found.priority] += 1
    assert taken["critical"] == pytest.approx(2 * taken["normal"], abs=2)


def test_a_class_that_was_idle_has_saved_up_no_turns() -> None:
    jobs = queue(places=100, workers=100, shares={}, classes=(CRITICAL, NORMAL))
    for _ in range(60):
        put(jobs, "critical")
    for _ in range(40):
        jobs.take(0.0)
    for _ in range(10):
        put(jobs, "normal")
    order = [found.priority for found in (jobs.take(0.0)[0] for _ in range(6)) if found is not None]
    assert "critical" in order


def test_an_expired_job_is_not_begun_and_is_counted() -> None:
    jobs = queue()
    late = put(jobs, expires_at=1.0)
    good = put(jobs)
    assert jobs.take(2.0) == (good, ())
    assert (late.state, late.outcome) == (JobState.ENDED, "expired")
    (figures,) = (each for each in jobs.classes() if each.priority == "normal")
    assert figures.ended == {"expired": 1}


def test_a_lease_ends_at_the_jobs_own_end_at_the_latest() -> None:
    jobs = queue(lease=10.0)
    put(jobs)
    put(jobs, expires_at=3.0)
    leases = [found.lease_until for found in (jobs.take(1.0)[0] for _ in range(2)) if found is not None]
    assert leases == [11.0, 3.0]
    assert (jobs.overdue(3.5), jobs.overdue(11.5)) == (1, 2)


def test_while_it_drains_nothing_is_promised_and_what_is_goes_on() -> None:
    jobs = queue(places=1, workers=2)
    first, waits = put(jobs), put(jobs, wait=9.0)
    jobs.drain()
    assert put(jobs).reason is Reason.DRAINING
    assert jobs.take(0.0) == (first, ())  # the place goes to nobody
    assert jobs.tick(0.0) == (waits,)
    assert waits.reason is Reason.DRAINING


def test_what_has_not_begun_is_handed_back_and_may_be_kept() -> None:
    jobs = queue()
    put(jobs)
    jobs.take(0.0)
    second, third = put(jobs), put(jobs)
    jobs.drain()
    assert jobs.clear() == [second, third]
    jobs.kept(third)
    (figures,) = (each for each in jobs.classes() if each.priority == "normal")
    assert (figures.ended, figures.deferred) == ({"left": 1}, 1)


def test_a_deferred_job_is_no_refusal() -> None:
    jobs = queue(places=0)
    made = put(jobs)
    jobs.kept(made)
    (figures,) = (each for each in jobs.classes() if each.priority == "normal")
    assert (figures.refused, figures.deferred, made.deferred) == ({}, 1, True)


def test_a_caller_who_is_interrupted_has_not_been_promised_anything() -> None:
    jobs = queue(places=1)
    first = put(jobs)
    second, third = put(jobs, wait=9.0), put(jobs, wait=9.0)
    assert jobs.leave(0.0, second) == ()
    assert jobs.leave(0.0, first) == (third,)
    assert (third.state, jobs.queued, jobs.waiting) == (JobState.QUEUED, 1, 0)


def test_a_job_that_is_held_has_its_place_and_is_not_taken() -> None:
    jobs = queue(places=1)
    held = job()
    jobs.put(0.0, held, 0.0, hold=True)
    assert put(jobs).reason is Reason.QUEUE_FULL
    assert jobs.take(0.0) == (None, ())
    jobs.let_go(1.0, held)
    jobs.let_go(1.0, held)
    assert jobs.take(1.0) == (held, ())
    assert jobs.queued == 0


def test_a_held_job_that_is_withdrawn_leaves_its_place_and_at_the_end_it_is_handed_back() -> None:
    jobs = queue(places=1)
    held, again = job(), job()
    jobs.put(0.0, held, 0.0, hold=True)
    waits = put(jobs, wait=1.0)
    assert jobs.leave(0.0, held) == (waits,)
    jobs.let_go(0.0, held)
    assert jobs.take(0.0) == (waits, ())
    jobs.put(0.0, again, 9.0, hold=True)
    assert jobs.clear() == [again]
    jobs.let_go(0.0, again)
    assert jobs.queued == 0


def test_retry_after_follows_the_backlog() -> None:
    jobs = queue(workers=2, shares={})
    assert jobs.retry_after(0.0) is None
    for _ in range(10):
        put(jobs)
        found, _ = jobs.take(0.0)
        assert found is not None
        jobs.end(found, "completed", 4.0)
        put(jobs)
        failed, _ = jobs.take(0.0)
        assert failed is not None
        jobs.end(failed, "error", 400.0)  # which says nothing about how long one takes
    for _ in range(9):
        put(jobs)
    assert jobs.retry_after(0.0) == 20
    assert jobs.retry_after(1.0) == 30


@pytest.mark.parametrize(
    "fields",
    [
        {"places": -1},
        {"workers": 0},
        {"workers": True},
        {"lease": 0},
        {"max_wait": "1"},
        {"poll": 0.0},
        {"attempts": 0},
        {"shares": {"normal": 1.1}},
        {"shares": {"unknown": 1}},
        {"classes": ()},
        {"classes": (NORMAL, NORMAL)},
        {"classes": ("normal",)},
        {"classes": (PriorityClass("normal", reserved=1),)},
        {"classes": (PriorityClass("normal", queue_order="newest_first"),)},
        {"name": "with blanks"},
        {"drain": -1},
        {"grace": math.nan},
    ],
)
def test_wrong_bounds_are_named(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(ValueError, match=f"JobsPolicy.{name}"):
        JobsPolicy(**fields)


def test_the_delay_of_a_repeat_doubles_up_to_an_hour() -> None:
    policy = JobsPolicy(retry_after=2.0)
    assert [policy.retry_delay(attempt, 0.0) for attempt in (1, 2, 3, 99)] == [2.0, 4.0, 8.0, 3600.0]
    assert policy.retry_delay(1, 1.0) == 1.0


class Machine(RuleBasedStateMachine):
    """Whatever happens, a promised job is in one place, and nothing grows beyond its bound."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = queue(places=4, workers=2, waiters=3, shares={"sheddable": 0.5})
        self.now = 0.0
        self.promised: list[Job] = []
        self.waiting: list[Job] = []

    def settle(self, settled: tuple[Job, ...]) -> None:
        for each in settled:
            self.waiting.remove(each)
            if each.state is JobState.QUEUED:
                self.promised.append(each)
            else:
                assert each.state is JobState.REFUSED

    @rule(
        name=st.sampled_from(["critical", "normal", "sheddable"]), wait=st.floats(0, 3), life=st.floats(0, 9)
    )
    def comes(self, name: str, wait: float, life: float) -> None:
        made = job(name, self.now + life)
        self.jobs.put(self.now, made, wait)
        if made.state is JobState.QUEUED:
            self.promised.append(made)
        elif made.state is JobState.WAITING:
            self.waiting.append(made)

    @rule()
    def is_taken(self) -> None:
        if self.jobs.free:
            self.settle(self.jobs.take(self.now)[1])

    @rule(which=st.integers(0, 1))
    def ends(self, which: int) -> None:
        running = list(self.jobs.running)
        if which < len(running):
            self.jobs.end(running[which], "completed", 1.0)

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.settle(self.jobs.tick(self.now))
        due = self.jobs.next_wakeup()
        assert due is None or due > self.now

    @rule(which=st.integers(0, 5))
    def leaves(self, which: int) -> None:
        if which < len(self.waiting):
            gone = self.waiting.pop(which)
            self.settle(self.jobs.leave(self.now, gone))

    @invariant()
    def nothing_is_lost_or_unbounded(self) -> None:
        states = Counter(each.state for each in self.promised)
        assert states[JobState.QUEUED] == self.jobs.queued <= 4
        assert states[JobState.RUNNING] == len(self.jobs.running) <= 2
        assert states.keys() <= {JobState.QUEUED, JobState.RUNNING, JobState.ENDED}
        assert self.jobs.waiting == len(self.waiting) <= 3
        figures = list(self.jobs.classes())
        assert sum(each.promised for each in figures) == len(self.promised)
        assert sum(sum(each.ended.values()) for each in figures) == states[JobState.ENDED]


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
