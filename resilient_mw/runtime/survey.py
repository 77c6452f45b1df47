"""Find out what a request waits for: which tasks to cancel, which threads to wait for.

The search starts at the request's own task and follows what it structurally waits for. It never goes by membership
in a context: library timers and pool workers keep a copied context, and are not part of the request.

Not seen: children that nobody awaits (`create_task` without an await), what an `asyncio.as_completed` loop waits
for, work in threads that a library keeps for itself (aiosqlite), and what a worker thread calls back into through
anyio when the anyio scope around the request belongs to somebody else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, Flag
from types import FrameType
from typing import Any

from resilient_mw.runtime import awaits
from resilient_mw.runtime.thread_work import AnyioWork, ExecutorWork, ThreadWork

Task = asyncio.Task[Any]
Future = asyncio.Future[Any]


@dataclass(slots=True)
class Survey:
    """What a request was found to wait for.

    Attributes:
        leaves: tasks that wait for no other task and no running thread: cancel these, and only these.
        outer: tasks that wait for other tasks of the request.
        unstarted: tasks that will take their first step at this turn of the loop. Cancelled before it, a child of an
            anyio group leaves a coroutine that was never awaited.
        behind_wait: like `leaves`, but below a running thread that somebody waits for by `asyncio.wait`.
        thread_waiters: tasks that wait for a running thread.
        threads: calls that run in a thread now (or have just come back).
        queued: calls that may still be taken off an executor's queue.
        queued_futures: futures of queued calls that no task of their own waits for.
        below_scope: some leaf or thread waiter lies below an anyio scope of another task.
        by_wait: some leaf waits by `asyncio.wait`, which does not pass a cancel on.
        resuming: tasks like `leaves` that are about to take their next step: a cancel at this instant would take
            from them what they waited for.
        blind: something was not as expected; nothing else in here is to be relied upon.
    """

    leaves: list[Task] = field(default_factory=list)
    resuming: list[Task] = field(default_factory=list)
    unstarted: list[Task] = field(default_factory=list)
    behind_wait: list[Task] = field(default_factory=list)
    outer: list[Task] = field(default_factory=list)
    thread_waiters: list[Task] = field(default_factory=list)
    threads: list[ThreadWork] = field(default_factory=list)
    queued: list[ThreadWork] = field(default_factory=list)
    queued_futures: list[Future] = field(default_factory=list)
    below_scope: bool = False
    by_wait: bool = False
    blind: bool = False


def survey(root: Task) -> Survey:
    """Return what the suspended task `root` waits for. Call it from a callback of its event loop.

    It costs 5 to 60 µs: only requests that are over are looked at.
    """
    try:
        search = _Search(root.get_loop())
        search.task(root, scoped=False, reach=_Reach.OWN)
    except Exception:  # noqa: BLE001 (other people's private names: whatever goes wrong, do without)
        return Survey(blind=True)
    return search.found


def has_scope_children(task: Task) -> bool:
    """Return whether tasks live in the anyio scopes that a task has entered."""
    try:
        return any(not child.done() for child in awaits.scope_children(task))
    except Exception:  # noqa: BLE001 (as above)
        return False


class _Reach(Enum):
    """How far a task belongs to the request that waits for it."""

    OWN = "own"
    WAITED = "waited"
    """Behind `asyncio.wait`: may be shared, so it is only searched for threads and what they call back."""
    BELOW = "below"
    """Called back by a thread behind `asyncio.wait`."""
    SHARED = "shared"
    """Behind `asyncio.shield`: only searched for threads."""

    def behind_wait(self) -> _Reach:
        return self if self is _Reach.SHARED else _Reach.WAITED

    def below_thread(self) -> _Reach:
        return _Reach.BELOW if self is _Reach.WAITED else self


class _Waits(Flag):
    """What a future or a task was found to wait for."""

    NOTHING = 0
    TASKS = 1
    THREAD = 2


class _Search:
    """One survey under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.found = Survey()
        self._loop = loop
        self._seen: set[Task] = set()

    def task(self, task: Task, *, scoped: bool, reach: _Reach) -> None:
        """Look at one task and at all that it waits for; note what role it has."""
        if task in self._seen or task.done() or task.get_loop() is not self._loop:
            return
        self._seen.add(task)
        future = awaits.awaited(task)
        by_wait = False
        waits = _Waits.NOTHING
        if future is not None:
            chain = awaits.chain_of(task)
            frame = awaits.frame_of(chain[-1]) if chain else None
            by_wait = frame is not None and frame.f_code is awaits.WAIT_CODE
            waits = self._by_frame(task, chain, frame, future, scoped, reach)
        below = reach.below_thread() if waits & _Waits.THREAD else reach
        for child in awaits.scope_children(task):
            waits |= _Waits.TASKS
            self.task(child, scoped=True, reach=below)
        if reach is _Reach.BELOW and not waits:
            self.found.behind_wait.append(task)
        elif reach is _Reach.OWN:
            self._note(task, future, waits, scoped=scoped, by_wait=by_wait)

    def _note(self, task: Task, future: Future | None, waits: _Waits, *, scoped: bool, by_wait: bool) -> None:
        found = self.found
        if waits & _Waits.TASKS:
            found.outer.append(task)
        if waits & _Waits.THREAD:
            found.thread_waiters.append(task)
            found.below_scope |= scoped
        if not waits:
            if future is not None:
                resuming = future.done() and not future.cancelled()
                (found.resuming if resuming else found.leaves).append(task)
            else:
                (found.leaves if awaits.has_started(task) else found.unstarted).append(task)
            found.below_scope |= scoped
            found.by_wait |= by_wait

    def _by_frame(  # noqa: PLR0917
        self,
        task: Task,
        chain: list[Any],
        frame: FrameType | None,
        future: Future,
        scoped: bool,
        reach: _Reach,
    ) -> _Waits:
        """Follow what the innermost coroutine of the task is known to wait for, else the awaited future."""
        exits = frame is not None and frame.f_code in awaits.GROUP_EXIT_CODES
        if exits:
            for child in awaits.group_tasks(task, chain[-1:]):
                self.task(child, scoped=scoped, reach=reach)
        for child in awaits.group_tasks(task, chain):
            # A group whose body still waits for something else is read for threads: they will be left behind.
            self.task(child, scoped=scoped, reach=_Reach.SHARED)
        if exits:
            return _Waits.TASKS
        if frame is None:
            return self._future(future, scoped, reach)
        if frame.f_code is awaits.WAIT_CODE:
            return self._threads_of(frame.f_locals["fs"], scoped, reach.behind_wait())
        if frame.f_code in awaits.INNER_TASK_CODES:
            return self._future(frame.f_locals["fut"], scoped, reach)
        worker = awaits.anyio_call(frame, future)
        if worker is not None:
            self.found.threads.append(AnyioWork(worker, future))
            return _Waits.THREAD
        call = awaits.asgiref_call(frame)
        if call is not None:
            return self._asgiref(*call, scoped=scoped, reach=reach)
        return self._future(future, scoped, reach)

    def _asgiref(self, future: Future, below: list[Task], *, scoped: bool, reach: _Reach) -> _Waits:
        waits = self._future(future, scoped, reach)
        for child in below:
            self.task(child, scoped=scoped, reach=reach.below_thread())
        return waits

    def _future(self, future: Future, scoped: bool, reach: _Reach) -> _Waits:
        """Follow one awaited future."""
        if isinstance(future, asyncio.Task):
            self.task(future, scoped=scoped, reach=reach)
            return _Waits.NOTHING if future.done() else _Waits.TASKS
        if not isinstance(future, asyncio.Future) and not hasattr(future, "_callbacks"):
            return _Waits.NOTHING  # A server's own (Granian): there is nothing behind it.
        children = awaits.gathered(future)
        if children:
            waits = _Waits.NOTHING
            for child in children:
                waits |= self._future(child, scoped, reach)
            return waits
        call = awaits.executor_call(future)
        if call is not None:
            if call.running() or call.done():
                self.found.threads.append(ExecutorWork(call))
                return _Waits.THREAD
            self.found.queued.append(ExecutorWork(call))
            if reach is _Reach.OWN:
                self.found.queued_futures.append(future)
            return _Waits.NOTHING
        inner = awaits.shielded(future)
        return _Waits.NOTHING if inner is None else self._threads_of([inner], scoped, _Reach.SHARED)

    def _threads_of(self, futures: Any, scoped: bool, reach: _Reach) -> _Waits:
        """Look for threads behind futures that must not be cancelled."""
        before = len(self.found.threads)
        for future in futures:
            self._future(future, scoped, reach)
        return _Waits.THREAD if len(self.found.threads) > before else _Waits.NOTHING
