"""Ends attempts of async calls that nobody waits for any more, and closes what they get nevertheless."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from resilient_mw.transport.reading import close_later, forget
from resilient_mw.transport.scope import Scope


def leave_task(
    task: asyncio.Future[Any],
    scope: Scope,
    *,
    bounded: bool,
    ended: Callable[[], None] | None = None,
) -> None:
    """End an attempt, and do not wait for it.

    Args:
        task: the attempt's, whose result is a response.
        scope: the attempt.
        bounded: whether the inner transport says where it may be cancelled. If it does not, it is cancelled anywhere.
        ended: called when it has ended and what it got is closed.
    """
    scope.abandoned = True
    if scope.interruptible or not bounded:
        task.cancel()
    _left.add(task)
    task.add_done_callback(_clear_up if ended is None else partial(_clear_up, ended=ended))


_left: set[asyncio.Future[Any]] = set()
"""Attempts that nobody waits for any more: a task that nobody keeps may be collected before its end."""


def _clear_up(task: asyncio.Future[Any], ended: Callable[[], None] | None = None) -> None:
    """Close what an attempt has got that nobody waits for, and then tell so."""
    _left.discard(task)
    if not task.cancelled() and task.exception() is None:
        closing = close_later(task.result())
        if ended is not None:
            closing.add_done_callback(partial(_closed, ended))
    elif ended is not None:
        ended()


def _closed(ended: Callable[[], None], closing: asyncio.Future[Any]) -> None:
    forget(closing)
    ended()
