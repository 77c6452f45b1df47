"""The workers of a queue of jobs in an event loop: they pull with a slot in hand, and a job's lease is its deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from resilient_mw.admission.job import Job, JobState
from resilient_mw.admission.jobs import EXPIRED
from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.job_context import JobRecord
from resilient_mw.runtime.job_slots import Slot, slot_for_task
from resilient_mw.runtime.jobs_durable import DurableJobs
from resilient_mw.runtime.jobs_owner import enter, log_end
from resilient_mw.runtime.slot_waits import wake_task
from resilient_mw.runtime.supervise import Supervisor

T = TypeVar("T")


class Consumers(DurableJobs):
    """What `BoundedJobs` does beside taking jobs. All of it belongs to the thread of the loop."""

    def forked(self) -> None:
        """Begin anew in a forked child."""
        super().forked()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._unbound()

    def _unbound(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots: dict[Job, Slot] = {}  # of the server, by the jobs at work that have one
        self._pulling = 0
        self._poll: asyncio.TimerHandle | None = None

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise RuntimeError(
                    f"the jobs {self.policy.name!r} are done in another event loop: one queue each"
                )
            with self._lock:
                self._queue.abandon()
            slots = self._slots
            self._unbound()
            for slot in slots.values():
                slot.end(CancelReason.SHUTDOWN.value, 0.0)
        self._loop = loop
        self._supervisor = Supervisor(loop, self.clock)
        self._look()

    async def _offer(self, job: Job, wait: float) -> None:
        self._bind()
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(job, wait, partial(wake_task, sleeper))
        try:
            while job.state is JobState.WAITING:
                await asyncio.wait((sleeper,), timeout=max(0.0, job.give_up_at - self.clock.now()))
                if job.state is JobState.WAITING:
                    self._tick()
        except BaseException:
            self._leave(job)
            raise
        self._pump()

    def _look(self) -> None:
        """Look at what other processes have put into the store, now and again and again."""
        if self.store is None or self._loop is None or self._loop.is_closed() or self._queue.draining:
            return
        self._poll = self._loop.call_later(self.policy.poll, self._look, context=Context())
        self._look_at_store()

    def _look_at_store(self) -> None:
        self._store_ready = True
        self._pump()

    def _pump(self) -> None:
        """Pull as many jobs as there are slots and jobs."""
        while not self._closed and self._queue.free > self._pulling:
            from_store = self._store_ready and not self._queue.draining
            if self._queue.queued <= self._pulling and not from_store:
                return
            self._store_ready = False
            self._pulling += 1
            self._spawn(self._pull(from_store=from_store), Context())

    def _spawn(self, coroutine: Any, context: Context) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=Context())

    async def _pull(self, *, from_store: bool) -> None:
        """Get a slot, then a job, and begin it."""
        slot: Slot | None = None
        job: Job | None = None
        try:
            if from_store and not (
                self._one_is_left() or await self._in_thread(self._waits_there) or self._one_is_left()
            ):
                return
            found = self._guard()
            if found is not None:
                slot = await slot_for_task(*found)
            job = await self._next(from_store=from_store)
        except GeneratorExit:  # as in _work()
            if slot is not None:
                slot.guard.later(slot.unused)
                slot = None
            raise
        finally:
            self._pulling -= 1
            if job is None and slot is not None:
                slot.unused()
        if job is not None:
            self._spawn(self._work(job, slot), job.context or Context())
        self._pump()

    def _one_is_left(self) -> bool:
        """Return whether the queue has a job for each of those who pull."""
        return self._queue.queued >= self._pulling

    async def _next(self, *, from_store: bool) -> Job | None:
        """Take the next job."""
        if from_store:
            job = None
            if self._is_turn_of_store():
                job = await self._in_thread(self._claimed)
                self._store_ready = self._store_ready or job is not None
            else:
                self._store_ready = True
            if job is not None:
                return self._begun(job)
        return self._taken()

    async def _work(self, job: Job, slot: Slot | None) -> None:
        """Do a job, and have everything end once: when its work has stopped."""
        task = asyncio.current_task()
        if task is None or self._loop is None:
            raise RuntimeError("a job runs in a task")
        now = self.clock.now()
        guard = None if slot is None else slot.guard
        record = JobRecord(task, job.lease_until, now, self.clock, self._retries(job), guard)
        enter(job, record)
        stopped: asyncio.Future[None] = self._loop.create_future()
        if slot is not None:
            self._slots[job] = slot
        self._supervisor.enter(record)
        error: BaseException | None = None
        outcome = EXPIRED
        try:
            if job.lease_until > now:
                await _call(job)
                outcome = "completed"
        except BaseException as caught:  # it is looked at below
            if isinstance(caught, GeneratorExit) and not _is_current(task):
                self._forgotten(job)
                raise
            error = caught
            outcome = "error"
        ran = self.clock.now() - now
        self._supervisor.leave(record, partial(_end_wait, stopped))
        if record.reason is not None:
            outcome = record.reason.value
        elif error is not None and task.cancelling() > record.base:
            outcome = CancelReason.SHUTDOWN.value
        try:
            if record.reason is not None:
                await self._supervisor.settle(record, error)
            elif error is not None and not isinstance(error, (Exception, GeneratorExit)):
                raise error
            await stopped
        finally:
            await self._over(job, outcome, ran, error)

    def _forgotten(self, job: Job) -> None:
        """Note that the garbage collector has found a job, perhaps under a lock: its loop is gone, and nobody is left to tell."""
        slot = self._slots.pop(job, None)
        if slot is not None:
            slot.guard.later(partial(slot.end, CancelReason.SHUTDOWN.value, 0.0))

    async def _over(self, job: Job, outcome: str, ran: float, error: BaseException | None) -> None:
        log_end(job, outcome, error)
        try:
            if job.claim is not None:
                await self._in_thread(partial(self._settle, job, outcome, error))
        finally:
            slot = self._slots.pop(job, None)
            if slot is not None:
                slot.end(outcome, ran)
            with self._lock:
                self._queue.end(job, outcome, ran)
            self._pump()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _settled(self, seconds: float) -> None:
        """Wait until nothing is promised or at work, so many seconds at most."""
        until = self.clock.now() + seconds
        self._pump()
        while self._tasks and (left := until - self.clock.now()) > 0:
            await asyncio.wait(self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _stop(self) -> list[Job]:
        """Pull nothing any more, cancel what runs, and return what has not begun."""
        self._closed = True
        if self._poll is not None:
            self._poll.cancel()
        with self._lock:
            left = self._queue.clear()
        for record in list(self._supervisor.in_flight):
            self._supervisor.fire_soon(record, CancelReason.SHUTDOWN)
        return left

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Call what blocks, one call after the other, without taking a thread from anybody."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="resilient_mw jobs")
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


async def _call(job: Job) -> None:
    if inspect.iscoroutinefunction(job.work):
        await job.work(*job.args)
        return
    answer = await asyncio.to_thread(_answer, job)
    if inspect.isawaitable(answer):
        await answer


def _answer(job: Job) -> object:
    """Call a job in a thread. A future cannot hold a `StopIteration`: who awaits it would wait on for ever."""
    try:
        return job.work(*job.args)
    except StopIteration as error:
        raise RuntimeError("the job raised StopIteration") from error


def _is_current(task: asyncio.Task[Any]) -> bool:
    """Return whether the task runs at this instant, and is not what the garbage collector has found."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False


def _end_wait(stopped: asyncio.Future[None]) -> None:
    if not stopped.done():
        stopped.set_result(None)
