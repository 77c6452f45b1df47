"""The open websockets of one policy: how many there may be, and of which class.

A websocket lives for as long as its peer likes, so it takes none of the slots that requests run in, it cannot wait for
somebody else to leave, and how long it was open says nothing of how fast the service is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.decision import ADMITTED, Decision
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.forecast import MOST_RETRY_AFTER
from resilient_mw.admission.queue import class_states
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.admission.slots import Slots
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.rejection import Reason

if TYPE_CHECKING:
    from random import Random

LEARNING = 0.2
"""How much of a new gap between two endings goes into the typical one."""


class Connections:
    """Decides about websockets. Not thread-safe: the owner locks.

    Args:
        policy: classes, and the limit of exempt ones.
        limit: connections that may be open at once.
        random: source of the jitter of `Retry-After`.

    Attributes:
        entries: how websockets are treated, and their counters, apart from those of requests to the same routes.
        slots: one for each connection, whatever its route costs.
        exempt: open exempt connections, which take no slot.
        exempt_limit: most of them at once.
    """

    __slots__ = ("_ended_at", "_gap", "_lowest", "_random", "entries", "exempt", "exempt_limit", "slots")

    def __init__(self, policy: ServerPolicy, limit: int, random: Random) -> None:
        self.entries = RouteEntries(policy)
        self.slots = Slots(limit, class_states(shares(policy.classes, policy.slots, limit), 0))
        self.exempt = 0
        self.exempt_limit = policy.exempt_limit
        # Where there is one class only, nobody is served better by refusing it.
        self._lowest = len(policy.classes) - 1 if len(policy.classes) > 1 else None
        self._random = random
        self._ended_at: float | None = None
        self._gap = 0.0

    def arrive(self, now: float, entry: RouteEntry, *, draining: bool, overloaded: bool) -> Decision:
        """Admit or refuse a websocket that wants to be opened.

        Args:
            now: the instant of arrival.
            entry: how it is treated.
            draining: whether the server takes no new work.
            overloaded: whether the service is overloaded: the lowest class opens no more connections.
        """
        entry.arrived += 1
        reason: Reason | None = None
        if entry.rank < 0:
            if self.exempt >= self.exempt_limit:
                reason = Reason.EXEMPT_LIMIT
            else:
                self.exempt += 1
        elif draining:
            reason = Reason.DRAINING
        elif overloaded and entry.rank == self._lowest:
            reason = Reason.OVERLOADED
        elif not self.slots.try_take(self.slots.classes[entry.rank], 1):
            reason = Reason.WEBSOCKET_LIMIT
        if reason is not None:
            entry.refuse(reason)
            return Decision(reason=reason, retry_after=self._retry_after(now, reason))
        entry.admitted += 1
        return ADMITTED

    def end(self, now: float, entry: RouteEntry, outcome: str) -> None:
        """Count how a connection ended and take its place back.

        Raises:
            RuntimeError: no connection of this class is open.
        """
        if entry.rank >= 0:
            self.slots.give_back(self.slots.classes[entry.rank], 1)
            self._learn(now)
        elif self.exempt:
            self.exempt -= 1
        else:
            raise RuntimeError("the place of an exempt websocket was given back, but none is taken")
        entry.outcomes[outcome] = entry.outcomes.get(outcome, 0) + 1

    def change(self, policy: ServerPolicy, limit: int) -> None:
        """Put other numbers in force. More may be open than may be opened from now on."""
        planned = shares(policy.classes, policy.slots, limit)
        for state, priority in zip(self.slots.classes, planned, strict=True):
            state.priority, state.reserved = priority, priority.reserved
        self.slots.change(limit)
        self.exempt_limit = policy.exempt_limit
        self.entries = self.entries.under(policy)

    def restart(self) -> None:
        """Begin anew in a process that was forked: what is open is the parent's."""
        self.slots = Slots(
            self.slots.limit, class_states([state.priority for state in self.slots.classes], 0)
        )
        self.exempt = 0
        self._ended_at = None
        self._gap = 0.0
        self.entries.forget()

    def _learn(self, now: float) -> None:
        if self._ended_at is not None:
            gap = now - self._ended_at
            self._gap += (gap - self._gap) * (LEARNING if self._gap else 1.0)
        self._ended_at = now

    def _retry_after(self, now: float, reason: Reason) -> int:
        """Return whole seconds after which a place may have come free: the typical gap between two endings.

        At least a second and at most a minute, jittered as `Forecast.retry_after` is.
        """
        gap = 0.0
        if reason is Reason.WEBSOCKET_LIMIT and self._ended_at is not None:
            gap = max(self._gap, now - self._ended_at)  # a gap that lasts already says more than those before
        return math.ceil(min(max(1.0, gap), MOST_RETRY_AFTER / 1.4) * self._random.uniform(0.8, 1.4))


def shares(classes: Sequence[PriorityClass], slots: int, limit: int) -> list[PriorityClass]:
    """Return the classes with the part of `limit` reserved that they have reserved of the slots, rounded down."""
    return [replace(each, reserved=each.reserved * limit // slots) for each in classes]
