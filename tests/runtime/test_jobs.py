"""Bounded queues of jobs in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from resilient_mw import CancelReason, DeadlineExceeded, RequestCancelled, ServerPolicy, budget, current
from resilient_mw.admission.job import Job
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.core import ports
from resilient_mw.core.errors import JobRefused
from resilient_mw.core.marks import Mark
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.job_context import current_job, may_finish, require_time
from resilient_mw.runtime.jobs import BoundedJobs
from resilient_mw.stores.jobs_memory import MemoryJobStore
from resilient_mw.stores.jobs_sqlite import SQLiteJobStore

ROOT = Path(__file__).parents[2]
WITHIN = 10.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110  whatever the condition is
            await asyncio.sleep(0.005)


class Gate:
    """Jobs that stay at work until they are let go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.began = 0
        self.ended = 0

    async def __call__(self) -> None:
        self.began += 1
        await self.open.wait()
        self.ended += 1

    async def work(self) -> None:
        await self()


@asynccontextmanager
async def working(**fields: Any) -> AsyncIterator[BoundedJobs]:
    more = {name: fields.pop(name) for name in ("store", "server", "left") if name in fields}
    jobs = BoundedJobs(JobsPolicy(**{"poll": 0.02, "drain": WITHIN, "shares": {}, **fields}), **more)
    async with jobs:
        yield jobs


def ended(jobs: BoundedJobs) -> dict[str, int]:
    totals: dict[str, int] = {}
    for each in jobs.snapshot().classes:
        for outcome, number in each.ended.items():
            totals[outcome] = totals.get(outcome, 0) + number
    return totals


def refused(jobs: BoundedJobs) -> dict[str, int]:
    return {
        reason: number
        for each in jobs.snapshot().classes
        for reason, number in each.refused.items()
        if number
    }


