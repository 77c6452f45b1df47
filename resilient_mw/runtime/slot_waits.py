"""How a thread and a task wait for a slot of a bulkhead, and how they are woken by whoever gives one back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import RequestCancelled
from resilient_mw.runtime.context import current

if TYPE_CHECKING:
    import asyncio


def listen(waiter: Waiter | None, wake: Callable[[], None]) -> bool:
    """Have a waiter woken; return whether its slot has been granted already. None: nobody waits for a slot."""
    if waiter is None:
        return False
    waiter.wake = wake
    return waiter.granted


class Sleeper:
    """A thread that waits, woken by whoever gives a slot back: also by a finalizer that interrupts this very thread.

    A `threading.Event` would not do: its methods hold a lock for a moment, and a collection that runs in that moment would
    wait for it for ever.

    Attributes:
        closed: whether it was woken because the transport was closed.
    """

    __slots__ = ("_asleep", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        """Wake it."""
        with suppress(RuntimeError):  # It was woken before.
            self._asleep.release()

    def wait(self, seconds: float) -> None:
        """Wait so many seconds, or until somebody wakes it. `inf`: nothing else ends it."""
        self._asleep.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))


def check_wanted() -> None:
    """Raise if the request is over for another cause than its deadline: nothing is tried again for it.

    Raises:
        RequestCancelled: it is.
    """
    reason = current().cancel_reason
    if reason is not None and reason is not CancelReason.DEADLINE:
        raise RequestCancelled(reason)


def pause_thread(seconds: float, waiter: Waiter | None) -> None:
    """Wait so many seconds, or until a slot is granted."""
    sleeper = Sleeper()
    if not listen(waiter, sleeper.set):
        sleeper.wait(seconds)


async def pause_task(seconds: float, waiter: Waiter | None) -> None:
    """Wait so many seconds, or until a slot is granted by whatever thread or loop."""
    import asyncio  # Code without it never comes here.

    sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if not listen(waiter, lambda: wake_task(sleeper)):
        await asyncio.wait((sleeper,), timeout=max(0.0, seconds))


def wake_task(sleeper: asyncio.Future[None]) -> None:
    """Wake a task from whatever thread. A loop that is closed has nobody to wake."""
    with suppress(RuntimeError):
        sleeper.get_loop().call_soon_threadsafe(wake, sleeper)


def wake(sleeper: asyncio.Future[None]) -> None:
    """Wake a task of this loop."""
    if not sleeper.done():
        sleeper.set_result(None)
