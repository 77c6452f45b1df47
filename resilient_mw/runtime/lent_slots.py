"""Slots that a request gives back while it only waits for the answer of another one, and asks for anew if it has to work.

A thousand repeats of one request would else hold a thousand slots, and the first one of the next caller would find none.
"""
# The contexts of one request are one subject in several files: private names keep the face of the user's object small.
# ruff: noqa: SLF001

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.core.streams import HEAD
from resilient_mw.runtime.async_gate import AsyncWait
from resilient_mw.runtime.context import RequestContext
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.thread_gate import wait_in_thread

LENT: Final = "lent"
"""How the first part of a run has ended that gave its slots back, waited, and was admitted once more."""


class Lent:
    """The slots of one request under one guard, given back. It ends as every run does, then without slots.

    Args:
        guard: has admitted it.
        entry: how it is treated.
        holder: its context, which names the slots that are given back at its end in `_cost`.
        tenant: on whose behalf it came.
    """

    __slots__ = ("_cost", "_guard", "_holder", "_tenant", "entry")

    def __init__(self, guard: Guard, entry: RouteEntry, holder: Any, tenant: str | None) -> None:
        self._guard = guard
        self._holder = holder
        self._tenant = tenant
        self.entry = entry
        # First, so that whatever happens now nobody gives them back a second time.
        self._cost, holder._cost = holder._cost, 0
        guard.release(entry, self._cost, tenant)

    def ask(self) -> Decision:
        """Arrive once more."""
        return self._guard.arrive(
            self.entry, self._guard.clock.now(), self._holder._fixed_end(), self._cost, self._tenant
        )

    def taken(self) -> None:
        """Note that the slots are the request's again."""
        self._holder._cost = self._cost
        self._guard.finish(self.entry, LENT, 0.0)

    def wait_here(self) -> Decision:
        """Arrive once more, and wait in this thread if there is no slot."""
        decision = self.ask()
        return decision if decision.waiter is None else wait_in_thread(self._guard, decision.waiter)

    async def wait(self) -> Decision:
        """Arrive once more, and wait on this event loop if there is no slot."""
        decision = self.ask()
        if decision.waiter is None:
            return decision
        granted = await AsyncWait(self._guard, decision.waiter, asyncio.get_running_loop()).wait()
        if granted is None:
            raise RuntimeError("a wait that nobody abandons was abandoned")
        return granted


def add_lent(lent: list[Lent], holder: Any, guard: object, tenant: str | None) -> None:
    """Have a request give back the slots that it has under one guard, if it can before its end.

    The place of an exempt one cannot be given back, nor the slot of one that has it until its head only; in shadow mode there is
    nothing to give.

    Args:
        lent: where they are added.
        holder: its context.
        guard: has admitted it.
        tenant: on whose behalf it came.
    """
    entry: RouteEntry | None = getattr(holder, "entry", None)
    if (
        not isinstance(guard, Guard)
        or entry is None
        or not guard.lends
        or entry.rank < 0
        or not getattr(holder, "_cost", 0)
    ):
        return
    if entry.stream is None or entry.stream.slot != HEAD:
        lent.append(Lent(guard, entry, holder, tenant))


def lend(context: RequestContext) -> list[Lent]:
    """Give back the slots that a request holds, those of every middleware around it."""
    lent: list[Lent] = []
    context._lend(lent)
    return lent


def take_here(lent: Sequence[Lent]) -> Decision | None:
    """Have the slots again, the outermost first, waiting in this thread; return the refusal if that cannot be."""
    for each in reversed(lent):
        decision = each.wait_here()
        if not decision.admitted:
            return decision
        each.taken()
    return None


async def take(lent: Sequence[Lent]) -> Decision | None:
    """Have the slots again, the outermost first, waiting on this event loop; return the refusal if that cannot be."""
    for each in reversed(lent):
        decision = await each.wait()
        if not decision.admitted:
            return decision
        each.taken()
    return None
