"""Carries the context of a request to where Python does not: other threads, executors, processes, job queues.

`asyncio.to_thread`, tasks and anyio's workers copy the context variables by themselves; `loop.run_in_executor`, executors,
threads and processes start without them, so that `current()` there would know no deadline and no cancellation.

In another thread the very object of the request is seen: what cancels the request reaches the carried code at its next
`check()`. To another process goes what can be written down: the milliseconds that are left, never an instant, because
the clocks of two machines have nothing in common. Where the other process reads the very same monotonic clock (the same
machine, since the same start of it), the time on the way is charged; elsewhere whoever knows it says it.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any, Generic, ParamSpec, TypeVar

from resilient_mw.core.checks import require_flag, require_number
from resilient_mw.core.headers.deadlines import format_timeout_ms, parse_deadline
from resilient_mw.runtime.clocks import clock_name
from resilient_mw.runtime.context import CURRENT, NO_REQUEST, RequestContext, current
from resilient_mw.runtime.within import Within

P = ParamSpec("P")
R = TypeVar("R")

LEFT = "x-request-timeout-ms"
"""The milliseconds that were left when the context was written down."""
WRITTEN = "x-request-timeout-written"
"""Whose monotonic clock said when that was, and its milliseconds."""


class Carried(Generic[P, R]):
    """A function that runs in the context in which it was made. Made by `carry()`.

    Each call gets a copy of the context variables of that instant, as a new task would: calls may run at the same time,
    and what one of them sets is seen by nobody else. It can be pickled where its function can; what is left of the budget
    is read at that instant.
    """

    def __init__(self, function: Callable[P, R], context: Context) -> None:
        self._function = function
        self._context = context
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with the request's deadline and cancellation in sight."""
        return self._context.copy().run(self._function, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Imported, (self._function, written(self._context.get(CURRENT, NO_REQUEST)))


class Imported(Generic[P, R]):
    """A carried function in another process.

    Args:
        function: the function.
        exported: its context, as `export_context()` writes it down.
    """

    def __init__(self, function: Callable[P, R], exported: Mapping[str, str]) -> None:
        self._function = function
        self._exported = exported

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with what is left of the budget."""
        with imported_context(self._exported):
            return self._function(*args, **kwargs)


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function bound to the current context, to be called in another thread or sent to another process.

    A coroutine function stays one: it may be run by the event loop of another thread.

    Raises:
        TypeError: it is no function, or a generator function: its body would run in the context of whoever reads it.
    """
    if not callable(function):
        raise TypeError(f"carry() takes a function, and not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"carry() cannot bind the generator function {function!r}: its body runs where it is read. Carry the function "
            "that reads it"
        )
    context = copy_context()
    if inspect.iscoroutinefunction(function):
        return _carried_coroutine(function, context)
    return Carried(function, context)


def _carried_coroutine(function: Callable[..., Any], context: Context) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        import asyncio

        # A task of its own is the only way to give a coroutine other context variables; a cancellation passes through.
        return await asyncio.create_task(function(*args, **kwargs), context=context.copy())

    return run


class CarryingExecutor(concurrent.futures.Executor):
    """An executor that carries the context of whoever submits, around any other one (threads or processes).

    Work whose request is over before a worker takes it is never begun: its future gets the error of `check()`.

    Args:
        executor: the executor that runs the work. It is shut down with this one.
        hold: whether the request's slot stays taken until work that it has submitted has ended.
        begin_late: whether work is begun although its request is over: for work that must be done in any case.
    """

    def __init__(
        self, executor: concurrent.futures.Executor, *, hold: bool = False, begin_late: bool = False
    ) -> None:
        if not isinstance(executor, concurrent.futures.Executor):
            raise TypeError(f"CarryingExecutor takes an executor of concurrent.futures, and not {executor!r}")
        self._executor = executor
        self._hold = require_flag("CarryingExecutor.hold", hold)
        self._begin_late = require_flag("CarryingExecutor.begin_late", begin_late)

    def submit(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[R]:
        """Have `fn(*args, **kwargs)` run by a worker, in the context of this call."""
        # Not `carry`: a callable of any kind is as good as the inner executor takes it for.
        work = Carried(fn if self._begin_late else Timely(fn), copy_context())
        future = self._executor.submit(work, *args, **kwargs)
        if self._hold:
            current().hold(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut the inner executor down."""
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


class Timely(Generic[P, R]):
    """A function that is not begun for a request that is over."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it, if it still matters."""
        current().check()
        return self._function(*args, **kwargs)


def export_context() -> dict[str, str]:
    """Return the current context as a mapping of text, for the message of a job queue or another process.

    Empty without a deadline. A request that is cancelled has nothing left.
    """
    return written(current())


def written(context: RequestContext) -> dict[str, str]:
    """Return what can be written down of a context."""
    left = 0.0 if context.cancelled else context.remaining()
    if left == math.inf:
        return {}
    exported = {LEFT: format_timeout_ms(left)}
    name = clock_name(context.clock)
    if name is not None:
        exported[WRITTEN] = f"{name} {int(context.clock.now() * 1000)}"
    return exported


def imported_context(exported: Mapping[str, str], *, waited: float = 0.0) -> Within:
    """Return a scope with what is left of an exported context: `with`, or `async with`, which also cancels.

    What is outside its grammar counts as absent, as a header would: then nothing bounds the code inside but what is
    around it. Names may have any case, values may be text only.

    Args:
        exported: what `export_context()` gave; other names in it are ignored, so it may be the headers of a message.
        waited: seconds that it was on the way or in a queue, as the caller knows them. Where both processes read the same
            clock it is measured, and the larger of the two counts.

    Raises:
        ValueError: `waited` is no number, or negative.
    """
    require_number("waited", waited)
    context = current()
    values = {str(name).lower(): value for name, value in exported.items()}
    value = values.get(LEFT)
    left = parse_deadline(LEFT, [value]) if isinstance(value, str) else None
    if left is None:
        return Within(context, math.inf)
    return Within(context, max(0.0, left - max(waited, _on_the_way(context, values.get(WRITTEN)))))


def _on_the_way(context: RequestContext, value: object) -> float:
    """Return the seconds since a context was written down; 0 where they cannot be known."""
    name, _, instant = value.partition(" ") if isinstance(value, str) else ("", "", "")
    ours = clock_name(context.clock)
    if ours is None or name != ours or len(instant) > 18 or not (instant.isascii() and instant.isdigit()):
        return 0.0
    return max(0.0, context.clock.now() - int(instant) / 1000)
