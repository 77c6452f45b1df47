"""One running request whose route has a `StreamRule`: what the thread of the server shows of head, chunks and gaps.

Nothing interrupts a thread, so all of it is looked at between chunks: the head has been sent when the server comes back
after the first bytes, and a gap that lasted too long ends the response when the next chunk is there.
"""

from __future__ import annotations

from typing import Any

from resilient_mw.admission.verdict import outcome_of
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.streams import BODY, HEAD
from resilient_mw.runtime.alarm import ALARM
from resilient_mw.wsgi.run import Run


class StreamRun(Run):
    """A run that may last. It is made with the arguments of a `Run`."""

    __slots__ = ("_covers", "_frees", "_head_at", "_idle", "_slot_taken")

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        rule = self._entry.stream
        self._covers = BODY if rule is None else rule.covers
        self._frees = rule is not None and rule.slot == HEAD
        self._idle = FOREVER if rule is None or rule.idle is None else rule.idle
        self._head_at: float | None = None
        self._slot_taken = True

    def start(self) -> None:
        """Hand the application's response head to the server. The deadline that covers the head is over."""
        super().start()
        self._move()

    def write(self, data: bytes) -> None:
        """Send body bytes at once."""
        super().write(data)
        if self.started:
            self._bytes_left()

    def over(self) -> bool:
        """Note that the application has come back with a chunk; if it is in time, the next gap begins."""
        late = super().over()
        if not late and self.started:
            self._move()
        return late

    def resume(self) -> None:
        """Note that the server has taken a chunk. One that it could not get rid of in time was a gap, too."""
        super().resume()
        if self._resumed_at < self.context.deadline_at:
            self._move()
        self._bytes_left()

    def _bytes_left(self) -> None:
        """Note that the head has been sent; give the slots back unless the application holds them for something."""
        if self._head_at is None:
            self._head_at = self._guard.clock.now()
        context = self.context
        held = any(not future.done() for future in context.held or ())
        held = held or (context.hooks is not None and ALARM.shielded(context))
        if self._frees and self._slot_taken and not held and self.context.reason is None:
            self._slot_taken = False
            self._guard.streams.open(self._entry)
            complete, self.complete = self.complete, True  # for the slots, it is a run that is over
            try:
                super()._count(self._head_at)
            finally:
                self.complete = complete

    def _count(self, at: float) -> None:
        guard, entry, reason = self._guard, self._entry, self.context.reason
        if self._slot_taken:
            self._slot_taken = False
            if self._head_at is not None:
                # A run took until its head, however long it lasted: moved by what came after, the end is that far away.
                self._admitted_at += at - self._head_at
            try:
                super()._count(at)
            finally:
                if self._frees:
                    guard.streams.end(entry, None)
            return
        guard.streams.end(entry, outcome_of(reason, failed=self.failed, complete=self.complete))
        if reason is not None:
            guard.cancelled(entry, reason, at - self._admitted_at)

    def _move(self) -> None:
        """Let the deadline be that of the gap which begins now."""
        if self._covers == BODY:
            return
        context = self.context
        before = context.deadline_at
        end = self._guard.clock.now() + self._idle
        context.deadline_at = end if context.outer is None else min(end, context.outer._fixed_end())  # noqa: SLF001
        if context.hooks is not None and context.deadline_at < before:
            ALARM.poke()
