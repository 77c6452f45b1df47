"""The context of a request that threads work on."""
# The contexts of one request are one subject in several files: private names keep the face of the user's object small.
# ruff: noqa: SLF001

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.ports import Clock
from resilient_mw.core.streams import BODY
from resilient_mw.runtime.alarm import ALARM
from resilient_mw.runtime.callers import LOOK_EVERY, Gone, gone_of
from resilient_mw.runtime.context import CancelCallback, RequestContext
from resilient_mw.runtime.hooks import Hook, run_hooks
from resilient_mw.runtime.measured import UNMEASURED, Measured

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

    from resilient_mw.admission.entry import RouteEntry
    from resilient_mw.runtime.lent_slots import Lent
    from resilient_mw.runtime.shield import Shield


UNASKED: Final[Any] = object()
"""Instead of what tells whether the caller has gone: most requests never ask."""


class ThreadContext(RequestContext):
    """The context of a request that threads work on (WSGI).

    Callbacks run in a helper thread, in a copy of the context in which they were registered, when the deadline comes, the
    service stops or the server tells that the caller has gone. They must be plain functions: nobody awaits what they return.

    Args:
        deadline_at: instant; at most that of `outer`.
        clock: the one clock.
        owner: whoever guards this request, so that it is not guarded twice.
        outer: the context of the request around it: another middleware, or a handler that calls an application.
        entry: how it is treated.
        environ: the request.
    """

    __slots__ = (
        "_cost",
        "_gone",
        "_look_at",
        "_tenant",
        "ended",
        "entry",
        "environ",
        "firing",
        "held",
        "hooks",
        "outer",
        "owner",
    )
    _cost: int  # the slots that it has, and on whose behalf: set by who was given them
    _tenant: str | None

    def __init__(  # noqa: PLR0917  on the way of every request: keywords would cost
        self,
        deadline_at: float,
        clock: Clock,
        owner: object = None,
        outer: RequestContext | None = None,
        entry: RouteEntry | None = None,
        environ: Mapping[str, Any] | None = None,
    ) -> None:
        # On the way of every request: the slots of RequestContext are set here, without a call.
        self.deadline_at = deadline_at
        self.reason = None
        self.degraded = False
        self._clock = clock
        self.owner = owner
        self.entry = entry
        self.outer = outer
        self.environ = environ
        self.hooks: list[Hook] | None = None
        self.firing = False
        self.ended = False
        self.held: list[concurrent.futures.Future[Any] | asyncio.Future[Any]] | None = None

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the work no longer matters, for this request or the one around it; None while it does."""
        reason = super().cancel_reason
        if reason is None and not self.ended:
            now = self._clock.now()
            if now >= self.stop_at:
                return CancelReason.SHUTDOWN
            if self.has_lost_its_caller(now):
                self.cancel(CancelReason.CLIENT_DISCONNECT)
                reason = self.reason
        if reason is None and self.outer is not None:
            return self.outer.cancel_reason
        return reason

    def received(self, name: str) -> Sequence[str]:
        """Return the lines of a header field of the request; a server makes one of several."""
        value = None if self.environ is None else self.environ.get("HTTP_" + name.upper().replace("-", "_"))
        return () if value is None else (value,)

    @property
    def stop_at(self) -> float:
        """The instant at which this request's service stops; never, while it does not drain."""
        stop_at: float = getattr(getattr(self.owner, "lifecycle", None), "stop_at", FOREVER)
        return stop_at

    def gone(self) -> Gone | None:
        """Return what tells whether the caller has gone; None: nobody knows."""
        # To catch an AttributeError would cost each stream twice as much.
        known: Gone | None = getattr(self, "_gone", UNASKED)
        if known is not UNASKED:
            return known
        self._look_at = -FOREVER
        self._gone: Gone | None = gone_of(self.environ or {})
        return self._gone

    def look_no_more(self) -> None:
        """Let the caller go: he has his whole answer, whatever the application still does."""
        self._gone = None

    def has_lost_its_caller(self, now: float) -> bool:
        """Look whether the caller has gone, unless somebody has looked a moment ago; return whether he is seen to have."""
        gone = self.gone()
        if gone is None or now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY
        return gone()

    def on_cancel(self, callback: CancelCallback) -> None:
        """Have `callback(reason)` called once if the work is cancelled; at once, here, if it already is.

        It is not called for work that ends by itself, nor once the request is over; while a shielded section is open, it is
        called afterwards.
        """
        hook = Hook(callback, self._callback_failed)
        reason = self.cancel_reason
        if reason is not None and not self.ended and not ALARM.shielded(self):
            run_hooks((hook,), reason)
            return
        ALARM.watch(self, hook)
        if self.outer is not None:
            self.outer.on_cancel(hook)

    def hold(self, future: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
        """Keep this request's slot taken until `future` is done, also when its response has ended before."""
        if self.held is None:
            self.held = []
        self.held.append(future)

    def measured(self) -> Measured:
        """Return where the overload of this request's service is measured."""
        return getattr(self.owner, "overload", UNMEASURED)

    def guarded_by(self, guard: object) -> bool:
        """Return whether this guard has admitted the request already, here or further out."""
        return self.owner is guard or (self.outer is not None and guarded_by(self.outer, guard))

    def cancel(self, reason: CancelReason) -> None:
        """Latch why the work is over, if nothing else did before, and have the callbacks run."""
        if self.reason is None:
            ALARM.cancel(self, reason)

    def complete(self, *, started: bool) -> None:
        """Forget the callbacks: the response is complete, and nothing is left that could be cancelled.

        Args:
            started: whether the caller has its head. If not, and the deadline has passed or the service stops, he gets another answer, and this
                is the end of cancelled work.
        """
        if self.hooks is None and not self.firing:
            self.ended = True
        elif started or self._clock.now() < min(self.deadline_at, self.stop_at):
            ALARM.forget(self, wait=False)

    def end(self) -> None:
        """Forget the callbacks: the work has ended. Waits, within bounds, for those that run at this instant."""
        if self.hooks is None and not self.firing:
            self.ended = True
        else:
            ALARM.forget(self)

    def _callback_failed(self, error: Exception) -> None:
        listeners = getattr(self.owner, "listeners", None)
        if listeners is not None:
            listeners.guest_failed("on_cancel callback", error)

    def _ends_at(self) -> float:
        # Nothing that goes on after the response is told that it is worthless now.
        if self.ended and self.reason is None:
            return FOREVER
        # What is around may have an end that moves: it is told, and minded there.
        return self.deadline_at if self.outer is None else min(self.deadline_at, self.outer._ends_at())

    def _fixed_end(self) -> float:
        stream = None if self.entry is None else self.entry.stream
        if stream is None or stream.covers == BODY:
            return FOREVER if self.ended and self.reason is None else self.deadline_at
        return FOREVER if self.outer is None else self.outer._fixed_end()

    def _lend(self, lent: list[Lent]) -> None:
        from resilient_mw.runtime.lent_slots import add_lent  # few requests wait for another one

        if not (self.ended or self.held):
            add_lent(lent, self, self.owner, getattr(self, "_tenant", None))
        if self.outer is not None:
            self.outer._lend(lent)

    def _section_until(self) -> float:
        return FOREVER if self.outer is None else self.outer._section_until()

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return None if self.outer is None else self.outer._loop()

    def _hold_back(self, section: Shield) -> None:
        ALARM.hold_back(self, section)
        if self.outer is not None:
            self.outer._hold_back(section)

    def _hand_over(self, section: Shield) -> bool:
        return self.outer is not None and self.outer._hand_over(section)

    def _section_left(self, section: Shield, *, collected: bool) -> None:
        ALARM.look_again(wait=not collected)
        if self.outer is not None:
            self.outer._section_left(section, collected=collected)


def guarded_by(context: RequestContext, guard: object) -> bool:
    """Return whether a guard has admitted the request of a context, whichever middleware made it."""
    known = getattr(context, "guarded_by", None)
    return known is not None and bool(known(guard))


def has_ended(context: RequestContext) -> bool:
    """Return whether the request of a context is over, whichever middleware made it."""
    return bool(getattr(context, "ended", False) or getattr(context, "done", False))
