"""Sections that must complete: a request that is over leaves them the time that they were promised.

While one is open, nothing that ends the request reaches its code: no cancel, no `on_cancel` callback (which may close the
connection that the section uses), no `within()` around it. What other people do is not held back.
"""
# The contexts of one request are one subject in several files: private names keep the face of the user's object small.
# ruff: noqa: SLF001

from __future__ import annotations

from contextvars import Context, Token
from typing import TYPE_CHECKING

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.context import CURRENT, RequestContext, reset
from resilient_mw.runtime.within import InnerContext

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType


AGAIN_AFTER = 0.25
"""Seconds after which code whose time is over is cancelled, if the end of the request that it was left to has not."""

ARRIVES_WITHIN = 0.2
"""Seconds within which a cancel that was held back arrives. It may take a way round: some frameworks cancel their handler
themselves when they hear of a disconnect.
"""


class Shield:
    """A section that must complete, made by `RequestContext.shield()`. Use it once.

    Attributes:
        until: the instant at which its time is over.
        open: whether it holds anything back: it has been entered, has not been left, and its time is not over.
        left: whether it has been left.
    """

    __slots__ = (
        "_cancels", "_due", "_holding", "_loop", "_outer", "_seconds", "_task", "_timeout", "_timer", "_token", "left", "open",
        "until",
    )  # fmt: skip

    def __init__(self, outer: RequestContext, seconds: float) -> None:
        self.until = FOREVER
        self.open = False
        self.left = False
        self._outer = outer
        self._seconds = seconds
        self._holding: list[None] = []  # one token: of two threads one gets it
        self._token: Token[RequestContext] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timeout: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancels = 0
        self._due = False

    def protects(self, now: float) -> bool:
        """Return whether the code inside is to know nothing of the end of its request."""
        return self.open and now < self.until

    def __enter__(self) -> RequestContext:
        """Enter for code that is not interrupted when the time of the section is over."""
        return self._enter(self._outer._loop())

    def _enter(self, loop: asyncio.AbstractEventLoop | None) -> RequestContext:
        if self._token is not None:
            raise RuntimeError("a shield() section can be entered once; call shield() again")
        outer = self._outer
        clock = outer.clock
        self.until = min(clock.now() + self._seconds, outer._section_until())
        self.open = True
        self._holding.append(None)
        outer._hold_back(self)
        self._loop = loop
        if loop is not None:
            from resilient_mw.runtime.thread_work import run_in_loop

            run_in_loop(loop, self._arm)
        context = ShieldedContext(self, outer, clock)
        self._token = CURRENT.set(context)
        return context

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """Leave; what was held back happens when the code next waits for something."""
        if self._token is None or self.left:
            return
        self.left = True
        reset(self._token)
        self._due = self._end_hold()
        if self._loop is not None:
            from resilient_mw.runtime.thread_work import run_in_loop

            run_in_loop(self._loop, self._disarm)
        self._outer._section_left(self, collected=kind is GeneratorExit)

    async def __aenter__(self) -> RequestContext:
        """Enter for code that is cancelled when the time of the section is over."""
        import asyncio

        context = self._enter(asyncio.get_running_loop())
        try:
            self._task = asyncio.current_task()
            self._cancels = 0 if self._task is None else self._task.cancelling()
            self._timeout = asyncio.timeout(None)
            await self._timeout.__aenter__()
        except BaseException:
            self.__exit__()
            raise
        return context

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave; what was held back happens here, unless an error is on its way.

        Raises:
            DeadlineExceeded: the time of the section was over, and the request was not.
        """
        import asyncio

        try:
            if self._timeout is not None:
                await self._timeout.__aexit__(kind, error, traceback)
                self._check_own(self._timeout, error)
        except TimeoutError as timed_out:
            # asyncio raises this only if the cancellation was its own: foreign TimeoutErrors do not come this way.
            raise DeadlineExceeded(
                f"the shielded section was not finished within {self._seconds:g} s"
            ) from timed_out.__cause__
        finally:
            self.__exit__(kind)
        if kind is None and self._outer.cancel_reason is not None:
            # The cancel is due in a callback, and finds the task here.
            await asyncio.sleep(ARRIVES_WITHIN if self._due else 0)

    def _check_own(self, timeout: asyncio.Timeout, error: BaseException | None) -> None:
        """Raise what asyncio raises for a cancellation of its own, where it does not know it for one.

        Before CPython 3.11.3 it does not in a task that somebody had cancelled before: a clean-up.
        """
        import asyncio

        cancelled = timeout.expired() and isinstance(error, asyncio.CancelledError)
        if cancelled and self._task is not None and self._task.cancelling() <= self._cancels:
            raise TimeoutError from error

    def _arm(self) -> None:
        """Set the timer for the end of the section's time. In the loop."""
        if self._holding and self._loop is not None:
            delay = max(0.0, self.until - self._outer.clock.now())
            self._timer = self._loop.call_later(delay, self._time_is_over, context=Context())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _time_is_over(self) -> None:
        """Cancel the code inside, unless the request's own cancel does that: it must not be cancelled twice."""
        if self.left or self._loop is None:
            return
        if not self._end_hold():
            self._interrupt()
        elif self._timeout is not None:
            # It does not reach work that nobody waits for.
            self._timer = self._loop.call_later(AGAIN_AFTER, self._interrupt, context=Context())

    def _interrupt(self) -> None:
        if self._timeout is None or self._task is None or self._loop is None:
            return
        if self._task.cancelling() <= self._cancels:
            try:
                self._timeout.reschedule(self._loop.time())
            except RuntimeError:
                pass  # It is being left.

    def _end_hold(self) -> bool:
        """Let happen what was held back, once; return whether that cancels the code inside."""
        self.open = False
        try:
            self._holding.pop()
        except IndexError:
            return False
        return self._outer._hand_over(self)


class ShieldedContext(InnerContext):
    """The context inside `shield()`: the section's own time, in place of the request's."""

    __slots__ = ("_section",)

    def __init__(self, section: Shield, outer: RequestContext, clock: Clock) -> None:
        super().__init__(outer, section.until, clock)
        self.deadline_at = section.until
        self._section = section

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the work no longer matters; nothing of the request's as long as the section has time."""
        now = self._clock.now()
        if self._section.protects(now):
            return None
        return self._outer.cancel_reason or (CancelReason.DEADLINE if now >= self._until else None)

    def _ends_at(self) -> float:
        # A task that was made in the section and goes on after it has the time of the request.
        return min(self._until, self._outer._ends_at()) if self._section.left else self._until

    def _interrupted_at(self) -> float:
        section = self._section
        if section.left:
            return self._outer._interrupted_at()
        return FOREVER if section._timeout is None else self._until

    def _section_until(self) -> float:
        return self._outer._section_until() if self._section.left else self._until
