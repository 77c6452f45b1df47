"""The request context: what is left of the budget, and whether the work still matters.

One object per request, found through a context variable by everything that runs on behalf of the request: the
handler, its child tasks, worker threads that copied the context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.checks import require_number
from resilient_mw.core.deadline import FOREVER, Deadline
from resilient_mw.core.errors import DeadlineExceeded, RequestCancelled
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.measured import UNMEASURED, Measured

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    from types import TracebackType

CancelCallback = Callable[[CancelReason], Awaitable[object] | None]
"""Called once when the work is cancelled; what it returns is awaited under ASGI if it can be."""


class RequestContext:
    """What code that runs on behalf of a request can ask.

    Get it with `current()`. Outside a request the budget is infinite and nothing is ever cancelled, so the same
    code runs in scripts and tests.
    """

    __slots__ = ("__weakref__", "_callbacks", "_clock", "deadline_at", "degraded", "reason")

    @property
    def clock(self) -> Clock:
        """The one clock, on which `deadline_at` is an instant."""
        return self._clock

    def __init__(self, deadline_at: float = FOREVER, clock: Clock = MONOTONIC) -> None:
        self.deadline_at = deadline_at
        self.reason: CancelReason | None = None
        self.degraded = False
        self._clock = clock
        self._callbacks: list[CancelCallback] | None = None

    @property
    def deadline(self) -> Deadline:
        """The instant on the monotonic clock after which the answer is worthless."""
        return Deadline(self.deadline_at)

    @property
    def overload(self) -> float:
        """How overloaded the service is, 0 to 1; 0 outside a request. Above 0.5 it is time to do less."""
        return self.measured().level

    @property
    def overload_state(self) -> str:
        """What the level means, with hysteresis: `normal`, `elevated` or `overloaded`."""
        return self.measured().state.value

    def measured(self) -> Measured:
        """Return where the overload of this request's service is measured."""
        return UNMEASURED

    def mark_degraded(self) -> None:
        """Have the answer marked as a cheaper one: `X-Degraded: 1`. Without effect once its head has been sent."""
        self.degraded = True

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
        reason = self.cancel_reason
        if reason is not None:
            callback(reason)
            return
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    def hold(self, future: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
        """Keep the request's slot taken until `future` is done, also when the handler has ended before.

        For work that the request has started and that nobody waits for. Outside a request there is no slot, and
        nothing happens.
        """

    def within(self, seconds: float) -> Within:
        """Return a scope in which the deadline is at most `seconds` away; it shrinks and never grows.

        `with` gives the code inside a context with the smaller budget, which `check()` and clients obey. `async with`
        also cancels the code inside at that instant.

        Raises:
            ValueError: `seconds` is no number, or negative.
            DeadlineExceeded: from `async with`, when the time of the scope was over.
        """
        return Within(self, require_number("seconds", seconds))

    def take_callbacks(self) -> list[CancelCallback]:
        """Hand out the registered callbacks, each only once. For the code that cancels."""
        callbacks, self._callbacks = self._callbacks, None
        return callbacks or []


class NestedContext(RequestContext):
    """The context inside `within()`: its own deadline, and whatever ends the request around it."""

    __slots__ = ("_outer",)

    def __init__(self, outer: RequestContext, deadline_at: float, clock: Clock) -> None:
        super().__init__(min(deadline_at, outer.deadline_at), clock)
        self._outer = outer

    @property
    def cancelled(self) -> bool:
        """Whether the work no longer matters."""
        return self.cancel_reason is not None

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the work no longer matters: the request's reason goes before this scope's own deadline."""
        return self._outer.cancel_reason or super().cancel_reason

    def measured(self) -> Measured:
        """Return where the overload of the request's service is measured."""
        return self._outer.measured()

    def mark_degraded(self) -> None:
        """Have the answer of the request marked as a cheaper one."""
        self._outer.mark_degraded()

    def on_cancel(self, callback: CancelCallback) -> None:
        """Have `callback(reason)` called once if the request is cancelled. The end of the scope alone does not call it."""
        self._outer.on_cancel(callback)

    def hold(self, future: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
        """Keep the request's slot taken until `future` is done."""
        self._outer.hold(future)

    def guarded_by(self, guard: object) -> bool:
        """Return whether this guard has admitted the request around the scope."""
        known = getattr(self._outer, "guarded_by", None)
        return known is not None and bool(known(guard))


class Within:
    """A scope with a smaller deadline, made by `RequestContext.within()`. Use it once."""

    __slots__ = ("_outer", "_seconds", "_timeout", "_token")

    def __init__(self, outer: RequestContext, seconds: float) -> None:
        self._outer = outer
        self._seconds = seconds
        self._token: Token[RequestContext] | None = None
        self._timeout: asyncio.Timeout | None = None

    def __enter__(self) -> RequestContext:
        """Enter for code that is not interrupted."""
        if self._token is not None:
            raise RuntimeError("a within() scope can be entered once; call within() again")
        clock = self._outer.clock
        context = NestedContext(self._outer, clock.now() + self._seconds, clock)
        self._token = CURRENT.set(context)
        return context

    def __exit__(self, *_: object) -> None:
        """Make the outer context current again."""
        if self._token is not None:
            reset(self._token)

    async def __aenter__(self) -> RequestContext:
        """Enter for code that is cancelled when the time is over."""
        import asyncio

        context = self.__enter__()
        try:
            # The loop's clock is another clock: only the duration is handed over. Where the request ends first, its
            # own deadline is watched already.
            remaining = context.remaining()
            self._timeout = asyncio.timeout(
                remaining if context.deadline_at < self._outer.deadline_at else None
            )
            await self._timeout.__aenter__()
        except BaseException:
            self.__exit__()
            raise
        return context

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave; a cancellation that was ours becomes `DeadlineExceeded`, every other one passes."""
        self.__exit__()
        if self._timeout is None:
            return
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError as timed_out:
            # asyncio raises this only if the cancellation was its own: foreign TimeoutErrors do not come this way.
            raise DeadlineExceeded(f"not finished within {self._seconds:g} s") from timed_out.__cause__


class _NoRequest(RequestContext):
    """The context of code outside any request: nothing ends it, so it keeps no callback."""

    __slots__ = ()

    def on_cancel(self, callback: CancelCallback) -> None:
        """Do nothing: there is no work that could be cancelled."""

    def mark_degraded(self) -> None:
        """Do nothing: there is no answer."""


NO_REQUEST: RequestContext = _NoRequest()
"""What `current()` returns where there is no request."""

CURRENT: ContextVar[RequestContext] = ContextVar("resilient_mw_current", default=NO_REQUEST)


def reset(token: Token[RequestContext]) -> None:
    """Make the context from before `token` current again, wherever this runs.

    A forgotten generator or coroutine is closed by the garbage collector in whatever context that runs: there is
    nothing to put back there.
    """
    try:
        CURRENT.reset(token)
    except ValueError:
        pass


def current() -> RequestContext:
    """Return the context of the request that this code runs for; one without limits outside a request."""
    return CURRENT.get()


def budget(seconds: float) -> Within:
    """Open a context with at most `seconds` left, where no middleware did: in a script, a worker, a test.

    Inside a request it shrinks what is left and never lengthens it. `with` for code that looks at `remaining()` and
    calls dependencies; `async with` also cancels the code inside.

    Raises:
        ValueError: `seconds` is no number, or negative.
    """
    return current().within(seconds)