async def test_functions_of_both_kinds_are_done() -> None:
    done: list[tuple[str, int]] = []

    async def in_loop(number: int) -> None:
        done.append(("loop", number))

    def in_thread(number: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        done.append(("thread", number))

    async with working() as jobs:
        await jobs.put(in_loop, 1)
        await jobs.put(in_thread, 2)
    assert sorted(done) == [("loop", 1), ("thread", 2)]
    assert ended(jobs) == {"completed": 2}


async def test_no_more_are_at_work_than_there_are_workers() -> None:
    gate = Gate()
    async with working(workers=2) as jobs:
        for _ in range(5):
            await jobs.put(gate.work)
        await until(lambda: gate.began == 2)
        snapshot = jobs.snapshot()
        assert (snapshot.running, sum(each.queued for each in snapshot.classes)) == (2, 3)
        gate.open.set()
    assert gate.ended == 5


async def test_a_full_queue_refuses_before_it_promises() -> None:
    gate = Gate()
    async with working(places=1, workers=1, max_wait=0.0) as jobs:
        await jobs.put(gate.work)
        await until(lambda: gate.began == 1)
        await jobs.put(gate.work)
        with pytest.raises(JobRefused) as caught:
            await jobs.put(gate.work, priority="sheddable")
        assert (caught.value.reason, caught.value.priority) == (Reason.QUEUE_FULL, "sheddable")
        gate.open.set()
    assert gate.ended == 2
    assert refused(jobs) == {"queue_full": 1}


async def test_put_waits_for_a_place() -> None:
    gate = Gate()
    async with working(places=1, workers=1, max_wait=WITHIN) as jobs:
        await jobs.put(gate.work)
        await until(lambda: gate.began == 1)
        await jobs.put(gate.work)
        third = asyncio.create_task(jobs.put(gate.work))
        await until(lambda: sum(each.waiting for each in jobs.snapshot().classes) == 1)
        assert not third.done()
        gate.open.set()
        await third
    assert gate.ended == 3


@pytest.mark.parametrize(
    ("left", "wait", "reason"), [(None, 0.05, Reason.QUEUE_TIMEOUT), (0.5, 60.0, Reason.EXPIRED_IN_QUEUE)]
)
async def test_put_waits_no_longer_than_it_may_and_the_deadline_allows(
    left: float | None, wait: float, reason: Reason
) -> None:
    gate = Gate()
    async with working(places=0, workers=1) as jobs:
        limit = contextlib.nullcontext() if left is None else budget(left)
        with limit, pytest.raises(JobRefused) as caught:
            await jobs.put(gate.work, wait=wait)
    assert caught.value.reason is reason


async def test_who_has_no_time_left_is_refused_at_once() -> None:
    async with working() as jobs:
        with budget(0.0), pytest.raises(JobRefused) as caught:
            await jobs.put(print)
    assert caught.value.reason is Reason.EXPIRED_ON_ARRIVAL


async def test_whoever_is_cancelled_while_he_waits_leaves_nothing() -> None:
    async with working(places=0) as jobs:
        waits = asyncio.create_task(jobs.put(print, wait=60.0))
        await until(lambda: sum(each.waiting for each in jobs.snapshot().classes) == 1)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert sum(each.waiting for each in jobs.snapshot().classes) == 0


async def test_the_lease_is_the_deadline_and_cancels_the_handler() -> None:
    seen: list[Any] = []

    async def endless() -> None:
        seen.append(0.0 < current().remaining() <= 0.5)
        current().on_cancel(seen.append)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with working(lease=0.5) as jobs:
        await jobs.put(endless)
        await until(lambda: ended(jobs) == {"deadline": 1})
    assert seen[0] is True
    assert sorted(map(str, seen[1:])) == ["cancelled", "deadline"]


async def test_a_thread_is_told_and_keeps_its_slot_until_it_returns() -> None:
    go_on, raised = threading.Event(), threading.Event()

    def stubborn() -> None:
        go_on.wait(WITHIN)
        try:
            current().check()
        except DeadlineExceeded:
            raised.set()

    async with working(lease=0.05, workers=1) as jobs:
        await jobs.put(stubborn)
        await until(lambda: jobs.snapshot().overdue == 1)
        assert ended(jobs) == {}
        go_on.set()
        await until(lambda: ended(jobs) == {"deadline": 1})
    assert raised.is_set()


async def test_work_that_a_job_leaves_behind_keeps_its_slot() -> None:
    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def leaves() -> None:
        current().hold(left)

    async with working() as jobs:
        await jobs.put(leaves)
        await until(lambda: jobs.snapshot().running == 1)
        await asyncio.sleep(0.05)
        assert ended(jobs) == {}
        left.set_result(None)
        await until(lambda: ended(jobs) == {"completed": 1})


async def test_the_budget_of_the_caller_goes_along_if_he_wants() -> None:
    left: list[float] = []

    async def look() -> None:
        left.append(current().remaining())

    async with working(lease=50.0) as jobs:
        with budget(20.0):
            await jobs.put(look, carry_budget=True)
            await jobs.put(look)
            await jobs.put(look, expires=10.0)
        await until(lambda: len(left) == 3)
    assert sorted(round(each, -1) for each in left) == [10, 20, 50]


async def test_a_job_that_expired_in_the_queue_is_not_begun() -> None:
    gate = Gate()
    ran: list[int] = []
    async with working(workers=1) as jobs:
        await jobs.put(gate.work)
        await jobs.put(ran.append, 1, expires=0.01)
        await asyncio.sleep(0.05)
        gate.open.set()
        await until(lambda: ended(jobs) == {"completed": 1, "expired": 1})
    assert ran == []


async def test_a_job_that_fails_is_logged_and_counted_and_hurts_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails() -> None:
        raise LookupError("no such customer")

    ran: list[int] = []
    async with working(workers=1) as jobs:
        await jobs.put(fails)
        await jobs.put(ran.append, 1)
    assert ran == [1]
    assert ended(jobs) == {"error": 1, "completed": 1}
    assert "no such customer" in caplog.text


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError])
async def test_whatever_a_job_raises_its_worker_does_the_next_one(kind: type[BaseException]) -> None:
    def plain() -> None:
        raise kind

    async def coroutine() -> None:
        raise kind

    done = asyncio.Event()

    async def last() -> None:
        done.set()

    async with working(workers=1, lease=3600) as jobs:
        for work in (plain, coroutine, last):
            await jobs.put(work)
        async with asyncio.timeout(WITHIN):
            await done.wait()
        await until(lambda: ended(jobs) == {"error": 2, "completed": 1})
        assert jobs.snapshot().running == 0


