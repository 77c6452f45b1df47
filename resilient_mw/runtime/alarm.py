"""The alarm: runs the `on_cancel` callbacks of requests that a thread works on, when their deadline comes or the service stops.

A thread cannot be interrupted, so somebody else has to act on its behalf: close a socket, have a driver send its own
CANCEL. That is one daemon thread per process, started by the first callback and ended as soon as no request with
callbacks is in flight. When a deadline has come it leaves its place to another thread before it runs the callbacks: one
that blocks holds up the other callbacks of its own request, and nobody else's.
"""

from __future__ import annotations

import _thread
import math
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.callers import LOOK_EVERY
from resilient_mw.runtime.hooks import Hook, run_hooks, warn

if TYPE_CHECKING:
    from resilient_mw.runtime.shield import Shield
    from resilient_mw.runtime.thread_context import ThreadContext

CALLBACKS_WITHIN = 1.0
"""Seconds that running callbacks hold the end of their request, and with it the slot."""
NAME = "resilient_mw alarm"
"""The name of its threads."""


class Alarm:
    """Watches the deadlines of requests that have callbacks, and owns the lock around these."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start anew in a process that was forked: threads and locks of the parent mean nothing here."""
        self._changed = threading.Condition(threading.Lock())
        self._watched: set[ThreadContext] = set()
        self._sections: dict[ThreadContext, list[Shield]] = {}
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
            reason = None if self._shielded(context) else context.reason
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

    def cancel(self, context: ThreadContext, reason: CancelReason) -> None:
        """Note why a request is over, and have its callbacks run: now, or when no shielded section of it is open."""
        with self._changed:
            if context.reason is None:
                context.reason = reason
            if self._shielded(context):
                return
            hooks = self._take(context)
            context.firing = context.firing or bool(hooks)
        self._run_beside(context, hooks)

    def forget(self, context: ThreadContext, *, wait: bool = True) -> None:
        """Disarm the hooks of a request that has ended, and wait for those that run at this instant.

        Args:
            context: of the request.
            wait: whether to wait for sections that other threads have open, too, each for the time that it was promised:
                the work has not stopped before. False: this is called once more.
        """
        with self._changed:
            while wait and self._shielded(context):
                self._changed.wait(self._section_left(context))
            context.ended = True
            hooks = self._take(context)
            if context.reason is None:
                for hook in hooks:
                    hook.disarm()
                hooks = ()
            if self._shielded(context):
                context.hooks = list(hooks)
                return
            self._sections.pop(context, None)
            context.firing = context.firing or bool(hooks)
        self._run_beside(context, hooks)
        with self._changed:
            self._changed.wait_for(lambda: not context.firing, timeout=CALLBACKS_WITHIN)

    def poke(self) -> None:
        """Look at the clocks again now: for clocks that jump."""
        with self._changed:
            self._changed.notify_all()

    def poke_soon(self) -> None:
        """Look again soon, from a thread of its own: for a signal handler, which may take no lock."""
        if self._thread is None:
            return
        try:
            _thread.start_new_thread(self.poke, ())
        except RuntimeError:
            pass  # no threads left, or the interpreter is about to end

    # -- shielded sections ---------------------------------------------------------------------------------------------

    def hold_back(self, context: ThreadContext, section: Shield) -> None:
        """Run no callback of a request from now on, until the section is left or its time is over."""
        with self._changed:
            self._sections.setdefault(context, []).append(section)
            if context.hooks is None:
                context.hooks = []  # So that the end of the request comes by here.

    def shielded(self, context: ThreadContext) -> bool:
        """Return whether a section of the request is open."""
        with self._changed:
            return self._shielded(context)

    def look_again(self, *, wait: bool) -> None:
        """Look for what is due: a section has been left.

        Args:
            wait: False: do not wait for the lock, which this thread may hold. What is due then comes a little later.
        """
        if self._changed.acquire(blocking=wait):
            self._changed.notify_all()
            self._changed.release()

    def _shielded(self, context: ThreadContext) -> bool:
        now = context.clock.now()
        return any(section.protects(now) for section in self._sections.get(context, ()))

    def _section_left(self, context: ThreadContext) -> float:
        """Return seconds until the time of every open section is over."""
        ends = (section.until for section in self._sections.get(context, ()) if section.open)
        return max(ends, default=-math.inf) - context.clock.now()

    # -- the threads ---------------------------------------------------------------------------------------------------

    def _due_in(self, context: ThreadContext) -> float:
        """Return seconds until the callbacks of a request are to run; 0 or less: now."""
        due_at = -math.inf if context.reason is not None else min(context.deadline_at, context.stop_at)
        left = due_at - context.clock.now()
        return max(left, self._section_left(context))

    def _take(self, context: ThreadContext) -> Sequence[Hook]:
        hooks, context.hooks = context.hooks, None
        self._watched.discard(context)
        if not self._watched:
            self._changed.notify_all()  # for the thread to end
        return hooks or ()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as error:  # no threads left, or the interpreter is about to end
            self._thread = None
            warn(
                f"on_cancel callbacks will not run at the deadline, because their thread did not start: {error}"
            )

    def _run(self) -> None:
        due = self._wait()
        if due is not None:
            self._fire(*due)

    def _wait(self) -> tuple[ThreadContext, Sequence[Hook]] | None:
        """Sleep until a request is due, and leave the place to another thread; None: there is nothing left to watch."""
        with self._changed:
            while self._watched:
                looking = self._look_for_callers()
                seconds, context = min(
                    ((self._due_in(each), each) for each in self._watched), key=lambda pair: pair[0]
                )
                if seconds <= 0:
                    if context.reason is None:
                        late = context.deadline_at <= context.stop_at
                        context.reason = CancelReason.DEADLINE if late else CancelReason.SHUTDOWN
                    context.firing = True
                    hooks = self._take(context)
                    self._thread = None
                    if self._watched:
                        self._start()
                    return context, hooks
                if looking:
                    seconds = min(seconds, LOOK_EVERY)
                self._changed.wait(None if seconds == math.inf else seconds)
            # Under the lock: whoever watches next starts a new thread.
            self._thread = None
            return None

    def _look_for_callers(self) -> bool:
        """Note which requests have lost their caller; return whether there is one that might."""
        looking = False
        for context in self._watched:
            if context.reason is None and context.gone() is not None:
                looking = True
                if context.has_lost_its_caller(context.clock.now()):
                    context.reason = CancelReason.CLIENT_DISCONNECT
        return looking

    def _run_beside(self, context: ThreadContext, hooks: Sequence[Hook]) -> None:
        """Run hooks in a thread of their own: whoever ends the request waits for them, but not for ever."""
        if not hooks:
            return
        try:
            threading.Thread(target=self._fire, args=(context, hooks), name=NAME, daemon=True).start()
        except RuntimeError:  # no threads left, or the interpreter is about to end
            self._fire(context, hooks)

    def _fire(self, context: ThreadContext, hooks: Sequence[Hook]) -> None:
        try:
            run_hooks(hooks, context.reason or CancelReason.DEADLINE)
        finally:
            with self._changed:
                context.firing = False
                self._changed.notify_all()


ALARM = Alarm()
"""The alarm of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ALARM.restart)
