"""Scopes inside a request with less time than it has."""
# The contexts of one request are one subject in several files: private names keep the face of the user's object small.
# ruff: noqa: SLF001

from __future__ import annotations

from contextvars import Token
from typing import TYPE_CHECKING, Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.core.headers.retry_owner import RetryOwner
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.context import CURRENT, CancelCallback, RequestContext, reset
from resilient_mw.runtime.measured import Measured

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    from types import TracebackType

    from resilient_mw.runtime.lent_slots import Lent
    from resilient_mw.runtime.shield import Shield


class InnerContext(RequestContext):
    """A context inside another one: its own end, and whatever ends the request around it.

    Args:
        outer: the context around it.
        until: the instant at which its own time is over.
        clock: the one clock.

    Attributes:
        repeated_by: a guarded call that may run the code inside again; None: there is none.
    """

    __slots__ = ("_outer", "_until", "repeated_by")

    def __init__(self, outer: RequestContext, until: float, clock: Clock) -> None:
        super().__init__(min(until, outer._ends_at()), clock)
        self.repeated_by: RetryOwner | None = None
        self._outer = outer
        self._until = until

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the work no longer matters: the request's reason goes before this scope's own end."""
        return self._outer.cancel_reason or super().cancel_reason

    @property
    def ended(self) -> bool:
        """Whether the request around the scope has ended."""
        outer = self._outer
        return bool(getattr(outer, "ended", False) or getattr(outer, "done", False))

    def _lend(self, lent: list[Lent]) -> None:
        self._outer._lend(lent)

    def measured(self) -> Measured:
        """Return where the overload of the request's service is measured."""
        return self._outer.measured()

    def needs(self) -> str | None:
        """Return the name of the dependency that the request cannot do without."""
        return self._outer.needs()

    def retry_owner(self, fields: tuple[str, str]) -> RetryOwner | None:
        """Return who retries: somebody above the request, or the guarded call around this code."""
        return self._outer.retry_owner(fields) or self.repeated_by

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

    def _ends_at(self) -> float:
        return min(self._until, self._outer._ends_at())

    def _fixed_end(self) -> float:
        return min(self._until, self._outer._fixed_end())

    def _interrupted_at(self) -> float:
        return self._outer._interrupted_at()

    def _section_until(self) -> float:
        return self._outer._section_until()

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return self._outer._loop()

    def _hold_back(self, section: Shield) -> None:
        self._outer._hold_back(section)

    def _hand_over(self, section: Shield) -> bool:
        return self._outer._hand_over(section)

    def _section_left(self, section: Shield, *, collected: bool) -> None:
        self._outer._section_left(section, collected=collected)


class NestedContext(InnerContext):
    """The context inside `within()`.

    Attributes:
        timer: what cancels the code inside; None if nothing has to.
    """

    __slots__ = ("timer",)

    def __init__(self, outer: RequestContext, until: float, clock: Clock) -> None:
        super().__init__(outer, until, clock)
        self.timer: Timer | None = None

    def _interrupted_at(self) -> float:
        own = FOREVER if self.timer is None else self._until
        return min(own, self._outer._interrupted_at())

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return self._outer._loop() if self.timer is None else self.timer.loop

    def _hold_back(self, section: Shield) -> None:
        if self.timer is not None:
            self.timer.hold()
        self._outer._hold_back(section)

    def _hand_over(self, section: Shield) -> bool:
        mine = self.timer is not None and self.timer.let_go()
        return self._outer._hand_over(section) or mine


class Timer:
    """The timeout of an `async with` scope, which waits while a shielded section inside is open.

    Attributes:
        loop: the event loop of the scope.
        timeout: what cancels the scope.
    """

    __slots__ = ("_sections", "_when", "loop", "timeout")

    def __init__(self, timeout: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
        self.timeout = timeout
        self.loop = loop
        self._when = timeout.when()
        self._sections = 0

    def hold(self) -> None:
        """Cancel nothing as long as one more section is open. From any thread."""
        from resilient_mw.runtime.thread_work import run_in_loop

        run_in_loop(self.loop, self._hold)

    def let_go(self) -> bool:
        """Take one `hold()` back. From any thread; in the loop's own, return whether the scope is over by that."""
        from resilient_mw.runtime.thread_work import run_in_loop

        return bool(run_in_loop(self.loop, self._let_go))

    def _hold(self) -> None:
        self._sections += 1
        if self._sections == 1:
            self._reschedule(None)

    def _let_go(self) -> bool:
        self._sections -= 1
        if self._sections or not self._reschedule(self._when):
            return False
        return self._when is not None and self._when <= self.loop.time()

    def _reschedule(self, when: float | None) -> bool:
        try:
            self.timeout.reschedule(when)
        except RuntimeError:
            return False  # The scope has been left, or was over before.
        return True


class Within:
    """A scope with a smaller deadline, made by `RequestContext.within()`. Use it once."""

    __slots__ = ("_outer", "_repeated_by", "_seconds", "_timeout", "_token")

    def __init__(self, outer: RequestContext, seconds: float, repeated_by: RetryOwner | None = None) -> None:
        self._outer = outer
        self._seconds = seconds
        self._repeated_by = repeated_by
        self._token: Token[RequestContext] | None = None
        self._timeout: asyncio.Timeout | None = None

    def __enter__(self) -> RequestContext:
        """Enter for code that is not interrupted."""
        return self._enter()

    def _enter(self) -> NestedContext:
        if self._token is not None:
            raise RuntimeError("a within() scope can be entered once; call within() again")
        clock = self._outer.clock
        context = NestedContext(self._outer, clock.now() + self._seconds, clock)
        context.repeated_by = self._repeated_by
        self._token = CURRENT.set(context)
        return context

    def __exit__(self, *_: object) -> None:
        """Make the outer context current again."""
        if self._token is not None:
            reset(self._token)

    async def __aenter__(self) -> RequestContext:
        """Enter for code that is cancelled when the time is over."""
        import asyncio

        context = self._enter()
        try:
            # The loop's clock is another clock: only the duration is handed over. Where somebody else cancels this code
            # by then, it must not be cancelled twice.
            watched = context.deadline_at >= self._outer._interrupted_at()
            left = max(0.0, context._fixed_end() - context.clock.now())
            self._timeout = asyncio.timeout(None if watched else left)
            await self._timeout.__aenter__()
            if not watched:
                context.timer = Timer(self._timeout, asyncio.get_running_loop())
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
