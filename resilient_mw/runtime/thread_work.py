"""Work in a thread that a request waits for, and how to learn that it has really ended.

A thread cannot be stopped. What can be done is to follow it, so that its slot is not given on while it runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

POLL_EVERY = 0.02
"""Seconds between two looks at an anyio worker whose request has stopped waiting for it."""


class ThreadWork(Protocol):
    """One call that runs in a thread, or waits for one."""

    @property
    def key(self) -> object:
        """What two sights of the same call have in common."""
        ...

    def follow(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], object]) -> None:
        """Have `ended()` called once, in the loop, when the call has ended or was taken off its queue."""
        ...


class ExecutorWork:
    """A call given to a `concurrent.futures` executor (`to_thread`, `run_in_executor`, asgiref's `sync_to_async`)."""

    __slots__ = ("key",)

    def __init__(self, future: concurrent.futures.Future[Any]) -> None:
        self.key = future

    def follow(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], object]) -> None:
        """Have `ended()` called in the loop at the exact end."""

        def tell(_: concurrent.futures.Future[Any]) -> None:
            call_in_loop(loop, ended)

        self.key.add_done_callback(tell)


class AnyioWork:
    """A call given to an anyio worker thread (`anyio.to_thread`, Starlette's thread pool).

    While the request waits for it, the awaited future tells its end. A worker that was left behind has to be looked
    at: it is back when its queue is empty, or when it has been idle since (it may have taken its next call).
    """

    __slots__ = ("_idle_since", "_queue", "_worker", "key")

    def __init__(self, worker: Any, future: asyncio.Future[Any]) -> None:
        self._queue = worker.queue
        self._worker = worker
        self._idle_since = worker.idle_since
        self.key = future

    def follow(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], object]) -> None:
        """Have `ended()` called at the exact end, or within 20 ms of it if the request no longer waits."""

        def look() -> None:
            if self._queue.unfinished_tasks == 0 or self._worker.idle_since != self._idle_since:
                ended()
            else:
                loop.call_later(POLL_EVERY, look, context=Context())

        def no_longer_awaited(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                look()
            else:
                ended()

        self.key.add_done_callback(no_longer_awaited, context=Context())


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """Have `callback(*args)` called in the loop's thread; do nothing if the loop has been closed meanwhile."""
    try:
        loop.call_soon_threadsafe(callback, *args, context=Context())
    except RuntimeError:
        if not loop.is_closed():
            raise


def run_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> object:
    """Call `callback()` now if this is the loop's thread, else have it called there soon, and return None."""
    if in_thread_of(loop):
        return callback()
    call_in_loop(loop, callback)
    return None


def in_thread_of(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this code runs in the loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
