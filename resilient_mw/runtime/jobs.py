"""Background work with back-pressure: a bounded queue of jobs for code in an event loop.

A job is refused before it is promised, never dropped after: it runs, or it is handed back by name when the queue is closed.

Example:
    jobs = BoundedJobs(JobsPolicy(places=100, workers=4))

    async with jobs:
        await jobs.put(send_mail, "someone@example.org")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from resilient_mw.admission.job import Job, JobState, JobTerms
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.core.errors import JobRefused
from resilient_mw.runtime.job_context import RunningJob, current_job, idempotency_key
from resilient_mw.runtime.jobs_consumers import Consumers
from resilient_mw.runtime.jobs_owner import CLEAN_UP, LOGGER
from resilient_mw.runtime.thread_work import call_in_loop

__all__ = ["BoundedJobs", "Job", "JobRefused", "JobsPolicy", "RunningJob", "current_job", "idempotency_key"]


class BoundedJobs(Consumers):
    """A bounded queue of jobs, and the workers that do them in one event loop.

    A job is a function and its arguments. Coroutine functions run in the loop and are cancelled when their lease is over;
    plain ones run in a thread, where `current().check()` raises then. Inside, `current()` knows the lease as its deadline
    and `current_job()` the idempotency key.

    Args:
        policy: the bounds; None: the defaults.
        store: keeps durable jobs; None: there are none.
        server: whose slots the jobs share, so that they run only when requests leave them one; None: the workers of the
            policy are the only limit.
        server_class: the class in which jobs ask for these slots.
        left: told the promised jobs that were not begun when the queue was closed, and could not be kept in the store.
        clock: the one clock.

    Raises:
        ValueError: `server` has no class of the name `server_class`.
    """

    # -- what users call -----------------------------------------------------------------------------------------------

    async def put(
        self, work: Callable[..., Any] | str, *args: Any, wait: float | None = None, **terms: Unpack[JobTerms]
    ) -> Job:
        """Have a job done, and wait for a place if there is none. When this returns, it is promised.

        Args:
            work, args: what to do: a function, or the name of a task, and what it is called with.
            wait: seconds to wait at most; None: the policy's. Never longer than what is left of the deadline of
                `current()`.
            **terms: `priority`, `key`, `expires` and `carry_budget`, see `JobTerms`.

        Raises:
            JobRefused: it is not promised.
            ValueError: something of it is not allowed.
        """
        job = self._made(work, args, **terms)
        await self._offer(job, self._wait(wait))
        return self._promised(job)

    def put_nowait(
        self, work: Callable[..., Any] | str, *args: Any, hold: bool = False, **terms: Unpack[JobTerms]
    ) -> Job:
        """Have a job done if there is a place for it now; from any thread, once the queue has been started.

        Args:
            work, args, **terms: as of `put`.
            hold: whether the job has its place and is not begun before `let_go(job)` (or `withdraw(job)`).

        Raises:
            JobRefused: it is not promised.
            RuntimeError: the queue has no event loop yet.
            ValueError: something of it is not allowed.
        """
        if self._loop is None or self._loop.is_closed():
            self._bind()
        job = self._made(work, args, **terms)
        self._put(job, 0.0, hold=hold)
        self._promised(job)
        self._pump_soon()
        return job

    def let_go(self, job: Job) -> None:
        """Have a job that was held begin when its turn comes; from any thread."""
        with self._lock:
            self._queue.let_go(self.clock.now(), job)
        self._pump_soon()

    def withdraw(self, job: Job) -> None:
        """Give the place of a job back that has not begun; harmless if it has. From any thread, also a finalizer's."""
        if self._loop is not None:
            call_in_loop(self._loop, self._withdraw, job)

    def _withdraw(self, job: Job) -> None:
        if job.state is JobState.HELD:
            LOGGER.warning("job %s (%s) was withdrawn before it began", job.id, job.task or job.work)
        self._leave(job)

    def _pump_soon(self) -> None:
        if self._loop is not None:
            call_in_loop(self._loop, self._pump)

    async def put_durable(self, work: Callable[..., Any] | str, *args: Any, **terms: Unpack[JobTerms]) -> Job:
        """Have a job done that outlives this process: when this returns, it is in the store. Arguments as of `put`.

        It is delivered until it has succeeded, so perhaps more than once, always with the same key. A job that waits in
        the store with the same task and key is the same job.

        Raises:
            JobRefused: too many wait, and it is not promised.
            ValueError: there is no store; the job cannot be written down: `task()` gives it a name; or its key is that of a
                job with other arguments, which is not done yet.
        """
        self._bind()
        job = self._made(work, args, **terms)
        await self._in_thread(partial(self._keep, job))
        self._look_at_store()
        return job

    async def put_or_defer(
        self, work: Callable[..., Any] | str, *args: Any, wait: float | None = None, **terms: Unpack[JobTerms]
    ) -> Job:
        """Have a job done soon, or, where it would be refused, keep it in the store: then `job.deferred` is true.

        A route answers 202 to both. Arguments and errors as of `put` and `put_durable`.
        """
        job = self._made(work, args, **terms)
        await self._offer(job, self._wait(wait))
        if job.state is JobState.REFUSED:
            await self._in_thread(partial(self._keep, job))
            self._look_at_store()
        return job

    async def start(self) -> None:
        """Begin to work in this event loop; the first job does it, too. A queue that was closed is opened again."""
        if self._closed:
            self._queue.resume()
            self._closed = False
            self._look()
        self._bind()

    async def close(self) -> list[Job]:
        """Promise nothing more, finish what is promised within `JobsPolicy.drain`, and stop.

        Jobs that have not begun by then are kept in the store if they can be; the others are logged, told to `left` and
        returned. What runs is cancelled, reason `shutdown`; durable jobs are given back to the store.
        """
        self.drain()
        self._tick()
        if self._loop is None or self._closed:
            return []
        try:
            await self._settled(self.policy.drain)
        except BaseException:
            self._hand_back(self._stop())
            raise
        stopped = self._stop()
        left = await self._in_thread(partial(self._hand_back, stopped))
        await self._settled(CLEAN_UP)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLEAN_UP)
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
        return left

    async def __aenter__(self) -> Self:
        """Begin to work."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:  # noqa: ARG002  what frameworks give
        """Work as long as an application lives: `Starlette(lifespan=jobs.lifespan)`."""
        async with self:
            yield
