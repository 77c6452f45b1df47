"""The `on_cancel` callbacks of a request in an event loop: where they run, and how long they hold its slot."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.context import CancelCallback
from resilient_mw.runtime.thread_work import call_in_loop

CALLBACK_WITHIN = 1.0
"""Seconds that what a callback has left running (an awaitable, a thread) holds the slot."""
LONG = 0.1
"""Seconds after which a callback that kept the event loop is reported."""

Failed = Callable[[str, BaseException], object]
"""Told what went wrong: a text and the error."""


class InThread:
    """A callback that was registered in a worker thread, where code may block: it is called in a thread of its own.

    Not in a pool: when requests are cancelled, pools are busy with just those requests.
    """

    __slots__ = ("_callback",)

    def __init__(self, callback: CancelCallback) -> None:
        self._callback = callback

    async def __call__(self, reason: CancelReason) -> None:
        """Call it, and await what it returns in the loop if that can be awaited."""
        loop = asyncio.get_running_loop()
        returned: asyncio.Future[Any] = loop.create_future()
        context = copy_context()

        def settle(answer: object, error: BaseException | None) -> None:
            if returned.done():
                return  # Its second is over.
            if error is not None:
                returned.set_exception(error)
            else:
                returned.set_result(answer)

        def run() -> None:
            try:
                answer = context.run(self._callback, reason)
            except Exception as error:  # noqa: BLE001  it is told to the loop
                # A future takes no StopIteration.
                told = RuntimeError(f"it raised {error!r}") if isinstance(error, StopIteration) else error
                call_in_loop(loop, settle, None, told)
            except BaseException as error:  # noqa: BLE001  SystemExit in a thread ends nothing
                call_in_loop(loop, settle, None, RuntimeError(f"it raised {error!r}"))
            else:
                call_in_loop(loop, settle, answer, None)

        threading.Thread(target=run, name="resilient_mw on_cancel", daemon=True).start()
        answer = await returned
        if isinstance(answer, Awaitable):
            await answer


def for_thread(callback: CancelCallback) -> CancelCallback:
    """Return what to call in the event loop for a callback that was registered in a worker thread."""
    return callback if inspect.iscoroutinefunction(callback) else InThread(callback)


def call(
    loop: asyncio.AbstractEventLoop,
    context: Context,
    callback: CancelCallback,
    reason: CancelReason,
    failed: Failed,
) -> Awaitable[object] | None:
    """Call a callback, and return what is to be awaited. What it raises must not stop what comes after it."""
    began = loop.time()
    try:
        answer = context.run(callback, reason)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  it may have raised CancelledError by itself
        failed("An on_cancel callback failed", error)
        return None
    took = loop.time() - began
    if took >= LONG:
        text = (
            f"An on_cancel callback kept the event loop for {took:.1f} s: let it await, or block in a thread"
        )
        failed(text, TimeoutError(text))
    return answer if isinstance(answer, Awaitable) else None


async def bounded(awaitable: Awaitable[object], failed: Failed) -> None:
    """Await what a callback returned, for one second at most."""
    work = asyncio.ensure_future(awaitable)
    done, _ = await asyncio.wait((work,), timeout=CALLBACK_WITHIN)
    if not done:
        work.add_done_callback(_retrieve)
        work.cancel()
        text = "An on_cancel callback took longer than one second"
        failed(text, TimeoutError(text))
        return
    error = asyncio.CancelledError() if work.cancelled() else work.exception()
    if error is not None:
        failed("An on_cancel callback failed", error)


def _retrieve(work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        work.exception()
