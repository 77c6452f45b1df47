"""A running HTTP request under a policy with defences in shadow mode."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import COMPLETED, ERROR, RouteEntry
from resilient_mw.admission.policy_checks import DEADLINES
from resilient_mw.asgi.exchange import HttpExchange
from resilient_mw.asgi.stream import StreamExchange
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.streams import BODY
from resilient_mw.runtime.shadow import ShadowGuard, Ticket, ticket_of


class ShadowExchange(HttpExchange):
    """Knows no deadline if those are in shadow mode, and counts when it would have been cancelled.

    Args:
        shadow: the guard.
        decision: about this request.
        *facts: the arguments of `HttpExchange`.
    """

    __slots__ = ("_shadow", "_ticket", "_timer")

    def __init__(self, shadow: ShadowGuard, decision: Decision, *facts: Any) -> None:
        super().__init__(*facts)
        self._shadow = shadow
        self._ticket = ticket_of(decision) or Ticket(self.entry, self._cost, None, late=True)
        self._timer: asyncio.TimerHandle | None = None
        due_at = shadow.due_at(self._ticket, self.deadline_at, self.started_at)
        self.deadline_at = shadow.kept(self.deadline_at, self._outer, self.entry.stream)
        if due_at != FOREVER:
            delay = max(0.0, due_at - self._clock.now())
            self._timer = self.task.get_loop().call_later(delay, self._overrun, context=Context())

    def release(self) -> None:
        """Count how the run ended, and take it out of the model."""
        if self._timer is not None:
            self._timer.cancel()
        reason, ran = self.reason, self._clock.now() - self.started_at
        if reason is None:
            self._shadow.over(self._ticket, ERROR if self.failed else COMPLETED, ran)
            return
        self._shadow.over(self._ticket, reason.value, ran)
        self._shadow.cancelled(self.entry, reason, ran)

    def _overrun(self) -> None:
        if not (self.complete or self.done or self.reason is not None):
            self._shadow.would_cancel(self._ticket)


class ShadowStream(StreamExchange):
    """A stream where admission is real: its slot and its place are those of every stream.

    If deadlines are in shadow mode it has none, and it is counted once when the one of its arrival would have ended it.
    Arguments as of `ShadowExchange`.
    """

    __slots__ = ("_shadow", "_ticket", "_timer", "_until_head")

    def __init__(self, shadow: ShadowGuard, decision: Decision, *facts: Any) -> None:
        super().__init__(*facts)
        self._shadow = shadow
        self._ticket = ticket_of(decision) or Ticket(self.entry, self._cost, None, late=True)
        self._timer: asyncio.TimerHandle | None = None
        self._until_head = self._covers != BODY
        if not shadow.shadows(DEADLINES):
            return
        due_at = shadow.due_at(self._ticket, self.deadline_at, self.started_at)
        self._covers = BODY  # so that nothing moves it
        self.deadline_at = shadow.kept(self.deadline_at, self._outer, self.entry.stream)
        if due_at != FOREVER:
            delay = max(0.0, due_at - self._clock.now())
            self._timer = self.task.get_loop().call_later(delay, self._overrun, context=Context())

    def release(self) -> None:
        """Count how the run, or the stream, ended, and give back what it has."""
        if self._timer is not None:
            self._timer.cancel()
        super().release()

    def _overrun(self) -> None:
        in_time = self._until_head and self._head_at is not None
        if not (in_time or self.complete or self.done or self.reason is not None):
            self._shadow.would_cancel(self._ticket)


def shadow_exchange(shadow: ShadowGuard, entry: RouteEntry) -> type[ShadowExchange | ShadowStream]:
    """Return what a request is made of that is treated like `entry`."""
    return ShadowExchange if entry.stream is None or shadow.models else ShadowStream
