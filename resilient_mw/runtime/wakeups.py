"""Two operations on the callbacks of a future that belong to somebody else.

Both take a callback off and put another in its place. A lost callback is a task that never wakes up, so whatever
can fail is done before the first of the two steps, and where the callback is not found nothing is changed.
"""
# ruff: noqa: SLF001

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from types import FunctionType
from typing import Any

from resilient_mw.runtime.awaits import Future, Task, awaited, cell

_TASK_DONE = "TaskGroup._spawn.<locals>.task_done"


def before_resume(task: Task, callback: Callable[[], object]) -> None:
    """Have `callback()` called just before the suspended task takes its next step; at once if that is imminent.

    A task that is cancelled at this point sees its CancelledError in place of whatever it waited for.
    """
    try:
        future = awaited(task)
        callbacks = future._callbacks if future is not None else None
        wake_up = next((each for each in callbacks or () if _wakes(each[0], task)), None)
        imminent = future is None or (wake_up is None and future.done())
        ours, context = partial(_call, callback), Context()
    except Exception:  # noqa: BLE001 (private names)
        return
    if imminent:
        callback()
    elif future is not None and wake_up is not None and future.remove_done_callback(wake_up[0]):
        future.add_done_callback(ours, context=context)
        future.add_done_callback(wake_up[0], context=wake_up[1])


def end_quietly(task: Task) -> None:
    """Keep an anyio task group from cancelling its scope when this child of it has ended.

    A scope that is cancelled cancels its tasks again at every turn of the loop, which no clean-up that awaits
    something survives; and it would do so as soon as the first child has ended by our cancel.
    """
    try:
        told = [
            (each, partial(_without_cancelling, cell(each, "self").cancel_scope, each), context)
            for each, context in task._callbacks or ()
            if isinstance(each, FunctionType) and each.__qualname__ == _TASK_DONE
        ]
    except Exception:  # noqa: BLE001 (private names)
        return
    for callback, quiet, context in told:
        if task.remove_done_callback(callback):
            task.add_done_callback(quiet, context=context)


def _without_cancelling(scope: Any, callback: Callable[[Task], object], task: Task) -> None:
    """Call the group's own callback while its scope looks cancelled already: then it does not cancel it."""
    before = getattr(scope, "_cancel_called", None)
    if before is None:
        callback(task)
        return
    scope._cancel_called = True
    try:
        callback(task)
    finally:
        scope._cancel_called = before


def _wakes(callback: object, task: Task) -> bool:
    return getattr(callback, "__self__", None) is task and "wakeup" in getattr(callback, "__name__", "")


def _call(callback: Callable[[], object], _: Future) -> None:
    callback()
