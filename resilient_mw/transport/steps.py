"""Awaits what often ends at once: its first step is taken here and now, and only what is left of it gets a timer.

An answer from memory, or a piece of a body that has come already, ends in its first step. A timer, or a task, costs more
than all the rest of such a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Late(Exception):
    """The time was over: it was cancelled."""


async def within(awaitable: Awaitable[T], seconds: Callable[[], float | None]) -> T:
    """Return what something awaitable comes to. It runs in this task and can be cancelled anywhere.

    Args:
        awaitable: what is awaited.
        seconds: returns the seconds that are left for it; None: no bound. Asked after its first step, if it has more.

    Raises:
        Late: they were over; the cause is the `TimeoutError`.
    """
    steps = awaitable.__await__()
    try:
        waits_for = next(steps)
    except StopIteration as ended:
        value: T = ended.value
        return value
    return await rest_within(steps, waits_for, seconds())


async def rest_within(steps: Generator[Any, Any, T], waits_for: Any, seconds: float | None) -> T:
    """Return what something comes to that has taken its first step, and waits for something. See `within`."""
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            return await _rest(steps, waits_for)
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise Late from error


@coroutine
def _rest(steps: Generator[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Go on after the first step, which waits for something: hand that to the event loop, and all that follows."""
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001  thrown into the step, whatever it is
            try:
                waits_for = steps.throw(error)
            except StopIteration as ended:
                value: T = ended.value
                return value
        else:
            return (yield from steps)
