"""The alarm: runs the `on_cancel` callbacks of requests that a thread works on, when their deadline comes.

A thread cannot be interrupted, so somebody else has to act on its behalf: close a socket, have a driver send its own
CANCEL. That is one daemon thread per process, started by the first callback and ended as soon as no request with
callbacks is in flight. It runs the callbacks one after the other, so they have to be short.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Awaitable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.context import CancelCallback, RequestContext
from resilient_mw.runtime.measured import UNMEASURED, Measured

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

CALLBACKS_WITHIN = 1.0
"""Seconds that running callbacks hold the end of their request, and with it the slot."""


class Hook:
    """One registered callback: runs once at most, in a copy of the context in which it was registered."""

    __slots__ = ("_armed",)

    def __init__(self, callback: CancelCallback) -> None:
        self._armed = [(copy_context(), callback)]

    def __call__(self, reason: CancelReason) -> Awaitable[object] | None:
        """Run the callback, unless it ran or was disarmed before."""
        try:
            context, callback = self._armed.pop()  # atomic: of two threads one gets it
        except IndexError:
            return None
        return context.run(callback, reason)

    def disarm(self) -> None:
        """Forget the callback: its work has ended by itself."""
        self._armed.clear()


class ThreadContext(RequestContext):
    """The context of a request that threads work on (WSGI).

    Callbacks run in the alarm's thread, in a copy of the context in which they were registered, when the deadline
    comes, and in the server's thread when it tells that the caller has gone. They must be plain functions: nobody
    awaits what they return.

    Args:
        deadline_at: instant; at most that of `outer`.
        clock: the one clock.
        owner: whoever guards this request, so that it is not guarded twice.
        outer: the context of the request around it: another middleware, or a handler that calls an application.
    """

    __slots__ = ("ended", "firing", "held", "hooks", "outer", "owner")

    def __init__(
        self, deadline_at: float, clock: Clock, owner: object = None, outer: RequestContext | None = None
    ) -> None:
        # On the way of every request: the slots of RequestContext are set here, without a call.
        self.deadline_at = deadline_at
        self.reason = None
        self.degraded = False
        self._clock = clock
        self._callbacks = None
        self.owner = owner
        self.outer = outer
        self.hooks: list[Hook] | None = None
        self.firing = False
        self.ended = False
        self.held: list[concurrent.futures.Future[Any] | asyncio.Future[Any]] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the work no longer matters."""
        return self.cancel_reason is not None

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the work no longer matters, for this request or the one around it; None while it does."""
        if self.reason is None:
            if self._clock.now() >= self.deadline_at:
                return CancelReason.DEADLINE
            if self.outer is not None:
                return self.outer.cancel_reason
        return self.reason

    def on_cancel(self, callback: CancelCallback) -> None:
        """Have `callback(reason)` called once if the work is cancelled; at once if it already is.

        It is not called for work that ends by itself, nor once the request is over.
        """
        hook = Hook(callback)
        reason = self.cancel_reason
        if reason is not None and not self.ended:
            run_hooks((hook,), reason)
            return
        ALARM.watch(self, hook)
        if self.outer is not None:
            self.outer.on_cancel(hook)

    def hold(self, future: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
        """Keep this request's slot taken until `future` is done, also when its response has ended before."""
        if self.held is None:
            self.held = []
        self.held.append(future)

    def measured(self) -> Measured:
        """Return where the overload of this request's service is measured."""
        return getattr(self.owner, "overload", UNMEASURED)

    def guarded_by(self, guard: object) -> bool:
        """Return whether this guard has admitted the request already, here or further out."""
        return self.owner is guard or (self.outer is not None and guarded_by(self.outer, guard))

    def cancel(self, reason: CancelReason) -> None:
        """Latch why the work is over, if nothing else did before, and run the callbacks in this thread."""
        if self.reason is None:
            run_hooks(ALARM.latch(self, reason), reason)

    def end(self) -> None:
        """Forget the callbacks: the work has ended. Waits, within bounds, for those that run at this instant."""
        if self.hooks is None and not self.firing:
            self.ended = True
        else:
            ALARM.forget(self)


