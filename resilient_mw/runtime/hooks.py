"""The `on_cancel` callbacks of a request that threads work on: each runs once, and whatever it raises stays with it."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.runtime.context import CancelCallback


class Hook:
    """One registered callback: runs once at most, in a copy of the context in which it was registered.

    Attributes:
        failed: told what the callback raised.
    """

    __slots__ = ("_armed", "failed")

    def __init__(self, callback: CancelCallback, failed: Callable[[Exception], object]) -> None:
        self._armed = [(copy_context(), callback)]
        self.failed = failed

    def __call__(self, reason: CancelReason) -> Awaitable[object] | None:
        """Run the callback, unless it ran or was disarmed before."""
        try:
            context, callback = self._armed.pop()  # atomic: of two threads one gets it
        except IndexError:
            return None
        return context.run(callback, reason)

    def disarm(self) -> None:
        """Forget the callback: its work has ended by itself."""
        self._armed.clear()


def run_hooks(hooks: Sequence[Hook], reason: CancelReason) -> None:
    """Run callbacks, each guarded: what one raises is logged and counted, and keeps no other from running."""
    for hook in hooks:
        try:
            result = hook(reason)
            if result is not None and hasattr(result, "__await__"):
                close = getattr(result, "close", None)
                if close is not None:
                    close()
                warn(
                    "an on_cancel callback returned an awaitable, which nobody awaits here: use a plain function"
                )
        except Exception as error:  # a callback is a guest: whatever it raises stays with it
            import logging  # only loaded when something is wrong

            logging.getLogger("resilient_mw").exception("an on_cancel callback failed")
            hook.failed(error)


def warn(text: str) -> None:
    """Warn of something that has less effect than it seems."""
    warnings.warn(text, ResilienceWarning, stacklevel=2)