async def test_the_callers_context_variables_are_seen_but_not_his_request() -> None:
    keys: list[Any] = []

    async def look() -> None:
        job = current_job()
        assert job is not None
        keys.append((job.key, job.attempt, current().remaining() > 10.0))

    async with working() as jobs:
        with budget(0.5):
            made = await jobs.put(look, key="the key")
        await until(lambda: keys)
    assert keys == [("the key", 1, True)]
    assert made.key == "the key"
    assert current_job() is None


async def test_closing_finishes_what_is_promised() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0.01)
        done.append(number)

    async with working(workers=1) as jobs:
        for number in range(5):
            await jobs.put(work, number)
    assert done == [0, 1, 2, 3, 4]
    with pytest.raises(JobRefused) as caught:
        await jobs.put(work, 9)
    assert caught.value.reason is Reason.DRAINING


async def test_what_is_not_finished_in_time_is_cancelled_handed_back_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Job] = []
    reasons: list[Any] = []

    async def endless() -> None:
        current().on_cancel(reasons.append)
        await asyncio.sleep(60)

    jobs = BoundedJobs(JobsPolicy(workers=1, drain=0.05), left=told.extend)
    first = await jobs.put(endless)
    await until(lambda: jobs.snapshot().running == 1)
    second = await jobs.put(endless)
    left = await jobs.close()
    assert left == told == [second]
    assert reasons == [CancelReason.SHUTDOWN]
    assert ended(jobs) == {"shutdown": 1, "left": 1}
    assert "1 promised jobs that were not begun" in caplog.text
    assert re.search(rf"job {first.id} \(.*endless.*\) was cancelled: shutdown", caplog.text)


async def test_code_in_a_thread_learns_that_the_queue_is_closed() -> None:
    raised: list[BaseException] = []

    def polite() -> None:
        for _ in range(2000):
            threading.Event().wait(0.005)
            try:
                current().check()
            except RequestCancelled as error:
                raised.append(error)
                return

    jobs = BoundedJobs(JobsPolicy(drain=0.02))
    await jobs.put(polite)
    await until(lambda: jobs.snapshot().running == 1)
    assert await jobs.close() == []
    assert [str(each) for each in raised] == ["the request was cancelled: shutdown"]


async def test_what_is_left_is_kept_in_the_store_if_it_can_be_written_down() -> None:
    gate, store = Gate(), MemoryJobStore()
    jobs = BoundedJobs(JobsPolicy(workers=1, drain=0.02, poll=60.0), store=store)
    jobs.task("gate")(gate.work)
    await jobs.put(gate.work)
    await until(lambda: gate.began == 1)
    kept = await jobs.put(gate.work, key="k")
    lost = await jobs.put(lambda: None)
    assert await jobs.close() == [lost]
    found = store.claim(1e12, 2e12, ("gate",), 3)
    assert found is not None
    assert (found.job.key, kept.deferred) == ("k", True)


async def test_a_route_may_defer_instead_of_refusing() -> None:
    gate, store = Gate(), MemoryJobStore()
    done: list[int] = []
    async with working(workers=1, places=1, store=store) as jobs:

        @jobs.task("note")
        async def note(number: int) -> None:
            done.append(number)

        await jobs.put(gate.work)
        await until(lambda: gate.began == 1)
        made = [await jobs.put_or_defer(note, number, wait=0.0) for number in range(3)]
        assert [each.deferred for each in made] == [False, True, True]
        assert refused(jobs) == {}
        gate.open.set()
        await until(lambda: len(done) == 3)
    assert sorted(done) == [0, 1, 2]


