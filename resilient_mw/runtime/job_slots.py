"""A slot of the server's for a job: pulled with a slot in hand, given back when the work has stopped."""

from __future__ import annotations

import asyncio
from math import inf

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.async_gate import AsyncWait
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.thread_gate import wait_in_thread

PAUSE = 0.5
"""Seconds after which a slot is asked for again that was refused: the job is promised, so it waits on."""


class Slot:
    """One slot of a guard. Made when it has been granted.

    Attributes:
        guard: whose it is.
    """

    __slots__ = ("_entry", "guard")

    def __init__(self, guard: Guard, entry: RouteEntry) -> None:
        self.guard = guard
        self._entry = entry

    def end(self, outcome: str, ran: float) -> None:
        """Give it back: a job has ended like this."""
        self.guard.end(self._entry, self._entry.cost, outcome, ran)

    def unused(self) -> None:
        """Give it back without a job: another one has taken what was there."""
        self.guard.finish(self._entry, "completed", 0.0)
        self.guard.release(self._entry, self._entry.cost)


async def slot_for_task(guard: Guard, entry: RouteEntry) -> Slot | None:
    """Wait for a slot; None: the server drains, and promised jobs go on without its slots."""
    while True:
        decision: Decision | None = guard.arrive(entry, guard.clock.now(), inf)
        if decision is not None and decision.waiter is not None:
            decision = await AsyncWait(guard, decision.waiter, asyncio.get_running_loop()).wait()
        if decision is not None and decision.admitted:
            return Slot(guard, entry)
        if decision is not None and decision.reason is Reason.DRAINING:
            return None
        await asyncio.sleep(PAUSE)


def slot_for_thread(guard: Guard, entry: RouteEntry) -> tuple[Slot | None, bool]:
    """Wait for a slot as long as the guard lets somebody wait.

    Returns:
        The slot, and whether to go on: with it, or, while the server drains, without one.
    """
    decision = guard.arrive(entry, guard.clock.now(), inf)
    if decision.waiter is not None:
        decision = wait_in_thread(guard, decision.waiter)
    if decision.admitted:
        return Slot(guard, entry), True
    return None, decision.reason is Reason.DRAINING
