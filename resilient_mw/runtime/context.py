"""The request context: what is left of the budget, and whether the work still matters.

One object per request, found through a context variable by everything that runs on behalf of the request: the
handler, its child tasks, worker threads that copied the context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.checks import require_number
from resilient_mw.core.deadline import FOREVER, Deadline
from resilient_mw.core.errors import DeadlineExceeded, RequestCancelled
from resilient_mw.core.headers.retry_owner import RetryOwner, parse_retry_owner
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.measured import UNMEASURED, Measured

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

    from resilient_mw.runtime.lent_slots import Lent
    from resilient_mw.runtime.shield import Shield
    from resilient_mw.runtime.within import Within

LONGEST_SECTION = 60.0
"""Seconds that a shielded section may ask for: it holds a slot for somebody who has gone."""

CancelCallback = Callable[[CancelReason], Awaitable[object] | None]
"""Called once when the work is cancelled; what it returns is awaited under ASGI if it can be."""


class RequestContext:
    """What code that runs on behalf of a request can ask.

    Get it with `current()`. Outside a request the budget is infinite and nothing is ever cancelled, so the same
    code runs in scripts and tests.
    """

    __slots__ = ("__weakref__", "_callbacks", "_clock", "_heard", "deadline_at", "degraded", "reason")

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
        return Deadline(self._ends_at())

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

    def needs(self) -> str | None:
        """Return the name of the dependency that the route of this request says it cannot do without."""
        entry = getattr(self, "entry", None)
        return None if entry is None else entry.needs

    def received(self, name: str) -> Sequence[str]:  # noqa: ARG002  contexts of a request know its head
        """Return the lines of a header field of the request, by its lower-case name."""
        return ()

    def retry_owner(self, fields: tuple[str, str]) -> RetryOwner | None:
        """Return who above this request retries; None: nobody says so.

        Read when a call first asks, and kept: most requests never do.

        Args:
            fields: the lower-case names of the field that names him and of the one that counts his attempts.
        """
        heard: tuple[tuple[str, str], RetryOwner | None] | None = getattr(self, "_heard", None)
        if heard is None or heard[0] != fields:
            heard = self._heard = (fields, parse_retry_owner(self.received, *fields))
        return heard[1]

    def mark_degraded(self) -> None:
        """Have the answer marked as a cheaper one: `X-Degraded: 1`. Without effect once its head has been sent."""
        self.degraded = True

    @property
    def cancelled(self) -> bool:
        """Whether the work no longer matters: it was cancelled, or its deadline has passed."""
        return self.cancel_reason is not None

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the work no longer matters; None while it does."""
        if self.reason is None and self._clock.now() >= self._ends_at():
            return CancelReason.DEADLINE
        return self.reason

    def remaining(self) -> float:
        """Return the budget that is left, in seconds: `math.inf` without a deadline, 0 when it has passed.

        Once the response is complete there is no answer left that could become worthless: `math.inf`.
        """
        return max(0.0, self._ends_at() - self._clock.now())

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

        Under ASGI it runs in the event loop, or in a thread of its own if it was registered in a worker thread, and may
        return an awaitable. Under WSGI it runs in a helper thread. The slot is given on when it has ended, or after one
        second. What it raises is logged and counted. It is not called for work that ends by itself.
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
        from resilient_mw.runtime.within import Within

        return Within(self, require_number("seconds", seconds))

    def shield(self, seconds: float = 1.0) -> Shield:
        """Return a section that must complete, a commit for one. It gets `seconds`, no more and no less.

        Until it is left, or its time is over, the request's end does not reach it: nothing of the request is cancelled,
        no `on_cancel` callback is called, and `check()` and `remaining()` inside know the section's own time only. The
        caller gets his 504 on time nevertheless, and the slot stays taken. What was held back follows at once.

        With `async with`, code that is inside when the time is over is cancelled. Other people's cancellations (the
        server's, a task group's, your own `task.cancel()`) are not held back. Entering asks nothing: to begin nothing for
        a request that is over, call `check()` before.

        Args:
            seconds: at most 60. Inside another section it ends with that one at the latest.

        Raises:
            ValueError: `seconds` is no number from 0 to 60.
            DeadlineExceeded: from `async with`, when the time of the section was over.
        """
        from resilient_mw.runtime.shield import Shield

        return Shield(self, require_number("seconds", seconds, high=LONGEST_SECTION))

    def take_callbacks(self) -> list[CancelCallback]:
        """Hand out the registered callbacks, each only once. For the code that cancels."""
        callbacks, self._callbacks = self._callbacks, None
        return callbacks or []

    # -- what scopes inside need to know -------------------------------------------------------------------------------

    def _ends_at(self) -> float:
        """Return the instant at which the work becomes worthless, as things are now."""
        return self.deadline_at

    def _fixed_end(self) -> float:
        """Return the instant at which the work becomes worthless, whatever happens until then; inf: the end moves."""
        return self._ends_at()

    def _interrupted_at(self) -> float:
        """Return the instant at which somebody cancels the running code; inf: nobody will."""
        return FOREVER

    def _lend(self, lent: list[Lent]) -> None:
        """Give back the slots of the request, those of middlewares around it included, and add them to `lent`."""

    def _section_until(self) -> float:
        """Return when the time of the shielded section around is over; inf: there is none."""
        return FOREVER

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop in which the request is cancelled, if it is in one."""
        return None

    def _hold_back(self, section: Shield) -> None:
        """Hold our own cancellations back from now on."""

    def _hand_over(self, section: Shield) -> bool:  # noqa: ARG002  contexts that hold something back ask
        """Let happen what this section has held back; return whether that cancels the code inside."""
        return False

    def _section_left(self, section: Shield, *, collected: bool) -> None:
        """Take note that the work of a section has ended.

        Args:
            section: the section.
            collected: whether the garbage collector may be who says so. Then no lock may be waited for.
        """


class _NoRequest(RequestContext):
    """The context of code outside any request: nothing ends it, so it keeps no callback."""

    __slots__ = ()

    def retry_owner(self, fields: tuple[str, str]) -> RetryOwner | None:
        """Return None: there is nobody above."""

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