async def test_a_store_without_a_place_refuses() -> None:
    store = MemoryJobStore()
    async with working(store=store, durable_places=0) as jobs:
        jobs.task("note")(print)
        with pytest.raises(JobRefused) as caught:
            await jobs.put_durable("note")
    assert caught.value.reason is Reason.QUEUE_FULL


async def test_a_durable_job_that_fails_is_delivered_again_with_its_key_and_owns_the_retries() -> None:
    seen: list[Any] = []
    store = MemoryJobStore()
    async with working(store=store, retry_after=0.01, attempts=3) as jobs:

        @jobs.task("flaky")
        async def flaky(name: str) -> None:
            job = current_job()
            assert job is not None
            owner = current().retry_owner(("x-retry-owner", "x-retry-attempt"))
            seen.append((name, job.key, job.attempt, owner and (owner.name, owner.attempt)))
            if job.attempt < 3:
                raise OSError("not yet")

        await jobs.put_durable(flaky, "a", key="k")
        await until(lambda: len(seen) == 3)
        await until(lambda: ended(jobs) == {"error": 2, "completed": 1})
        assert jobs.snapshot().redelivered == 2
    assert seen == [("a", "k", number, ("jobs:jobs", number)) for number in (1, 2, 3)]


async def test_a_durable_job_that_never_succeeds_is_kept_for_a_person() -> None:
    store = MemoryJobStore()
    async with working(store=store, retry_after=0.001, attempts=2) as jobs:

        @jobs.task("broken")
        async def broken() -> None:
            raise OSError("never")

        await jobs.put_durable("broken")
        await until(store.dead)
    assert [why for _, why in store.dead()] == ["OSError('never')"]


async def test_a_job_in_memory_owns_no_retries() -> None:
    owners: list[Any] = []

    async def look() -> None:
        owners.append(current().retry_owner(("x-retry-owner", "x-retry-attempt")))

    async with working() as jobs:
        await jobs.put(look)
    assert owners == [None]


async def test_the_store_is_not_starved_by_the_queue_in_memory() -> None:
    store = MemoryJobStore()
    order: list[str] = []
    async with working(store=store, workers=1, places=100) as jobs:

        @jobs.task("note")
        async def note(name: str) -> None:
            order.append(name)
            await asyncio.sleep(0)

        await jobs.put_durable(note, "durable")
        for _ in range(30):
            await jobs.put(note, "memory")
        await until(lambda: len(order) == 31)
    assert "durable" in order[:20]


async def test_jobs_of_other_processes_are_found(tmp_path: Path) -> None:
    store, other = SQLiteJobStore(tmp_path / "jobs.db"), SQLiteJobStore(tmp_path / "jobs.db")
    done: list[int] = []
    async with working(store=store) as jobs:
        jobs.task("note")(done.append)
        there = BoundedJobs(store=other)
        there.task("note")(print)
        await asyncio.to_thread(there._stored, there._made("note", (7,)))
        await until(lambda: done == [7])
    store.close()
    other.close()


