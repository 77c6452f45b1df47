"""The request context: what is left of the budget, and whether the work still matters.

One object per request, found through a context variable by everything that runs on behalf of the request: the
handler, its child tasks, worker threads that copied the context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.deadline import FOREVER, Deadline
from resilient_mw.core.errors import DeadlineExceeded, RequestCancelled
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.clocks import MONOTONIC

CancelCallback = Callable[[CancelReason], Awaitable[object] | None]
"""Called once when the work is cancelled; what it returns is awaited under ASGI if it can be."""


class RequestContext:
    """What code that runs on behalf of a request can ask.

    Get it with `current()`. Outside a request the budget is infinite and nothing is ever cancelled, so the same
    code runs in scripts and tests.
    """

    __slots__ = ("__weakref__", "_callbacks", "_clock", "deadline_at", "reason")

    def __init__(self, deadline_at: float = FOREVER, clock: Clock = MONOTONIC) -> None:
        self.deadline_at = deadline_at
        self.reason: CancelReason | None = None
        self._clock = clock
        self._callbacks: list[CancelCallback] | None = None

    @property
    def deadline(self) -> Deadline:
        """The instant on the monotonic clock after which the answer is worthless."""
        return Deadline(self.deadline_at)

    @property
    def cancelled(self) -> bool:
        """Whether the work no longer matters: it was cancelled, or its deadline has passed."""
        return self.reason is not None or self._clock.now() >= self.deadline_at

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the work no longer matters; None while it does."""
        if self.reason is None and self._clock.now() >= self.deadline_at:
            return CancelReason.DEADLINE
        return self.reason

    def remaining(self) -> float:
        """Return the budget that is left, in seconds: `math.inf` without a deadline, 0 when it has passed."""
        return max(0.0, self.deadline_at - self._clock.now())

    def check(self) -> None:
        """Raise if the work no longer matters. Call it in loops of code that cannot be interrupted.

        Raises:
            DeadlineExceeded: the deadline has passed.
            RequestCancelled: the request was cancelled for another cause.
        """
        reason = self.cancel_reason
        if reason is None:
            return
        if reason is CancelReason.DEADLINE:
            raise DeadlineExceeded("the deadline of this request has passed")
        raise RequestCancelled(reason)

    def on_cancel(self, callback: CancelCallback) -> None:
        """Have `callback(reason)` called once if the work is cancelled; at once if it already is.

        Under ASGI it runs in the event loop and may return an awaitable, which is awaited for a bounded time
        before the slot is given on. Under WSGI it runs in a helper thread. It is not called for work that ends
        by itself.
        """
        if self.reason is not None:
            callback(self.reason)
            return
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    def take_callbacks(self) -> list[CancelCallback]:
        """Hand out the registered callbacks, each only once. For the code that cancels."""
        callbacks, self._callbacks = self._callbacks, None
        return callbacks or []


class _NoRequest(RequestContext):
    """The context of code outside any request: nothing ends it, so it keeps no callback."""

    __slots__ = ()

    def on_cancel(self, callback: CancelCallback) -> None:
        """Do nothing: there is no work that could be cancelled."""


NO_REQUEST: RequestContext = _NoRequest()
"""What `current()` returns where there is no request."""

CURRENT: ContextVar[RequestContext] = ContextVar("resilient_mw_current", default=NO_REQUEST)


def current() -> RequestContext:
    """Return the context of the request that this code runs for; one without limits outside a request."""
    return CURRENT.get()
