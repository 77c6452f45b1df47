"""Run requests under a deadline: one record per request, one supervisor per event loop.

The handler runs in the server's own task. There is no task, timer or scope per request: the supervisor keeps a set
of what is in flight and one shared 50 ms tick, which lives only while something is in flight. A request that is
over is brought to its end by `stopping.Stop`.
"""
# The record and the supervisor are one subject in two files: private slots keep the names of the shells free.
# ruff: noqa: SLF001

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context
from math import inf
from typing import Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.lifecycle import Lifecycle
from resilient_mw.runtime.overload import LoopWatch, Overload
from resilient_mw.runtime.supervised import Supervised, guarded, retrieve

__all__ = ["Supervised", "Supervisor"]

TICK = 0.05
"""Seconds between two looks at what is in flight."""
HORIZON = 1.5 * TICK
"""Seconds ahead for which exact timers are armed: more than one tick, since a tick may come late."""
WATCH_AFTER = 0.05
"""Seconds after which a request is worth watching for a disconnect."""
LEAST_LAG = 0.01
"""Seconds of lag that are worth charging to a request."""
MIN_TIMER = 0.001
"""Seconds that a timer which fired early is armed for again: loops round to their clock's resolution."""
ANSWERED = frozenset({CancelReason.DEADLINE, CancelReason.BODY_TOO_LARGE, CancelReason.SHUTDOWN})
"""Reasons that are told to the caller; for the others he has gone, or somebody else answers him."""
ANSWER_WITHIN = 1.0
"""Seconds that the answer to an expired request gets to leave once the application has ended."""


