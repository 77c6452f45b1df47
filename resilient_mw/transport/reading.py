"""Reads a response body for an async call: over a transport that is bounded, each step in a task of its own.

httpcore shields its book-keeping from cancellations of anyio and not from those of asyncio: one that strikes between two
steps of it, such as a second one while the first is being cleaned up after, leaves the connection in its pool for ever,
neither usable nor closed. Here a cancellation reaches the caller at once, and the step only inside an operation on the
network; elsewhere it ends before the next one. The body is closed when the step has ended.

Over any other transport nobody knows where a step may be cancelled: it runs in the caller's task, as without us, and most
of what such a transport gives is there already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from resilient_mw.transport.scope import SCOPE, Scope, leave
from resilient_mw.transport.steps import Late, rest_within

CLEANING = 0.01
"""Seconds that a step which has been cancelled is waited for; it goes on closing its connection after them."""


class Overdue(Exception):
    """The step was not over in time."""


class Reading:
    """The body of one response. It is read by one task at a time.

    Args:
        stream: the body.
        scope: the attempt.
        bounded: whether the inner transport says where it may be cancelled. If it does not, it is cancelled anywhere.
        closes: what is to be closed in the end; None: the stream.

    Attributes:
        complete: whether it is known to have been read to its end.
    """

    __slots__ = ("_bounded", "_closes", "_inside", "_iterator", "_scope", "_step", "_stream", "complete")

    def __init__(self, stream: Any, scope: Scope, *, bounded: bool, closes: Any = None) -> None:
        self._stream = stream
        self._scope = scope
        self._bounded = bounded
        self._closes = stream if closes is None else closes
        self._iterator: AsyncIterator[bytes] | None = None
        self._inside = self.complete = False
        self._step: asyncio.Future[bytes | None] | None = None

    async def next(self, seconds: float | None) -> bytes | None:
        """Return the next piece, None at the end.

        Raises:
            Overdue: it did not come within so many seconds.
        """
        if self._iterator is None:
            self._iterator = aiter(self._stream)
        if not self._bounded:
            return await self.next_here(seconds)
        token = SCOPE.set(self._scope)
        try:
            step = self._step = asyncio.ensure_future(anext(self._iterator, None))
        finally:
            SCOPE.reset(token)
        try:
            done, _ = await asyncio.wait((step,), timeout=None if seconds is None else max(0.0, seconds))
        except BaseException:
            self._leave(step)
            raise
        if done:
            return step.result()
        self._leave(step)
        await asyncio.wait((step,), timeout=CLEANING)  # So that the next attempt finds its connection closed.
        raise Overdue

    async def next_here(self, seconds: float | None = None) -> bytes | None:
        """Do the same in the caller's task, where nobody says where a step may be cancelled: that is then done anywhere.

        Args:
            seconds: as of `next`; None: what is left of the attempt.
        """
        if self._iterator is None:
            self._iterator = aiter(self._stream)
        token = SCOPE.set(self._scope)
        self._inside = True
        try:
            steps = anext(self._iterator).__await__()
            try:
                waits_for = next(steps)
            except StopIteration as ended:
                piece: bytes = ended.value
                return piece
            left = self._scope.left() if seconds is None else seconds
            return await rest_within(steps, waits_for, left if left is None else max(0.0, left))
        except StopAsyncIteration:
            self.complete = True
            return None
        except Late as error:
            raise Overdue from error
        finally:
            self._inside = False
            leave(token)

    @property
    def busy(self) -> bool:
        """Whether a step is under way: one that nobody waits for any more, if it is asked between two steps."""
        return self._step is not None and not self._step.done()

    async def aclose(self) -> None:
        """Close the body, after the step that may be under way. Not to be cancelled: see `close_uncancelled`."""
        if self._step is not None and not self._step.done():
            await asyncio.wait((self._step,))
        # One that another task is inside of cannot be closed by this one: it ends with what it reads from.
        close = None if self._inside else getattr(self._iterator, "aclose", None)
        try:
            if close is not None:
                await close()
        finally:
            await self._closes.aclose()

    def _leave(self, step: asyncio.Future[Any]) -> None:
        self._scope.abandoned = True
        if self._scope.interruptible:
            step.cancel()
        _left.add(step)
        step.add_done_callback(forget)


_left: set[asyncio.Future[Any]] = set()
"""Steps that nobody waits for any more: a task that nobody keeps may be collected before its end."""


def forget(step: asyncio.Future[Any]) -> None:
    """Look at how a task ended that nobody waits for, so that nobody complains of it."""
    _left.discard(step)
    if not step.cancelled():
        step.exception()  # nobody else looks at it


_closing: set[asyncio.Task[None]] = set()


async def close_uncancelled(stream: Any) -> None:
    """Close a stream, and go on closing it if the caller is cancelled meanwhile.

    The library would leave the connection in its pool for ever, neither usable nor closed, if a cancellation struck
    between two steps of closing it.
    """
    await asyncio.shield(close_later(stream))


async def close_reading(reading: Reading) -> None:
    """Close a body as `close_uncancelled` does. If a step of it is under way, the caller does not wait for its end.

    Over HTTP/2 a step may wait until another call has read from the same connection, far beyond its own deadline.
    """
    if not reading.busy:
        await close_uncancelled(reading)
        return
    closing = close_later(reading)
    closing.add_done_callback(forget)
    await asyncio.wait((closing,), timeout=CLEANING)


def close_later(stream: Any) -> asyncio.Task[None]:
    """Close a stream in a task of its own."""
    task = asyncio.ensure_future(_aclose(stream))
    _closing.add(task)
    task.add_done_callback(_closing.discard)
    return task


async def _aclose(stream: Any) -> None:
    await stream.aclose()
