"""One running HTTP request that may last: its slot comes back with the head, its deadline ends there or bounds the gaps.

No message is changed or held back, and nothing is made per message: the deadline is an instant that moves, and the
supervisor arms a timer for it when it is near.
"""
# The contexts of one request are one subject in several files: private names keep the face of the user's object small.
# ruff: noqa: SLF001

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resilient_mw.admission.entry import COMPLETED, ERROR
from resilient_mw.asgi.exchange import HttpExchange
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.streams import BODY, GAPS, HEAD

if TYPE_CHECKING:
    from asgiref.typing import ASGIReceiveEvent

CHUNKS = frozenset({"http.response.body", "http.response.trailers"})
FILES = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""Messages by which the server sends a file, in as many chunks as it likes: nobody else sees a gap between them."""


class StreamExchange(HttpExchange):
    """An exchange whose route has a `StreamRule`. It is made with the arguments of an `HttpExchange`."""

    __slots__ = ("_budget", "_covers", "_due", "_frees", "_head_at", "_in_parts", "_slot_taken")

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        rule = self.entry.stream
        self._covers = BODY if rule is None else rule.covers
        self._frees = rule is not None and rule.slot == HEAD
        self._due = self.deadline_at  # of the head
        self._budget = self.deadline_at - self.started_at
        self._head_at: float | None = None
        self._in_parts = False  # the request body
        self._slot_taken = True

    async def receive(self) -> ASGIReceiveEvent:
        """Receive as the server would. A part of an upload that lasts moves the deadline of its gaps."""
        message = await super().receive()
        if self._covers == GAPS and message["type"] == "http.request":
            more = message.get("more_body", False)
            if more or self._in_parts:
                self._in_parts = more
                self._part_came()
        return message

    async def send(self, message: Any) -> None:
        """Send as the server would. What the server has taken frees the slot, and moves the deadline."""
        kind = message["type"]
        gaps = self._covers == GAPS and self._head_at is not None
        if gaps and kind in FILES:
            self._end_at(FOREVER)
        await super().send(message)
        if self.reason is not None:
            return
        if kind == "http.response.start":
            self._head_left()
        elif gaps and (kind in CHUNKS or kind in FILES):
            self._end_at(self._clock.now() + self._idle)

    def release(self) -> None:
        """Count how the run, or the stream, ended; give the slots back if they are still taken, and the place."""
        if self._slot_taken:
            try:
                self._free()
            finally:
                if self._frees:
                    self._guard.streams.end(self.entry, None)
            return
        reason = self.reason
        outcome = (ERROR if self.failed else COMPLETED) if reason is None else reason.value
        self._guard.streams.end(self.entry, outcome)
        if reason is not None:
            self._guard.cancelled(self.entry, reason, self._clock.now() - self.started_at)

    @property
    def _idle(self) -> float:
        rule = self.entry.stream
        return FOREVER if rule is None or rule.idle is None else rule.idle

    def _head_left(self) -> None:
        now = self._head_at = self._clock.now()
        if self._covers != BODY:
            self._end_at(now + self._idle)
        if not self._frees:
            return
        if self._held:
            self._release = self._free_early  # what the application holds the slot for has not ended
        else:
            self._free_early()

    def _free_early(self) -> None:
        """Give the slots back while the request goes on. One that is over has them until its work has stopped."""
        if self._slot_taken and self.reason is None:
            self._guard.streams.open(self.entry)
            self._free()

    def _free(self) -> None:
        self._slot_taken = False
        if self._head_at is not None:
            # A run took until its head, however long it lasted: moved by what came after, the end is that far away.
            self.started_at += self._clock.now() - self._head_at
        super().release()

    def _fixed_end(self) -> float:
        if self._covers == BODY:
            return super()._fixed_end()
        return FOREVER if self._outer is None else self._outer._fixed_end()

    def _part_came(self) -> None:
        """Move the deadline: the next part, or the head, has its time from now on."""
        now = self._clock.now()
        if self._head_at is None:
            self._end_at(max(self._due, now + min(self._idle, self._budget)))
        else:
            self._end_at(now + self._idle)

    def _end_at(self, at: float) -> None:
        # Another middleware around this one may end the request before.
        self.deadline_at = at if self._outer is None else min(at, self._outer._fixed_end())
