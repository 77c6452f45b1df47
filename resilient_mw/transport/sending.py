"""Sends the attempts of async calls through an inner transport, each until its time is over."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from typing import Any

from resilient_mw.core.errors import UnsupportedEventLoop
from resilient_mw.transport.leaving import leave_task
from resilient_mw.transport.library import Library
from resilient_mw.transport.reading import CLEANING
from resilient_mw.transport.scope import Scope
from resilient_mw.transport.steps import Late, rest_within, within


async def send_within(inner: Any, request: Any, scope: Scope, timeout: float, library: Library) -> Any:  # noqa: ARG001, ASYNC109
    """Send a request, and cancel whatever it is doing when its time is over."""
    try:
        return await within(inner.handle_async_request(request), scope.left_and_grace)
    except Late as late:
        error = _error_of(late, scope, library)
        raise error from error.__cause__


async def send_rest(steps: Generator[Any, Any, Any], waits_for: Any, scope: Scope, library: Library) -> Any:
    """Go on with a request that has been sent up to where it waits for something, until its time is over."""
    try:
        return await rest_within(steps, waits_for, scope.left_and_grace())
    except Late as late:
        error = _error_of(late, scope, library)
        raise error from error.__cause__


def _error_of(late: Late, scope: Scope, library: Library) -> BaseException:
    """Return the error of an attempt that was cancelled: what it made of that, or that it was not over."""
    cause = late.__cause__
    if isinstance(cause, library.transport_error):
        return cause
    error = not_over(scope, library)
    error.__cause__ = cause
    return error


async def send_beside(inner: Any, request: Any, scope: Scope, timeout: float, library: Library) -> Any:  # noqa: ASYNC109
    """Send a request from a task of its own, which is cancelled only where that leaves nothing behind.

    A pool of httpcore that is cancelled between two steps of its book-keeping can keep a connection for ever that is
    neither closed nor usable. A cancellation reaches this task at once, and that one in its operation on the network;
    elsewhere it ends before the next one.
    """
    task = asyncio.ensure_future(inner.handle_async_request(request))
    limit = None if timeout == math.inf else timeout
    try:
        done, _ = await asyncio.wait((task,), timeout=limit)
    except BaseException:
        leave_task(task, scope, bounded=True)
        raise
    if done:
        return task.result()
    leave_task(task, scope, bounded=True)
    await asyncio.wait((task,), timeout=CLEANING)  # So that the next attempt finds its connection closed.
    raise not_over(scope, library)


def not_over(scope: Scope, library: Library) -> Exception:
    """Return the error of an attempt that had to be cancelled."""
    return library.timed_out(scope.phase, "the attempt was not over in time and was cancelled")


def check_loop() -> None:
    """Make sure that this is asyncio.

    Raises:
        UnsupportedEventLoop: it is not.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UnsupportedEventLoop(
            "AsyncResilientTransport works on asyncio's event loop only. Under Trio, use the sync transport in a thread"
        ) from None
