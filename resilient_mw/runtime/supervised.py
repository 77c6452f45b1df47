"""One running request: what it is to the code that runs for it, and what holds its slot."""

# The contexts of one request are one subject in several files: private names keep the face of the user's object small.
# ruff: noqa: SLF001

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.ports import Clock
from resilient_mw.runtime import callbacks
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import CURRENT, CancelCallback, RequestContext
from resilient_mw.runtime.forks import renew_lock
from resilient_mw.runtime.measured import Measured
from resilient_mw.runtime.shield import Shield
from resilient_mw.runtime.stopping import Stop
from resilient_mw.runtime.thread_work import call_in_loop, in_thread_of

if TYPE_CHECKING:
    from resilient_mw.runtime.guard import Guard
    from resilient_mw.runtime.lent_slots import Lent

_lock = threading.Lock()  # for what worker threads change: holds and cancel callbacks
renew_lock(__name__, "_lock")


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
        "_guard", "_held", "_outer", "_release", "_stop", "_timed", "_watched", "base", "complete", "done", "started",
        "started_at", "task",
    )  # fmt: skip
    _guard: Guard | None
    _outer: Supervised | None

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
        self._guard = None
        self._outer = None

    def received(self, name: str) -> Sequence[str]:
        """Return the lines of a header field of the request, by its lower-case name."""
        scope = getattr(self, "_scope", None) or getattr(self, "scope", None) or {}
        wanted = name.encode("ascii")
        return [value.decode("latin-1") for key, value in scope.get("headers", ()) if key == wanted]

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

        It runs with this request as `current()`: in the event loop, or, if it was registered in a worker thread and is no
        coroutine function, in a thread of its own, so that it may block. It gets one second, an awaitable that it returns
        included, during which the slot stays taken; then an awaitable is cancelled, and a thread is left alone. A plain
        function in the event loop cannot be interrupted: when it blocks, it blocks the loop. May be called from any thread.
        """
        if not in_thread_of(self.task.get_loop()):
            callback = callbacks.for_thread(callback)
        with _lock:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if self.reason is not None:
            call_in_loop(self.task.get_loop(), self.run_callbacks)

    def run_callbacks(self) -> None:
        """Call what was registered by `on_cancel`, each only once; not while a shielded section is open. In the loop."""
        if self.shielded or self.reason is None:
            return
        with _lock:
            registered = self.take_callbacks()
        loop = self.task.get_loop()
        for callback in registered:
            context = Context()
            context.run(CURRENT.set, self)
            answer = callbacks.call(loop, context, callback, self.reason, self._callback_failed)
            if answer is not None:
                task = loop.create_task(callbacks.bounded(answer, self._callback_failed), context=context)
                self.keep(task)
                task.add_done_callback(self.let_go, context=Context())

    def _callback_failed(self, what: str, error: BaseException) -> None:
        """Count and log what became of a callback; where there is no guard that counts, tell the loop."""
        if self._guard is not None:
            self._guard.listeners.guest_failed("on_cancel callback", error)
        else:
            self.task.get_loop().call_exception_handler({"message": what, "exception": error})

    # -- the end, and the sections that hold it back ------------------------------------------------------------------

    @property
    def shielded(self) -> bool:
        """Whether a section is open that must complete: nothing is cancelled meanwhile."""
        # No lock: the garbage collector may ask. The copy is made in one step.
        return bool(self._held) and any(
            isinstance(key, Shield) and key.open for key in tuple(self._held or ())
        )

    def deliver(self) -> None:
        """Call the callbacks of a request that is over, and stop its work. In a callback of the loop.

        Does nothing while a shielded section is open: called again when it is left, it goes on.
        """
        if self.reason is None or self.shielded:
            return
        self.run_callbacks()
        if self._stop is not None:
            self._stop.go_on()
        elif not self.done:
            self._stop = Stop(self, self.task.get_loop())
            self._stop.begin()

    def measured(self) -> Measured:
        """Return where the overload of this request's service is measured."""
        return super().measured() if self._guard is None else self._guard.overload

    def guarded_by(self, guard: Guard) -> bool:
        """Return whether this guard has admitted the request already, here or further out."""
        return self._guard is guard or (self._outer is not None and self._outer.guarded_by(guard))

    def _lend(self, lent: list[Lent]) -> None:
        from resilient_mw.runtime.lent_slots import add_lent  # few requests wait for another one

        if not (self.done or self.complete or self._held):
            add_lent(lent, self, self._guard, getattr(self, "tenant", None))
        if self._outer is not None:
            self._outer._lend(lent)

    def _ends_at(self) -> float:
        # Nothing that goes on after the response is told that it is worthless now.
        if self.reason is None and (self.complete or self.done):
            return FOREVER
        # What is around may have an end that moves: it is told, and minded there.
        return self.deadline_at if self._outer is None else min(self.deadline_at, self._outer._ends_at())

    def _fixed_end(self) -> float:
        return FOREVER if self.reason is None and (self.complete or self.done) else self.deadline_at

    def _interrupted_at(self) -> float:
        # Scopes inside that end later must not rely on an end that moves.
        return self._fixed_end()

    def _loop(self) -> asyncio.AbstractEventLoop:
        return self.task.get_loop()

    def _hold_back(self, section: Shield) -> None:
        self.keep(section)
        if self._outer is not None:
            self._outer._hold_back(section)

    def _hand_over(self, section: Shield) -> bool:
        begins = False
        if self.reason is not None:
            begins = self._stop is None and not self.done and not self.shielded
            # Never within the handler's own step.
            call_in_loop(self.task.get_loop(), self.deliver)
        further = self._outer is not None and self._outer._hand_over(section)
        return begins or further

    def _section_left(self, section: Shield, *, collected: bool) -> None:
        loop = self.task.get_loop()
        if self.reason is None and not collected and in_thread_of(loop):
            self.let_go(section)
        else:
            call_in_loop(
                loop, self.let_go, section
            )  # After `deliver`, so that callbacks come before the slot.
        if self._outer is not None:
            self._outer._section_left(section, collected=collected)


def retrieve(future: asyncio.Future[Any]) -> None:
    """Look at how a future ended, so that nobody complains that nobody did."""
    if not future.cancelled():
        future.exception()


def guarded(loop: asyncio.AbstractEventLoop, what: str, call: Callable[..., object], *args: object) -> object:
    """Call a hook or callback; what it raises is reported to the loop and must not stop what comes after it."""
    try:
        return call(*args)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (it may have raised CancelledError by itself)
        loop.call_exception_handler({"message": f"{what} of a request failed", "exception": error})
        return None
