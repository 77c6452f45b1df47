"""Bounded queues of jobs in threads."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from resilient_mw import CancelReason, DeadlineExceeded, RequestCancelled, ServerPolicy, budget, current
from resilient_mw.admission.job import Job
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.core.errors import JobRefused
from resilient_mw.core.job_store import NewJob
from resilient_mw.core.marks import Mark
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.job_context import current_job
from resilient_mw.runtime.jobs_threads import ThreadedJobs
from resilient_mw.stores.jobs_memory import MemoryJobStore
from resilient_mw.stores.jobs_sqlite import SQLiteJobStore

ROOT = Path(__file__).parents[2]
WITHIN = 10.0


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


class Gate:
    """Jobs that stay at work until they are let go."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began: list[int] = []
        self.ended: list[int] = []

    def work(self) -> None:
        self.began.append(1)
        assert self.open.wait(WITHIN)
        self.ended.append(1)


@contextmanager
def working(**fields: Any) -> Iterator[ThreadedJobs]:
    more = {name: fields.pop(name) for name in ("store", "server", "left") if name in fields}
    jobs = ThreadedJobs(JobsPolicy(**{"poll": 0.02, "drain": WITHIN, "shares": {}, **fields}), **more)
    with jobs:
        yield jobs


def ended(jobs: ThreadedJobs) -> dict[str, int]:
    totals: dict[str, int] = {}
    for each in jobs.snapshot().classes:
        for outcome, number in each.ended.items():
            totals[outcome] = totals.get(outcome, 0) + number
    return totals


def waiting(jobs: ThreadedJobs) -> int:
    return sum(each.waiting for each in jobs.snapshot().classes)


def test_jobs_are_done_by_no_more_threads_than_there_are_workers() -> None:
    gate = Gate()
    with working(workers=2) as jobs:
        for _ in range(5):
            jobs.put(gate.work)
        until(lambda: len(gate.began) == 2)
        assert jobs.snapshot().running == 2
        gate.open.set()
    assert len(gate.ended) == 5
    assert ended(jobs) == {"completed": 5}


def test_a_full_queue_refuses_before_it_promises_and_put_waits_for_a_place() -> None:
    gate = Gate()
    with working(places=1, workers=1) as jobs:
        jobs.put(gate.work)
        until(lambda: gate.began)
        jobs.put(gate.work)
        with pytest.raises(JobRefused) as caught:
            jobs.put(gate.work, wait=0.0)
        assert caught.value.reason is Reason.QUEUE_FULL
        third = threading.Thread(target=jobs.put, args=(gate.work,), kwargs={"wait": WITHIN})
        third.start()
        until(lambda: waiting(jobs) == 1)
        gate.open.set()
        third.join(WITHIN)
    assert len(gate.ended) == 3


@pytest.mark.parametrize(
    ("left", "wait", "reason"), [(60.0, 0.02, Reason.QUEUE_TIMEOUT), (0.5, 60.0, Reason.EXPIRED_IN_QUEUE)]
)
def test_put_waits_no_longer_than_it_may_and_the_deadline_allows(
    left: float, wait: float, reason: Reason
) -> None:
    with working(places=0) as jobs, budget(left), pytest.raises(JobRefused) as caught:
        jobs.put(print, wait=wait)
    assert caught.value.reason is reason


def test_put_may_wait_as_long_as_it_takes() -> None:
    gate = Gate()
    ran: list[int] = []
    with working(places=1, workers=1) as jobs:
        jobs.put(gate.work)
        until(lambda: gate.began)
        jobs.put(ran.append, 1)
        waits = threading.Thread(target=lambda: jobs.put(ran.append, 2, wait=math.inf), daemon=True)
        waits.start()
        until(lambda: sum(each.waiting for each in jobs.snapshot().classes))
        gate.open.set()
        waits.join(WITHIN)
        until(lambda: ran == [1, 2])


