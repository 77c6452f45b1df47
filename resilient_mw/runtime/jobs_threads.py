"""The bounded queue of jobs for code in threads: the same decisions as `BoundedJobs`, done by worker threads.

Example:
    jobs = ThreadedJobs(JobsPolicy(places=100, workers=4))
    jobs.put(send_mail, "someone@example.org")
"""

from __future__ import annotations

import atexit
import inspect
import threading
from collections.abc import Callable
from contextvars import Context
from math import inf
from types import TracebackType
from typing import Any, Self, Unpack
from weakref import WeakMethod

from resilient_mw.admission.job import Job, JobState, JobTerms
from resilient_mw.admission.jobs import EXPIRED
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import JobRefused
from resilient_mw.runtime.job_context import RunningJob, ThreadJob, current_job, idempotency_key
from resilient_mw.runtime.job_slots import PAUSE, Slot, slot_for_thread
from resilient_mw.runtime.jobs_durable import DurableJobs
from resilient_mw.runtime.jobs_owner import CLEAN_UP, enter, log_end
from resilient_mw.runtime.slot_waits import Sleeper

__all__ = ["Job", "JobRefused", "JobsPolicy", "RunningJob", "ThreadedJobs", "current_job", "idempotency_key"]


class ThreadedJobs(DurableJobs):
    """A bounded queue of jobs, and the threads that do them. Arguments as of `BoundedJobs`.

    A thread cannot be stopped: when its lease is over, `current().check()` raises in a job, calls of our transports end, and
    `on_cancel` callbacks run. The slot comes back when the function returns.

    Threads are started by the first job, also in a forked child. At the end of the process the queue is closed, and what is
    promised is finished within `JobsPolicy.drain`.
    """

    def forked(self) -> None:
        """Begin anew in a forked child."""
        super().forked()
        self._changed = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._contexts: set[ThreadJob] = set()
        self._looked_at = 0.0
        atexit.register(_close_at_exit, WeakMethod(self.close))

    # -- what users call -----------------------------------------------------------------------------------------------

    def put(
        self, work: Callable[..., Any] | str, *args: Any, wait: float | None = None, **terms: Unpack[JobTerms]
    ) -> Job:
        """Have a job done, and wait for a place if there is none. When this returns, it is promised.

        Arguments and errors as of `BoundedJobs.put`.
        """
        job = self._made(work, args, **terms)
        self._offer(job, self._wait(wait))
        return self._promised(job)

    def put_durable(self, work: Callable[..., Any] | str, *args: Any, **terms: Unpack[JobTerms]) -> Job:
        """Have a job done that outlives this process. Arguments and errors as of `BoundedJobs.put_durable`."""
        job = self._made(work, args, **terms)
        self._keep(job)
        self._look_now()
        return job

    def put_or_defer(
        self, work: Callable[..., Any] | str, *args: Any, wait: float | None = None, **terms: Unpack[JobTerms]
    ) -> Job:
        """Have a job done soon, or keep it in the store. As `BoundedJobs.put_or_defer`."""
        job = self._made(work, args, **terms)
        self._offer(job, self._wait(wait))
        if job.state is JobState.REFUSED:
            self._keep(job)
            self._look_now()
        return job

    def start(self) -> None:
        """Begin to work; the first job does it, too."""
        with self._lock:
            if self._threads or self._closed:
                return
            for number in range(self.policy.workers):
                name = f"resilient_mw {self.policy.name} {number}"
                self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
            threads = list(self._threads)
        for thread in threads:
            thread.start()

    def close(self) -> list[Job]:
        """Promise nothing more, finish what is promised within `JobsPolicy.drain`, and stop. As `BoundedJobs.close`."""
        self.drain()
        self._tick()
        with self._changed:
            if self._closed:
                return []
            self._changed.notify_all()
            if self._threads:
                self._changed.wait_for(self._all_done, timeout=self.policy.drain)
            self._closed = True
            left = self._queue.clear()
            contexts = list(self._contexts)
            self._changed.notify_all()
        for context in contexts:
            context.cancel(CancelReason.SHUTDOWN)
        with self._changed:
            self._changed.wait_for(lambda: not self._queue.running, timeout=CLEAN_UP if contexts else 0.0)
        return self._hand_back(left)

    def __enter__(self) -> Self:
        """Begin to work."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    # -- the workers ---------------------------------------------------------------------------------------------------

    def _all_done(self) -> bool:
        return not self._queue.queued and not self._queue.running

    def _look_now(self) -> None:
        self.start()
        with self._changed:
            self._looked_at = 0.0
            self._changed.notify()

    def _offer(self, job: Job, wait: float) -> None:
        sleeper = Sleeper()
        self._put(job, wait, sleeper.set)
        try:
            while job.state is JobState.WAITING:
                sleeper.wait(job.give_up_at - self.clock.now())
                if job.state is JobState.WAITING:
                    self._tick()
        except BaseException:
            self._leave(job)
            raise
        if job.state is not JobState.REFUSED:
            self.start()
            with self._changed:
                self._changed.notify()

    def _serve(self) -> None:
        """Do jobs until the queue is closed. The body of a worker thread."""
        while self._sleep():
            slot: Slot | None = None
            found = self._guard()
            if found is not None:
                slot, go_on = slot_for_thread(*found)
                if not go_on:
                    Sleeper().wait(PAUSE)
                    continue
            job = self._next()
            if job is not None:
                (job.context or Context()).run(self._work, job, slot)
            elif slot is not None:
                slot.unused()

    def _sleep(self) -> bool:
        """Wait until there may be a job; False: the queue is closed."""
        while True:
            with self._changed:
                while not self._awake() and (pause := self._poll_in()) > 0:
                    self._changed.wait(None if pause == inf else pause)
                if self._awake():
                    return not self._closed
                self._looked_at = self.clock.now() + self.policy.poll
            self._store_ready = self._waits_there()

    def _awake(self) -> bool:
        ready = self._store_ready and not self._queue.draining
        return self._closed or ready or self._queue.queued > 0

    def _poll_in(self) -> float:
        """Return seconds until the store is to be looked at; inf: never."""
        if self.store is None or self._queue.draining:
            return inf
        return self._looked_at - self.clock.now()

    def _next(self) -> Job | None:
        """Take the next job."""
        with self._lock:
            ask = self._store_ready and not self._queue.draining and self._is_turn_of_store()
        if ask:
            job = self._claimed()
            self._store_ready = job is not None
            if job is not None:
                with self._changed:
                    self._changed.notify()  # there may be more, and somebody who sleeps
                return self._begun(job)
        return self._taken()

    def _work(self, job: Job, slot: Slot | None) -> None:
        """Do a job, in its own copy of the context of whoever put it."""
        now = self.clock.now()
        context = ThreadJob(
            job.lease_until, self.clock, self._retries(job), None if slot is None else slot.guard
        )
        enter(job, context)
        with self._lock:
            self._contexts.add(context)
        error: BaseException | None = None
        outcome = EXPIRED
        try:
            if job.lease_until > now:
                _call(job)
                outcome = "completed"
        except BaseException as caught:  # noqa: BLE001  whatever it is, the worker lives on
            error = caught
            reason = context.cancel_reason
            outcome = "error" if reason is None else reason.value
        ran = self.clock.now() - now
        log_end(job, outcome, error)
        context.end()
        self._settle(job, outcome, error)
        if slot is not None:
            slot.end(outcome, ran)
        with self._changed:
            self._contexts.discard(context)
            self._queue.end(job, outcome, ran)
            self._changed.notify_all()


def _call(job: Job) -> None:
    answer = job.work(*job.args)
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError(f"{job.work!r} is a coroutine function: threads do plain ones, BoundedJobs does both")


def _close_at_exit(close: WeakMethod[Callable[[], list[Job]]]) -> None:
    alive = close()
    if alive is not None:
        alive()
