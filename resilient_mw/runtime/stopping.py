"""Bring one request that is over to its end: cancel what it waits for, once, in an order that lets clean-ups run.

A cancel goes to the innermost tasks first, and each task is asked once. A running thread is never cut off from the
one who waits for it while no answer has begun: when it is back, the handler gets 50 ms to end by itself. Every
step is a callback of the event loop; none is taken within the handler's own step.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from functools import cache, partial
from typing import Any, Protocol

from resilient_mw.runtime.survey import Survey, has_scope_children, survey
from resilient_mw.runtime.thread_work import ThreadWork
from resilient_mw.runtime.wakeups import before_resume, end_quietly

GRACE = 0.05
"""Seconds that a handler gets to end by itself when its thread has come back after the end of its request."""
DISCONNECT_GRACE = 0.1
"""Seconds that a framework gets to react to `http.disconnect` before its task is cancelled."""
SLICE = 0.05
LATE_SLICES = 5
"""After so many slices (250 ms) what still runs is counted as work after cancellation, and nudged once.

The time is taken in slices because a loop that stands still must not use up the time that a clean-up gets.
"""

Task = asyncio.Task[Any]


class Stoppable(Protocol):
    """What the end of a request needs of its record (see `supervise.Supervised`)."""

    task: Task
    started: bool
    done: bool

    @property
    def held(self) -> bool:
        """Whether something still holds the slot."""
        ...

    @property
    def shielded(self) -> bool:
        """Whether a section is open that must complete."""
        ...

    def keep(self, key: object) -> None:
        """Hold the slot on behalf of `key`."""
        ...

    def let_go(self, key: object) -> None:
        """Hold it no longer."""
        ...

    def offer_disconnect(self) -> bool:
        """Give `http.disconnect` to a pending `receive()`; False if there is none."""
        ...

    def late(self) -> None:
        """Count work that went on after its cancel."""
        ...


class Stop:
    """The end of one request. `begin()` starts it; it goes on by itself until the application has returned.

    Attributes:
        own_cancels: how often the request's own task was cancelled by this.
    """

    __slots__ = (
        "_age", "_armed", "_asked", "_back", "_begun", "_checking", "_followed", "_graced", "_loop", "_nudged",
        "_offered", "_patience", "_pause", "_quiet", "_record", "_running", "_waiting", "own_cancels",
    )  # fmt: skip

    def __init__(self, record: Stoppable, loop: asyncio.AbstractEventLoop) -> None:
        self.own_cancels = 0
        self._record = record
        self._loop = loop
        self._begun = record.started  # then the response must be closed, also if a thread runs
        self._asked: set[Task] = set()  # were cancelled
        self._patience = LATE_SLICES  # slices left since the last of them was
        self._age = 0  # slices since the end of the request
        self._armed: set[Task] = set()  # will be, when they are about to resume
        self._quiet: set[Task] = set()  # will not have their group's scope cancelled when they end
        self._followed: set[object] = set()  # calls in threads, or on their way to one, that hold the slot
        self._running: set[object] = set()  # those that were seen in a thread and have not come back
        self._back: set[object] = set()
        self._pause: asyncio.TimerHandle | None = None  # no step before it has run
        self._waiting = False  # the next step is due already
        self._checking = False
        self._graced = False
        self._offered = False
        self._nudged = False

    def begin(self) -> None:
        """Take the first step."""
        self._step()

    def go_on(self) -> None:
        """Take the next step: a section that held it back has been left."""
        self._step_soon()

    def _step(self) -> None:
        """Look at what the request waits for now, and cancel what was not asked before."""
        self._waiting = False
        record = self._record
        if record.done or self._pause is not None or record.shielded:
            return
        self._check_later()
        found = self._look()
        if found.unstarted:
            self._step_soon()
        if found.blind:
            _warn_blind()
            record.offer_disconnect()
            self._cancel(record.task)
        elif found.threads and not self._begun:
            self._cancel_beside_threads(found)
        elif found.resuming and not self._graced:
            self._pause_for(GRACE)
        elif found.by_wait and self._offered_disconnect(found):
            pass
        elif found.by_wait or not self._offered:
            self._cancel_all(found)

    def _cancel_beside_threads(self, found: Survey) -> None:
        """Cancel what does not wait for a thread, and what a thread waits for."""
        if self._offered:
            return  # the framework does it
        for future in found.queued_futures:
            future.cancel()
        for leaf in found.leaves:
            self._cancel(leaf)
        if found.behind_wait and not self._offered_disconnect(found):
            for leaf in found.behind_wait:
                self._cancel(leaf)

    def _offered_disconnect(self, found: Survey) -> bool:
        """Let a framework that runs its handler in a task of its own, and listens meanwhile, cancel it itself."""
        if self._offered or not self._record.offer_disconnect():
            return False
        self._offered = True
        self._patience = LATE_SLICES
        self._arm(found.outer)
        self._pause_for(DISCONNECT_GRACE)
        return True

    def _cancel_all(self, found: Survey) -> None:
        if not found.below_scope:
            self._cancel(self._record.task)
            return
        self._arm(found.outer)
        for task in (*found.leaves, *found.resuming, *found.thread_waiters):
            self._cancel(task)

    def _arm(self, tasks: list[Task]) -> None:
        """Have these cancelled just before they resume, in place of seeing how the ones they wait for ended."""
        for task in tasks:
            if task not in self._asked and task not in self._armed:
                self._armed.add(task)
                before_resume(task, partial(self._resumes, task))

    def _resumes(self, task: Task) -> None:
        """Cancel a task that is about to resume; not while children of its scopes clean up.

        Leaving an anyio group by a cancel would cancel them again and again.
        """
        if has_scope_children(task):
            self._armed.discard(task)
            self._step_soon()
        else:
            self._cancel(task)

    def _cancel(self, task: Task) -> None:
        """Cancel one task, if it was not asked before."""
        if task in self._asked or task.done():
            return
        self._asked.add(task)
        self._patience = LATE_SLICES
        if task is not self._record.task:
            task.add_done_callback(self._step_soon, context=Context())
            task.cancel()
        elif not self._record.done:
            self._cancel_root()

    def _cancel_root(self) -> None:
        self.own_cancels += 1
        self._record.task.cancel()

    def _step_soon(self, _: Task | None = None) -> None:
        """Take the next step at the next turn: a task that was cancelled has ended, or one has begun."""
        if not self._waiting:
            self._waiting = True
            self._loop.call_soon(self._step, context=Context())

    def _look(self) -> Survey:
        """Survey the request, and hold the slot for every call in a thread, or on its way to one, that it shows."""
        found = survey(self._record.task)
        for task in (*found.leaves, *found.resuming, *found.thread_waiters, *found.outer):
            if task not in self._quiet:
                self._quiet.add(task)
                end_quietly(task)
        for work in (*found.threads, *found.queued):
            if work.key not in self._followed:
                self._followed.add(work.key)
                self._record.keep(work.key)
                work.follow(self._loop, partial(self._call_ended, work))
        self._running.update(work.key for work in found.threads if work.key not in self._back)
        return found

    def _call_ended(self, work: ThreadWork) -> None:
        self._back.add(work.key)
        self._record.let_go(work.key)
        if work.key in self._running:
            self._running.discard(work.key)
            if not self._record.done:
                self._pause_for(GRACE)

    def _pause_for(self, delay: float) -> None:
        """Take the next step after `delay` seconds, and none before."""
        if self._pause is not None:
            self._pause.cancel()
        self._graced = True
        self._pause = self._loop.call_later(delay, self._go_on, context=Context())

    def _go_on(self) -> None:
        self._pause = None
        self._step()

    def _check_later(self) -> None:
        if not self._checking:
            self._checking = True
            self._loop.call_later(SLICE, self._check, context=Context())

    def _check(self) -> None:
        """Count what still runs, and ask it once more when it has had its time."""
        self._checking = False
        record = self._record
        if record.done and not record.held:
            return
        self._age += 1
        self._patience -= not record.shielded  # a section in the clean-up has its own time
        if self._age == LATE_SLICES:
            record.late()
        if record.done:
            if self._age < LATE_SLICES:
                self._check_later()
        elif not self._nudged:
            if self._patience > 0 or self._pause is not None:
                self._check_later()
            else:
                self._nudge()

    def _nudge(self) -> None:
        """Cancel once more what has let its time pass. The next one is for what a later step finds."""
        record = self._record
        found = self._look()
        if not found.threads:
            self._nudged = True
            record.offer_disconnect()
            self._asked.add(record.task)
            self._cancel_root()
            return
        # Whoever waits for the thread is left alone, but a thread may itself wait for one that swallowed a cancel.
        leaves = (*found.leaves, *found.behind_wait)
        again = [
            task for task in leaves if (self._offered or task in self._asked) and task is not record.task
        ]
        self._nudged = bool(again)
        for task in again:
            task.cancel()


@cache
def _warn_blind() -> None:
    logging.getLogger("resilient_mw").warning(
        "Cannot see what a request waits for (names inside asyncio, anyio or asgiref have changed): requests are "
        "cancelled at their own task only, and slots of threads that are left behind come back too early."
    )
