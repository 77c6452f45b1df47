"""The asyncio gate: a coroutine waits for its slot, and leaves no trace when it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.runtime.guard import Guard


class AsyncWait:
    """The wait of one queued request on an event loop. Each waiter is its own timer."""

    __slots__ = ("_future", "_guard", "_later", "_loop", "_thread", "_timer", "_waiter")

    def __init__(self, guard: Guard, waiter: Waiter, loop: asyncio.AbstractEventLoop) -> None:
        self._guard = guard
        self._later = guard.later  # of this process: a forked child has another one
        self._waiter = waiter
        self._loop = loop
        self._thread = threading.get_ident()
        self._future: asyncio.Future[bool] = loop.create_future()

    async def wait(self) -> Decision | None:
        """Wait until a slot is granted or refused; None if the caller left meanwhile.

        The slot is the caller's from the moment this returns an admitted decision. If it raises (cancelled from
        outside), nothing is held.
        """
        guard, waiter = self._guard, self._waiter
        self._set_timer()
        try:
            guard.attach(waiter, self._wake)
            if not await self._future:
                return None
        except GeneratorExit:
            # The garbage collector ends a forgotten task, at any allocation, also under the guard's lock.
            self._later(partial(guard.leave, waiter))
            raise
        except BaseException:
            guard.leave(waiter)
            raise
        finally:
            self._timer.cancel()
        return guard.begin(waiter)

    def abandon(self) -> bool:
        """End the wait because the caller has gone, if it has not ended yet; return whether it did."""
        if self._future.done():
            return False
        self._guard.leave(self._waiter)
        self._future.set_result(False)
        return True

    def _set_timer(self) -> None:
        at = self._guard.look_at(self._waiter)
        self._timer = self._loop.call_later(max(0.0, at - self._guard.clock.now()), self._due, at)

    def _due(self, at: float) -> None:
        self._guard.tick(at)
        if self._waiter.state is WaiterState.WAITING:
            self._set_timer()

    def _wake(self) -> None:
        try:
            if threading.get_ident() == self._thread:
                self._resolve()
            else:
                self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            # The loop is closed: nobody will ever run this request, so its slot must not stay granted.
            self._guard.leave(self._waiter)

    def _resolve(self) -> None:
        if not self._future.done():
            self._future.set_result(True)
