"""Asks the store on behalf of requests under ASGI, and has records ended whatever becomes of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from resilient_mw.idempotency.actions import Abandon, Action, Complete, Renew
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.idempotency_desk import IdempotencyDesk, ended_as
from resilient_mw.runtime.joins import recorded

if TYPE_CHECKING:
    from resilient_mw.idempotency.protocol import AsyncIdempotencyStore
    from resilient_mw.idempotency.record import Claim, Outcome, Record
    from resilient_mw.idempotency.work import Work

_under_way: set[asyncio.Task[Any]] = set()
"""What must be told to a store after its request has gone: the event loop itself keeps tasks weakly."""


class Records:
    """The records of one application.

    Args:
        store: where they are.
        desk: counts, and wakes who waits.
    """

    def __init__(self, store: AsyncIdempotencyStore, desk: IdempotencyDesk) -> None:
        self._store = store
        self._desk = desk

    async def begin(self, claim: Claim, seconds: float) -> Outcome:
        """As of the store."""
        with self._desk.figures.asking("begin"):
            return await self._store.begin(claim, timeout=seconds)

    async def look(self, record: str, seconds: float) -> Record | None:
        """As of the store."""
        with self._desk.figures.asking("look"):
            return await self._store.look(record, timeout=seconds)

    async def keep(self, work: Work, lose: Callable[[], Awaitable[None]]) -> None:
        """Keep the lease while the work runs.

        Args:
            work: what runs under it.
            lose: called once if somebody else has the record.
        """
        while (at := work.next_wakeup()) is not None:
            await asyncio.sleep(max(0.0, at - MONOTONIC.now()))
            for action in work.tick(MONOTONIC.now()):
                if not isinstance(action, Renew):
                    continue
                try:
                    with self._desk.figures.asking("renew"):
                        held = await self._store.renew(action.claim, timeout=self._desk.policy.store_timeout)
                except Exception:  # noqa: BLE001  whatever a store raises: it could not do it
                    work.renew_failed(MONOTONIC.now())
                else:
                    if work.renewed(held):
                        await lose()

    async def end(self, actions: Iterable[Action], route: str, ran: str | None, *, wait: bool = True) -> None:
        """Have a record ended, also while the request is cancelled.

        Args:
            actions: among them the one that ends it, if it is to be ended.
            route: template, for who is told.
            ran: what the work counts as; None: none ran.
            wait: whether to wait for it.
        """
        for action in actions:
            if isinstance(action, (Complete, Abandon)):
                task = asyncio.create_task(self._told(action, route, ran))
                _under_way.add(task)
                task.add_done_callback(_under_way.discard)
                if wait:
                    await asyncio.shield(task)

    async def _told(self, action: Complete | Abandon, route: str, ran: str | None) -> None:
        claim, timeout = action.claim, self._desk.policy.store_timeout
        seen, written = None, False
        try:
            if isinstance(action, Abandon):
                with self._desk.figures.asking("abandon"):
                    written = await self._store.abandon(claim, action.ending, timeout=timeout)
            else:
                with self._desk.figures.asking("complete"):
                    written = await self._store.complete(
                        claim, action.answer, fingerprint=action.fingerprint, timeout=timeout
                    )
                if written:
                    seen = recorded(claim, action.answer, action.fingerprint)
        except Exception:  # noqa: BLE001, S110  whatever a store raises: it could not do it
            pass  # The lease ends by itself, and the outcome is unknown then.
        finally:
            self._desk.joins.ended(claim.record, seen)
        outcome = ended_as(action, ran, written=written)
        if outcome is not None:
            self._desk.count(route, outcome)


def wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    """Wake who waits on an event loop. From any thread."""

    def done() -> None:
        if not woken.done():
            woken.set_result(None)

    try:
        loop.call_soon_threadsafe(done)
    except RuntimeError:
        pass  # That loop is closed: nobody waits there any more.