class Alarm:
    """Watches the deadlines of requests that have callbacks, and owns the lock around these."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start anew in a process that was forked: threads and locks of the parent mean nothing here."""
        self._changed = threading.Condition(threading.Lock())
        self._watched: set[ThreadContext] = set()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the helper thread exists."""
        return self._thread is not None

    def watch(self, context: ThreadContext, hook: Hook) -> None:
        """Have `hook` run when the deadline of `context` comes; at once if it was cancelled meanwhile."""
        with self._changed:
            if context.ended:
                hook.disarm()
                return
            reason = context.reason
            if reason is None:
                if context.hooks is None:
                    context.hooks = []
                context.hooks.append(hook)
                self._watched.add(context)
                if self._thread is None:
                    self._start()
                else:
                    self._changed.notify_all()
        if reason is not None:
            run_hooks((hook,), reason)

    def latch(self, context: ThreadContext, reason: CancelReason) -> Sequence[Hook]:
        """Note why a request is over and hand out its hooks, each only once."""
        with self._changed:
            return self._latch(context, reason)

    def forget(self, context: ThreadContext) -> None:
        """Disarm the hooks of a request that has ended, and wait for those that run at this instant."""
        with self._changed:
            context.ended = True
            for hook in context.hooks or ():
                hook.disarm()
            context.hooks = None
            self._unwatch(context)
            self._changed.wait_for(lambda: not context.firing, timeout=CALLBACKS_WITHIN)

    def poke(self) -> None:
        """Look at the clocks again now: for clocks that jump."""
        with self._changed:
            self._changed.notify_all()

    def _latch(self, context: ThreadContext, reason: CancelReason) -> Sequence[Hook]:
        if context.reason is None:
            context.reason = reason
        hooks, context.hooks = context.hooks, None
        self._unwatch(context)
        return hooks or ()

    def _unwatch(self, context: ThreadContext) -> None:
        self._watched.discard(context)
        if not self._watched:
            self._changed.notify_all()  # for the thread to end

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="resilient_mw alarm", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as error:  # no threads left, or the interpreter is about to end
            self._thread = None
            _warn(
                f"on_cancel callbacks will not run at the deadline, because their thread did not start: {error}"
            )

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while (due := self._wait()) is not None:
                context, hooks = due
                try:
                    run_hooks(hooks, CancelReason.DEADLINE)
                finally:
                    with self._changed:
                        context.firing = False
                        self._changed.notify_all()
        finally:
            with self._changed:
                if self._thread is me:  # not if it gave its place up before, and another one has begun
                    self._thread = None

    def _wait(self) -> tuple[ThreadContext, Sequence[Hook]] | None:
        """Sleep until the next deadline has come; None when there is nothing left to watch."""
        with self._changed:
            while self._watched:
                seconds, context = min(
                    ((each.deadline_at - each.clock.now(), each) for each in self._watched),
                    key=lambda pair: pair[0],
                )
                if seconds <= 0:
                    context.firing = True
                    return context, self._latch(context, CancelReason.DEADLINE)
                self._changed.wait(None if seconds == math.inf else seconds)
            # Under the lock: whoever watches next starts a new thread.
            self._thread = None
            return None


def guarded_by(context: RequestContext, guard: object) -> bool:
    """Return whether a guard has admitted the request of a context, whichever middleware made it."""
    known = getattr(context, "guarded_by", None)
    return known is not None and bool(known(guard))


def has_ended(context: RequestContext) -> bool:
    """Return whether the request of a context is over, whichever middleware made it."""
    return bool(getattr(context, "ended", False) or getattr(context, "done", False))


def run_hooks(hooks: Sequence[Hook], reason: CancelReason) -> None:
    """Run callbacks, each guarded: what one raises is logged and keeps no other from running."""
    for hook in hooks:
        try:
            result = hook(reason)
            if result is not None and hasattr(result, "__await__"):
                close = getattr(result, "close", None)
                if close is not None:
                    close()
                _warn(
                    "an on_cancel callback returned an awaitable, which nobody awaits here: use a plain function"
                )
        except Exception:  # a callback is a guest: whatever it raises stays with it
            import logging  # only loaded when something is wrong

            logging.getLogger("resilient_mw").exception("an on_cancel callback failed")


def _warn(text: str) -> None:
    warnings.warn(text, ResilienceWarning, stacklevel=2)


ALARM = Alarm()
"""The alarm of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ALARM.restart)