class Supervisor:
    """Watches over the requests of one event loop.

    A shell makes a record, calls `enter`, runs the application, calls `leave`, and, if the record has got a
    `reason` meanwhile, awaits `settle`. All methods belong to the loop's thread.

    Args:
        loop: the loop.
        clock: the one clock.
        overload: whose level is to follow the tick.
        lifecycle: says when everything has to end, and wants to know whether the loop is blocked.

    Attributes:
        in_flight: the records between `enter` and `leave`. To be read only.
        lag: seconds that everything has to wait for the loop at the moment; 0 below `LEAST_LAG`, and while nothing is in
            flight. To be read only.
    """

    __slots__ = (
        "__weakref__", "_clock", "_horizon", "_late", "_lifecycle", "_loop", "_thread", "_tick_at", "_watch",
        "in_flight", "lag",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock = MONOTONIC,
        overload: Overload | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        self.in_flight: set[Supervised] = set()
        self._loop = loop
        self._clock = clock
        self._watch = None if overload is None else LoopWatch(overload)
        self._thread = threading.get_ident()
        self._lifecycle = lifecycle
        if lifecycle is not None:
            lifecycle.watch(self)
        self._horizon = inf  # deadlines up to here need a timer now; inf: there is no tick
        self.lag = 0.0
        self._late = 0.0  # how late the last tick came
        self._tick_at = 0.0

    def enter(self, record: Supervised) -> None:
        """Take a request under supervision. Its deadline is met to within the resolution of the loop's timers."""
        self.in_flight.add(record)
        if record.deadline_at <= self._horizon:
            self._attend(record)

    def leave(self, record: Supervised, release: Callable[[], object]) -> None:
        """Say that the application has returned or raised, and give the slot back.

        `release()` is called exactly once, in the loop's thread: at once; or, while threads that the request left
        behind, held futures or cancel callbacks are at work, when the last of them has ended. No timer shortens
        that for a thread.
        """
        record.done = True
        self.in_flight.discard(record)
        if record._held:
            record._release = release
        else:
            release()

    def fire(self, record: Supervised, reason: CancelReason) -> None:
        """End a request: say so to its context, have the caller told, cancel its work.

        Does nothing for a request that is over already, has ended, or whose response is complete. It acts at once
        in a callback of the loop and at the next turn when it is called within the step of a task.
        """
        if record.reason is not None or record.complete or record.done:
            return
        if asyncio.current_task(self._loop) is not None:
            self.fire_soon(record, reason)
            return
        record.reason = reason
        if reason in ANSWERED and not record.started:
            guarded(self._loop, "on_expired", record.on_expired)
        record.deliver()

    def fire_soon(self, record: Supervised, reason: CancelReason) -> None:
        """End a request at the next turn of the loop. For `receive()`, `send()` and other code of a request."""
        self._loop.call_soon(self.fire, record, reason, context=Context())

    async def settle(
        self, record: Supervised, error: BaseException | None, answer: asyncio.Future[Any] | None = None
    ) -> None:
        """Finish a request that was ended by `fire`. Call it after `leave`, in the request's own task.

        It undoes our own cancels and nobody else's, waits at most one second for `answer` (the task that sends the
        504), and gives `http.disconnect` to whoever still listens. It returns when the shell should return, without
        finishing a response that had begun.

        Args:
            record: the request.
            error: what the application raised, if it did.
            answer: what has to be over before the server hears that the application has ended.

        Raises:
            asyncio.CancelledError: somebody else has cancelled the task, too.
            BaseException: `error`, if it is neither an `Exception` nor a cancellation (KeyboardInterrupt, ...).
        """
        task, stop = record.task, record._stop
        try:
            # Never below the count on entry: a handler may have called uncancel() for a cancel of ours itself.
            for _ in range(min(stop.own_cancels if stop else 0, task.cancelling() - record.base)):
                task.uncancel()
            record.offer_disconnect()
            if answer is not None:
                await _over(answer, record)
            if task.cancelling() > record.base:
                raise asyncio.CancelledError
            if error is not None and not _is_harmless(error):
                raise error
        finally:
            error = None  # the traceback of the error leads to frames that lead to the error
            record._stop = None  # it knows the record

    def _attend(self, record: Supervised) -> None:
        """Start the tick if there is none; arm a timer for a deadline that is near."""
        now = self._clock.now()
        if self._horizon == inf:
            self._next_tick(now)
            if self._watch is not None:
                self._watch.begin()
        if record.deadline_at <= self._horizon:
            self._arm(record, now)

    def _next_tick(self, now: float) -> None:
        self._horizon = now + HORIZON
        self._tick_at = now + TICK
        self._loop.call_later(TICK, self._tick, context=Context())

    def _tick(self) -> None:
        watch = self._watch
        if not self.in_flight:
            self._horizon = inf
            self.lag = self._late = 0.0
            if watch is not None:
                watch.rest()
            return
        now = self._clock.now()
        self._note_lag(now - self._tick_at)
        if watch is not None:
            watch.tick(self._tick_at, now)
        self._next_tick(now)
        horizon, watch_before = self._horizon, now - WATCH_AFTER
        for record in tuple(self.in_flight):
            if record.deadline_at <= horizon and not record._timed:
                self._arm(record, now)
            if record.started_at <= watch_before and not record._watched:
                record._watched = True
                guarded(self._loop, "start_watching", record.start_watching)
        if self._lifecycle is not None and now >= self._lifecycle.stop_at:
            for record in tuple(self.in_flight):
                self.fire(record, CancelReason.SHUTDOWN)

    def behind(self, now: float) -> float:
        """Return seconds that the loop is behind its timers at the moment. The one method for other threads, too."""
        if self._horizon == inf or not self._loop.is_running():
            return 0.0
        if threading.get_ident() == self._thread:
            return self.lag  # it is not blocked by now, whoever asks
        return max(self.lag, now - self._tick_at)

    def _note_lag(self, late: float) -> None:
        """Note how late a tick has come: of two in a row, the smaller one is lag.

        Nobody knows when during a single pause a request came in, and charging the whole pause would refuse those who came
        at its end. Where the loop is behind all the time, a request has waited for at least as long as the tick.
        """
        lag = min(late, self._late)
        self._late = late
        self.lag = lag if lag >= LEAST_LAG else 0.0

    def _arm(self, record: Supervised, now: float) -> None:
        record._timed = True
        delay = max(record.deadline_at - now, MIN_TIMER if now < record.deadline_at else 0.0)
        self._loop.call_later(delay, self._due, record, context=Context())

    def _due(self, record: Supervised) -> None:
        now = self._clock.now()
        if now >= record.deadline_at:
            self.fire(record, CancelReason.DEADLINE)
        elif not record.done and record.deadline_at <= self._horizon:
            self._arm(record, now)
        else:
            record._timed = False  # the deadline has moved: the tick arms a timer when it is near


async def _over(answer: asyncio.Future[Any], record: Supervised) -> None:
    """Wait until `answer` is over, at most one second; then it is cancelled."""
    try:
        await asyncio.wait((answer,), timeout=ANSWER_WITHIN)
    except asyncio.CancelledError:
        if record.task.cancelling() > record.base:
            raise
        # Else a remainder of a cancel that has been undone since: nobody wants the task gone.
    finally:
        answer.add_done_callback(retrieve)
        if not answer.done():
            answer.cancel()


def _is_harmless(error: BaseException) -> bool:
    """Tell what a handler may raise in answer to a cancel from what stops the process."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_harmless(each) for each in error.exceptions)
    return isinstance(error, (Exception, asyncio.CancelledError))
