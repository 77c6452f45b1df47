"""What the queues of jobs of both kinds share: the decisions with their lock, the names of tasks, the durable store."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from contextvars import copy_context
from math import inf
from typing import Any, TypeVar

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.job import Job, JobState
from resilient_mw.admission.jobs import EXPIRED, JobQueue, Settled
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.calls.key import new_key
from resilient_mw.core import ports
from resilient_mw.core.checks import require_name, require_number
from resilient_mw.core.errors import JobRefused
from resilient_mw.core.headers.retry_owner import RetryOwner
from resilient_mw.core.job_store import JobStore, StoreCounts
from resilient_mw.core.jobs_snapshot import JobsSnapshot
from resilient_mw.core.marks import Mark
from resilient_mw.core.ports import Clock
from resilient_mw.core.rejection import REFUSAL_RULES, Reason
from resilient_mw.runtime.clocks import MONOTONIC, wall_clock
from resilient_mw.runtime.context import CURRENT, RequestContext, current
from resilient_mw.runtime.forks import after_fork
from resilient_mw.runtime.guard import Guard, guard_of
from resilient_mw.runtime.running_job import RUNNING_JOB, RunningJob

Function = TypeVar("Function", bound=Callable[..., Any])
LOGGER = logging.getLogger("resilient_mw.jobs")
CLEAN_UP = 2.0
"""Seconds that jobs get to stop, when the time of a queue that is closed is over."""
TELL = {
    Reason.QUEUE_FULL: "there is no place for it: more workers, shorter jobs, or a durable store to defer it to",
    Reason.QUEUE_TIMEOUT: "no place came free while it may wait (JobsPolicy.max_wait)",
    Reason.EXPIRED_ON_ARRIVAL: "the deadline had passed before",
    Reason.EXPIRED_IN_QUEUE: "the deadline passed while it waited for a place",
    Reason.DRAINING: "the queue is being closed",
}


class JobsOwner:
    """The base of both queues. See `BoundedJobs`."""

    def __init__(
        self,
        policy: JobsPolicy | None = None,
        *,
        store: JobStore | None = None,
        server: ServerPolicy | None = None,
        server_class: str = "sheddable",
        left: Callable[[list[Job]], object] | None = None,
        clock: Clock = MONOTONIC,
    ) -> None:
        self.policy = JobsPolicy() if policy is None else policy
        self.store = store
        self.clock = clock
        self._server = server
        self._mark = Mark(priority=server_class)
        if server is not None:
            server.check_mark(self._mark, "server_class")
        self._told_of_left = left
        self._functions: dict[str, Callable[..., Any]] = {}
        self._names: dict[Callable[..., Any], str] = {}
        self._random = random.SystemRandom()
        self.forked()
        after_fork(self)
        ports.register_jobs(self)

    def forked(self) -> None:
        """Begin anew in a forked child: what the parent has promised, it does."""
        self._lock = threading.Lock()
        self._queue = JobQueue(self.policy)
        self._counts: StoreCounts | None = None
        self._redelivered = self._lost = self._unreachable = 0
        self._store_turn = False
        self._store_ready = False  # whether it may have a job that waits
        self._closed = False

    # -- what users call -----------------------------------------------------------------------------------------------

    def task(self, name: str | None = None) -> Callable[[Function], Function]:
        """Give a function a name by which its jobs can be written down.

        Only jobs of such functions can be durable; their arguments must be what JSON can hold.

        Raises:
            ValueError: the name is no name, or taken.
        """

        def register(function: Function) -> Function:
            chosen = require_name("task", name or getattr(function, "__name__", None))
            if self._functions.setdefault(chosen, function) is not function:
                raise ValueError(f"the task name {chosen!r} is taken by {self._functions[chosen]!r}")
            self._names[function] = chosen
            return function

        return register

    def drain(self) -> float:
        """Promise nothing any more; what is promised goes on. It may be called in a signal handler.

        Returns:
            0.0, seconds that `drain_on_signal` is to wait for it.
        """
        self._queue.drain()
        return 0.0

    def snapshot(self) -> JobsSnapshot:
        """Return the figures of this instant. The store's are those of its last answer."""
        now = self.clock.now()
        with self._lock:
            queue = self._queue
            return JobsSnapshot(
                jobs=self.policy.name,
                places=self.policy.places,
                running=len(queue.running),
                workers=self.policy.workers,
                overdue=queue.overdue(now),
                oldest=queue.oldest(now),
                redelivered=self._redelivered,
                lost=self._lost,
                unreachable=self._unreachable,
                draining=queue.draining,
                classes=tuple(queue.classes()),
                store=self._counts,
            )

    # -- promising -----------------------------------------------------------------------------------------------------

    def _made(
        self,
        work: Callable[..., Any] | str,
        args: tuple[Any, ...],
        *,
        priority: str = "normal",
        key: str | None = None,
        expires: float | None = None,
        carry_budget: bool = False,
    ) -> Job:
        """Make a job of what a caller wants, on his `JobTerms`."""
        if isinstance(work, str):
            if work not in self._functions:
                raise ValueError(f"there is no task {work!r}: register it with task()")
            work = self._functions[work]
        if not callable(work):
            raise ValueError(f"work={work!r} is not allowed: it must be a function, or the name of a task")
        if priority not in self.policy.names:
            raise ValueError(f"priority={priority!r} is not allowed: one of {sorted(self.policy.names)}")
        now = self.clock.now()
        left = inf if expires is None else require_number("expires", expires)
        if carry_budget:
            left = min(left, current().remaining())
        made = new_key(7, wall_clock(), self._random)
        return Job(
            made, key or made, work, args, priority=priority, task=self._name(work), expires_at=now + left,
            context=copy_context(),
        )  # fmt: skip

    def _name(self, work: Callable[..., Any]) -> str | None:
        try:
            return self._names.get(work)
        except TypeError:  # it cannot be hashed
            return None

    def _wait(self, wait: float | None) -> float:
        return self.policy.max_wait if wait is None else require_number("wait", wait)

    def _put(
        self, job: Job, wait: float, wake: Callable[[], None] | None = None, *, hold: bool = False
    ) -> None:
        context = current()
        now = self.clock.now()
        # What is left, and not the instant: the caller's context may be on another clock.
        deadline_at = now + (0.0 if context.cancelled else context.remaining())
        with self._lock:
            self._queue.put(now, job, wait, deadline_at, hold=hold)
            if job.state is JobState.WAITING:
                job.wake = wake

    def _tick(self) -> None:
        with self._lock:
            settled = self._queue.tick(self.clock.now())
        wake(settled)

    def _leave(self, job: Job) -> None:
        with self._lock:
            job.wake = None
            settled = self._queue.leave(self.clock.now(), job)
        wake(settled)

    def _promised(self, job: Job) -> Job:
        """Return a job whose place has been decided about.

        Raises:
            JobRefused: it has none.
        """
        if job.state is JobState.REFUSED:
            raise self._refused(job)
        return job

    def _refused(self, job: Job) -> JobRefused:
        reason = job.reason or Reason.QUEUE_FULL
        with self._lock:
            seconds = self._queue.retry_after(self._random.random())
        return JobRefused(
            f"the job was not promised by the queue {self.policy.name!r} (class {job.priority!r}): {TELL[reason]}",
            reason,
            self.policy.name,
            job.priority,
            seconds if REFUSAL_RULES[reason].status == 503 else None,
        )

    # -- running -------------------------------------------------------------------------------------------------------

    def _guard(self) -> tuple[Guard, RouteEntry] | None:
        """Return the guard whose slots the jobs share, and as what; None: they have their own limit only."""
        if self._server is None:
            return None
        guard = guard_of(self._server)
        return guard, guard.entries.get(f"jobs/{self.policy.name}", self._mark)

    def _retries(self, job: Job) -> RetryOwner | None:
        """Return who retries a job: a durable one is delivered again."""
        return None if job.claim is None else RetryOwner(f"jobs:{self.policy.name}", job.attempt)

    def _taken(self) -> Job | None:
        """Take the next job of those that are promised in memory."""
        with self._lock:
            job, settled = self._queue.take(self.clock.now())
        wake(settled)
        return job

    def _begun(self, job: Job) -> Job:
        """Note that a job of the store is at work."""
        with self._lock:
            self._queue.begin(self.clock.now(), job)
        return job


def enter(job: Job, context: RequestContext) -> None:
    """Have the code that runs from here on know which job it is for, and how long it may."""
    RUNNING_JOB.set(RunningJob(id=job.id, key=job.key, task=job.task, attempt=job.attempt))
    CURRENT.set(context)


def log_end(job: Job, outcome: str, error: BaseException | None) -> None:
    """Say that a job has failed, or was cancelled and is not delivered again: nobody waits for what became of it."""
    if outcome == "error":
        LOGGER.error("job %s (%s) failed", job.id, job.task or job.work, exc_info=error)
    elif outcome not in {"completed", EXPIRED} and job.claim is None:
        LOGGER.warning("job %s (%s) was cancelled: %s", job.id, job.task or job.work, outcome)


def wake(settled: Settled) -> None:
    """Wake those whose wait is over."""
    for job in settled:
        woken, job.wake = job.wake, None
        if woken is not None:
            woken()