KILLED = """
import asyncio, os, signal, sys
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.runtime.job_context import current_job
from resilient_mw.runtime.jobs import BoundedJobs
from resilient_mw.stores.jobs_sqlite import SQLiteJobStore

async def main():
    jobs = BoundedJobs(JobsPolicy(lease=0.2, grace=0.2), store=SQLiteJobStore(sys.argv[1]))

    @jobs.task("pay")
    async def pay(amount):
        os.kill(os.getpid(), signal.SIGKILL)

    await jobs.put_durable(pay, 12, key="order-7")
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_after_a_crash_the_job_is_delivered_again_with_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    died = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED, str(path)],
        cwd=ROOT,
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    store = SQLiteJobStore(path)
    seen: list[Any] = []
    async with working(store=store) as jobs:

        @jobs.task("pay")
        async def pay(amount: int) -> None:
            job = current_job()
            assert job is not None
            seen.append((amount, job.key, job.attempt))

        await until(lambda: seen)
        await until(lambda: ended(jobs) == {"completed": 1})
    assert seen == [(12, "order-7", 2)]
    assert store.counts(0.0).waiting == {}
    store.close()


async def test_a_job_whose_lease_another_one_has_is_counted() -> None:
    store = MemoryJobStore()
    go_on = asyncio.Event()
    async with working(store=store) as jobs:

        @jobs.task("slow")
        async def slow() -> None:
            await go_on.wait()

        await jobs.put_durable(slow)
        await until(lambda: jobs.snapshot().running == 1)
        assert store.claim(1e12, 2e12, ("slow",), 9) is not None
        go_on.set()
        await until(lambda: jobs.snapshot().lost == 1)


async def test_a_store_that_does_not_answer_is_counted_and_asked_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR, "resilient_mw.jobs")
    store = MemoryJobStore()
    done: list[int] = []
    asked = store.counts

    def away(now: float) -> Any:
        monkeypatch.setattr(store, "counts", asked)
        raise OSError("away")

    monkeypatch.setattr(store, "counts", away)
    async with working(store=store) as jobs:
        jobs.task("note")(done.append)
        await until(lambda: jobs.snapshot().unreachable == 1)
        await jobs.put_durable("note", 1)
        await until(lambda: done == [1])


class SlowToSay(MemoryJobStore):
    """A store that answers, when it is asked what it holds, not before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.may = threading.Event()

    def counts(self, now: float) -> Any:
        self.asked += 1
        assert self.may.wait(WITHIN)
        return super().counts(now)


async def test_a_job_that_comes_while_the_store_is_looked_at_is_begun_afterwards() -> None:
    store, done = SlowToSay(), asyncio.Event()

    async def work() -> None:
        done.set()

    async with working(store=store, workers=1, poll=3600) as jobs:
        jobs.task("other")(print)
        await until(lambda: store.asked)
        await jobs.put(work)
        store.may.set()
        async with asyncio.timeout(WITHIN):
            await done.wait()


async def test_a_job_that_comes_while_the_store_is_looked_at_is_finished_when_the_queue_is_closed() -> None:
    store, done = SlowToSay(), asyncio.Event()

    async def work() -> None:
        done.set()

    async with working(store=store, workers=1, poll=3600) as jobs:
        jobs.task("other")(print)
        await until(lambda: store.asked)
        await jobs.put(work)
        closing = asyncio.ensure_future(jobs.close())
        await asyncio.sleep(0)
        store.may.set()
        assert await closing == []
    assert done.is_set()


async def test_a_claim_is_kept_when_the_store_cannot_say_what_it_holds() -> None:
    done: list[int] = []

    class Silent(MemoryJobStore):
        claims = 0

        def claim(self, *facts: Any) -> Any:
            self.claims += 1
            return super().claim(*facts)

        def counts(self, now: float) -> Any:
            if self.claims:
                raise OSError("away")
            return super().counts(now)

    async with working(store=Silent(), poll=3600, lease=3600) as jobs:
        jobs.task("note")(done.append)
        await jobs.put_durable("note", 1)
        await until(lambda: done == [1])
        assert jobs.snapshot().unreachable


async def test_durable_jobs_need_a_name_a_store_and_what_json_can_hold() -> None:
    async with working() as jobs:
        with pytest.raises(ValueError, match="no durable store"):
            await jobs.put_durable(print)
        with pytest.raises(ValueError, match="no task 'mail'"):
            await jobs.put("mail")
        with pytest.raises(ValueError, match="priority='other'"):
            await jobs.put(print, priority="other")
    async with working(store=MemoryJobStore()) as jobs:
        with pytest.raises(ValueError, match="cannot be made durable"):
            await jobs.put_durable(print)
        jobs.task("print")(print)
        with pytest.raises(ValueError, match="cannot be made durable"):
            await jobs.put_durable(print, object())
        with pytest.raises(ValueError, match="cannot be made durable"):
            await jobs.put_durable(print, [{"a": {1: "would become text"}}])
        with pytest.raises(ValueError, match="taken"):
            jobs.task("print")(len)


