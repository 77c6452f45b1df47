"""One running request: what it is to the code that runs for it, and what holds its slot."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import CURRENT, CancelCallback, RequestContext
from resilient_mw.runtime.stopping import Stop
from resilient_mw.runtime.thread_work import call_in_loop

CALLBACK_WITHIN = 1.0
"""Seconds that an awaitable returned by an `on_cancel` callback holds the slot."""

_lock = threading.Lock()  # for what worker threads change: holds and cancel callbacks


class Supervised(RequestContext):
    """One running request. A protocol shell derives from it and overrides the four hooks.

    Attributes:
        task: the server's task, in which the application runs.
        base: `task.cancelling()` on entry: more than that afterwards means that somebody wants the task gone.
        started_at: the instant of arrival on the clock of `deadline_at`.
        started: the application's response head has passed. Written by the shell, before it awaits the server.
        complete: the application's last body message has passed. Written by the shell; nothing is cancelled
            afterwards.
        done: the application has returned or raised.
        reason: why the request is over; from then on the shell drops and counts what the application sends.
    """

    __slots__ = (
        "_held", "_release", "_stop", "_timed", "_watched", "base", "complete", "done", "started", "started_at",
        "task",
    )  # fmt: skip

    def __init__(
        self,
        task: asyncio.Task[Any],
        deadline_at: float = FOREVER,
        started_at: float = 0.0,
        clock: Clock = MONOTONIC,
    ) -> None:
        # On the way of every request: the slots of RequestContext are set here, without a call.
        self.deadline_at = deadline_at
        self.reason = None
        self.degraded = False
        self._clock = clock
        self._callbacks = None
        self.task = task
        self.base = task.cancelling()
        self.started_at = started_at
        self.started = False
        self.complete = False
        self.done = False
        self._timed = False
        self._watched = False
        self._stop: Stop | None = None
        self._held: set[object] | None = None
        self._release: Callable[[], object] | None = None

    def on_expired(self) -> None:
        """Create the task that sends the 504 or 413 (hook). Called once, when it is over, if no response has started."""

    def start_watching(self) -> None:
        """Watch for a disconnect if nobody listens (hook). Called once, when the request has lasted 50 ms."""

    def offer_disconnect(self) -> bool:
        """Give `http.disconnect` to a pending `receive()` and to every later one (hook).

        Returns:
            Whether one was pending. May be called several times.
        """
        return False

    def late(self) -> None:
        """Count work after cancellation (hook). Called once, if 250 ms after its end the request still runs."""

    def hold(self, future: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
        """Keep this request's slot taken until `future` is done, also when the handler has ended before.

        Needed for work that cannot be found by looking at what the handler waits for: a thread or executor job
        that nobody awaits (or that is awaited through an event, a queue or `asyncio.as_completed`), a task made by
        `create_task` and left alone, the thread inside a library (aiosqlite), another process. Not needed for
        `asyncio.to_thread`, `run_in_executor`, `anyio.to_thread`, sync endpoints and dependencies,
        `sync_to_async`, also below `gather`, task groups, `wait_for`, `wait` and `shield`: those are seen.

        Call it while the request runs, from the event loop or (for a `concurrent.futures.Future`) any thread.
        """
        self.keep(future)
        if asyncio.isfuture(future):
            future.add_done_callback(self.let_go, context=Context())
        else:
            loop = self.task.get_loop()
            future.add_done_callback(lambda ended: call_in_loop(loop, self.let_go, ended))

    @property
    def held(self) -> bool:
        """Whether threads, held futures or cancel callbacks are at work for this request."""
        return bool(self._held)

    def keep(self, key: object) -> None:
        """Hold the slot on behalf of `key`, until `let_go(key)`."""
        with _lock:
            if self._held is None:
                self._held = set()
            self._held.add(key)

    def let_go(self, key: object) -> None:
        """Hold it no longer on behalf of `key`; give it back if this was the last and the application has ended."""
        with _lock:
            if self._held is not None:
                self._held.discard(key)
        if not self._held and self._release is not None:
            release, self._release = self._release, None
            release()

    def on_cancel(self, callback: CancelCallback) -> None:
        """Have `callback(reason)` called once if the work is cancelled; soon if it already is.

        It runs in the event loop, with this request as `current()`. An awaitable that it returns gets one second,
        during which the slot stays taken. May be called from any thread.
        """
        with _lock:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if self.reason is not None:
            call_in_loop(self.task.get_loop(), self.run_callbacks)

    def run_callbacks(self) -> None:
        """Call what was registered by `on_cancel`, each only once. In a callback of the event loop."""
        with _lock:
            callbacks = self.take_callbacks()
        loop = self.task.get_loop()
        for callback in callbacks:
            context = Context()
            context.run(CURRENT.set, self)
            answer = guarded(loop, "on_cancel callback", context.run, callback, self.reason)
            if isinstance(answer, Awaitable):
                task = loop.create_task(_bounded(answer), context=context)
                self.keep(task)
                task.add_done_callback(self.let_go, context=Context())


def retrieve(future: asyncio.Future[Any]) -> None:
    """Look at how a future ended, so that nobody complains that nobody did."""
    if not future.cancelled():
        future.exception()


async def _bounded(awaitable: Awaitable[object]) -> None:
    """Await what a cancel callback returned, for one second at most."""
    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future(awaitable)
    done, _ = await asyncio.wait((work,), timeout=CALLBACK_WITHIN)
    if not done:
        work.add_done_callback(retrieve)
        work.cancel()
        loop.call_exception_handler(
            {"message": "An on_cancel callback took longer than one second", "future": work}
        )
    elif not work.cancelled() and work.exception() is not None:
        loop.call_exception_handler(
            {"message": "An on_cancel callback failed", "exception": work.exception(), "future": work}
        )


def guarded(loop: asyncio.AbstractEventLoop, what: str, call: Callable[..., object], *args: object) -> object:
    """Call a hook or callback; what it raises is reported to the loop and must not stop what comes after it."""
    try:
        return call(*args)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (it may have raised CancelledError by itself)
        loop.call_exception_handler({"message": f"{what} of a request failed", "exception": error})
        return None