def test_the_lease_is_the_deadline_of_the_job(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    def endless() -> None:
        told = threading.Event()

        def tell(reason: CancelReason) -> None:
            seen.append(reason)
            told.set()

        current().on_cancel(tell)
        told.wait(WITHIN)
        current().check()

    with working(lease=0.1) as jobs:
        jobs.put(endless)
        until(lambda: ended(jobs) == {"deadline": 1})
    assert seen == [CancelReason.DEADLINE]
    assert "was cancelled: deadline" in caplog.text


def test_a_job_that_ends_late_but_well_is_done() -> None:
    with working(lease=0.01) as jobs:
        jobs.put(time.sleep, 0.05)
        until(lambda: ended(jobs) == {"completed": 1})


def test_a_job_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []

    def fails() -> None:
        raise SystemExit(3)

    with working(workers=1) as jobs:
        jobs.put(fails)
        jobs.put(ran.append, 1)
    assert ran == [1]
    assert ended(jobs) == {"error": 1, "completed": 1}
    assert "SystemExit" in caplog.text


def test_a_coroutine_function_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def wrong() -> None: ...

    with working() as jobs:
        jobs.put(wrong)
    assert ended(jobs) == {"error": 1}
    assert "BoundedJobs does both" in caplog.text


def test_what_is_not_finished_in_time_is_told_and_handed_back() -> None:
    told: list[Job] = []
    raised: list[BaseException] = []
    done = threading.Event()

    def polite() -> None:
        while not done.wait(0.005):
            try:
                current().check()
            except RequestCancelled as error:
                raised.append(error)
                raise

    jobs = ThreadedJobs(JobsPolicy(workers=1, drain=0.05), left=told.extend)
    jobs.put(polite)
    until(lambda: jobs.snapshot().running == 1)
    second = jobs.put(polite)
    try:
        assert jobs.close() == told == [second]
        until(lambda: ended(jobs) == {"shutdown": 1, "left": 1})
    finally:
        done.set()
    assert len(raised) == 1
    with pytest.raises(JobRefused) as caught:
        jobs.put(polite)
    assert caught.value.reason is Reason.DRAINING


def test_a_durable_job_is_delivered_again_with_its_key() -> None:
    seen: list[Any] = []
    with working(store=MemoryJobStore(), retry_after=0.001) as jobs:

        @jobs.task()
        def flaky(name: str) -> None:
            job = current_job()
            assert job is not None
            seen.append((name, job.key, job.attempt))
            if job.attempt < 3:
                raise OSError("not yet")

        jobs.put_durable(flaky, "a", key="k")
        until(lambda: ended(jobs) == {"error": 2, "completed": 1})
    assert seen == [("a", "k", 1), ("a", "k", 2), ("a", "k", 3)]


def test_what_waits_in_the_store_is_done_by_all_workers() -> None:
    look = threading.Event()

    class SlowToSay(MemoryJobStore):
        def counts(self, now: float) -> Any:
            assert look.wait(WITHIN)
            return super().counts(now)

    store, gate = SlowToSay(), Gate()
    for name in "ab":  # as another process puts them there
        store.add(NewJob(id=name, task="wait", payload="[]", key=name, priority="normal"), 0.0, None)
    jobs = ThreadedJobs(JobsPolicy(workers=2, poll=3600), store=store)
    jobs.task("wait")(gate.work)
    with jobs:
        asleep: Any = jobs._changed
        until(lambda: asleep._waiters)  # one worker looks at the store, and the other one sleeps
        look.set()
        until(lambda: len(gate.began) == 2)
        gate.open.set()
        until(lambda: ended(jobs) == {"completed": 2})


def test_a_route_may_defer_instead_of_refusing(tmp_path: Path) -> None:
    gate, store = Gate(), SQLiteJobStore(tmp_path / "jobs.db")
    done: list[int] = []
    with working(workers=1, places=1, store=store) as jobs:
        jobs.task("note")(done.append)
        jobs.put(gate.work)
        until(lambda: gate.began)
        made = [jobs.put_or_defer("note", number, wait=0.0) for number in range(3)]
        assert [each.deferred for each in made] == [False, True, True]
        gate.open.set()
        until(lambda: len(done) == 3)
    store.close()


def test_jobs_run_only_when_the_server_has_a_slot_for_them() -> None:
    server = ServerPolicy(limit=1, queue=10, max_wait=0.1)
    guard = guard_of(server)
    entry = guard.entries.get("/", Mark())
    assert guard.arrive(entry, guard.clock.now(), 1e9).admitted
    done: list[int] = []
    with working(server=server) as jobs:
        jobs.put(done.append, 1)
        time.sleep(0.05)
        assert (done, jobs.snapshot().running) == ([], 0)
        guard.release(entry, 1)
        until(lambda: done == [1])
        until(lambda: guard.controller.slots.in_use == 0)


AT_EXIT = """
import time
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.runtime.jobs_threads import ThreadedJobs

jobs = ThreadedJobs(JobsPolicy(workers=1))
for number in range(3):
    jobs.put(lambda number=number: (time.sleep(0.05), print(number, flush=True)))
"""


def test_the_end_of_the_process_waits_for_what_is_promised() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], cwd=ROOT, check=False, timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n1\n2\n", "")


FORKED = """
import os, threading
from resilient_mw.runtime.jobs_threads import ThreadedJobs

jobs = ThreadedJobs()
done = threading.Event()
jobs.put(done.set)
assert done.wait(10)
child = os.fork()
if child == 0:
    again = threading.Event()
    jobs.put(again.set)
    figures = {each.priority: each.promised for each in jobs.snapshot().classes}
    os._exit(0 if again.wait(10) and figures["normal"] == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_b94_a_forked_child_has_workers_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], cwd=ROOT, check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


DRAINED = """
import sys, threading
from resilient_mw.core.errors import JobRefused
from resilient_mw.runtime.drain_signal import drain_on_signal
from resilient_mw.runtime.jobs_threads import ThreadedJobs
import signal

jobs = ThreadedJobs()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
drain_on_signal(signal.SIGTERM, jobs.drain)
jobs.put(lambda: (threading.Event().wait(0.3), print("done", flush=True)))
print("ready", flush=True)
threading.Event().wait(30)
"""


def test_a_signal_drains_and_what_is_promised_is_done() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DRAINED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait(10)
    assert (process.returncode, out, err) == (0, "done\n", "")


def test_a_deadline_of_the_caller_is_not_that_of_the_job_unless_he_wants() -> None:
    left: list[float] = []

    def look() -> None:
        left.append(current().remaining())

    with working(lease=50.0) as jobs, budget(20.0):
        jobs.put(look)
        jobs.put(look, carry_budget=True)
        until(lambda: len(left) == 2)
    assert sorted(round(each, -1) for each in left) == [20, 50]


def test_a_job_raises_the_deadline_error_into_its_own_code_only() -> None:
    raised: list[str] = []

    def late() -> None:
        time.sleep(0.05)
        try:
            current().check()
        except DeadlineExceeded:
            raised.append("late")

    with working(lease=0.02) as jobs:
        jobs.put(late)
        until(lambda: ended(jobs) == {"completed": 1})
    assert raised == ["late"]