async def test_jobs_run_only_when_the_server_has_a_slot_for_them() -> None:
    server = ServerPolicy(limit=1, queue=10, max_wait=0.2)
    guard = guard_of(server)
    entry = guard.entries.get("/", Mark())
    assert guard.arrive(entry, guard.clock.now(), 1e9).admitted
    done: list[int] = []
    async with working(server=server) as jobs:
        await jobs.put(done.append, 1)
        await asyncio.sleep(0.05)
        assert done == []
        assert jobs.snapshot().running == 0  # it is not even taken
        guard.release(entry, 1)
        await until(lambda: done == [1])
        await until(lambda: guard.controller.slots.in_use == 0)
    routes = {each.route: each for each in guard.snapshot().routes}
    assert routes["jobs/jobs"].outcomes == {"completed": 1}


async def test_put_nowait_works_from_any_thread() -> None:
    done: list[int] = []
    async with working(places=1, workers=1) as jobs:
        await asyncio.to_thread(jobs.put_nowait, done.append, 1)
        await until(lambda: done == [1])
    with pytest.raises(JobRefused):
        jobs.put_nowait(done.append, 2)


async def test_one_queue_belongs_to_one_loop() -> None:
    async with working() as jobs:

        def elsewhere() -> None:
            asyncio.run(jobs.start())

        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(elsewhere)


def test_a_queue_may_be_used_again_in_a_new_loop() -> None:
    jobs = BoundedJobs()
    done: list[int] = []

    async def once(number: int) -> None:
        await jobs.put(done.append, number)
        await until(lambda: number in done)

    asyncio.run(once(1))
    asyncio.run(once(2))
    assert done == [1, 2]


@pytest.mark.parametrize("kept", [True, False])
def test_a_loop_that_is_closed_under_a_job_gives_the_slot_of_the_server_back(kept: bool) -> None:
    server = ServerPolicy(limit=1)
    done: list[int] = []

    def made() -> BoundedJobs:
        return BoundedJobs(JobsPolicy(workers=1, shares={}), server=server)

    async def begun(jobs: BoundedJobs) -> None:
        await jobs.put(asyncio.Event().wait)
        await until(lambda: jobs.snapshot().running == 1)

    async def again(jobs: BoundedJobs) -> None:
        async with asyncio.timeout(WITHIN):
            await jobs.put(done.append, 1)
            await until(lambda: done)

    jobs = made()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it is told that a task was destroyed
    loop.run_until_complete(begun(jobs))
    loop.close()
    if not kept:
        jobs = made()
    del loop
    gc.collect()
    asyncio.run(again(jobs))
    assert guard_of(server).controller.slots.in_use == 0


def test_a_queue_that_was_closed_may_be_opened_again() -> None:
    store = MemoryJobStore()
    jobs = BoundedJobs(JobsPolicy(poll=0.02), store=store)
    done: list[int] = []
    jobs.task("note")(done.append)

    async def once(number: int) -> None:
        for each in (number, number + 1):
            async with jobs:
                await jobs.put("note", each)
                await jobs.put_durable("note", -each)
                await until(partial(set.issubset, {each, -each}, done))

    asyncio.run(once(1))
    asyncio.run(once(3))
    assert sorted(done) == [-4, -3, -2, -1, 1, 2, 3, 4]


async def test_a_queue_is_visible_to_exporters_while_it_lives() -> None:
    jobs = BoundedJobs(JobsPolicy(name="seen"))
    assert "seen" in {each.jobs for each in ports.jobs_snapshots()}
    await jobs.close()


def test_whether_another_attempt_fits_can_be_asked() -> None:
    assert may_finish(1e9)
    with budget(5.0):
        assert may_finish(1.0, 2.0)
        assert not may_finish(4.0, 2.0)
        with pytest.raises(DeadlineExceeded, match="does not fit"):
            require_time(4.0, 2.0)
