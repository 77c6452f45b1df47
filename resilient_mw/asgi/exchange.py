"""One running HTTP request: what passes between server and application, and what is cut off when it is over."""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from resilient_mw.admission.entry import COMPLETED, ERROR, RouteEntry
from resilient_mw.admission.verdict import reported_reason
from resilient_mw.asgi.channel import Channel, disconnect_event
from resilient_mw.asgi.messages import is_last, marked_degraded
from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.context import CURRENT
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.supervise import Supervised

if TYPE_CHECKING:
    from asgiref.typing import (
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        HTTPScope,
    )

    from resilient_mw.asgi.service import LoopService

LAST_MESSAGE_WITHIN = 0.5
"""Seconds that the last message of a response gets to leave once the caller has gone."""


class HttpExchange(Supervised):
    """The request context of an ASGI request, and the `receive` and `send` that its application uses.

    Nothing is made per request beyond this object: no task, no timer. A reader is started when the application listens
    for the disconnect itself, or when the request has lasted 50 ms.
    """

    __slots__ = (
        "_context",
        "_cost",
        "_interrupted",
        "_last_message",
        "_receive",
        "_receiver",
        "_scope",
        "_send",
        "_trailers",
        "_uploaded",
        "_watch",
        "answer",
        "channel",
        "entry",
        "failed",
        "left",
        "service",
        "tenant",
    )
    _guard: Guard

    def __init__(  # noqa: PLR0917  made for every request: keywords would cost
        self,
        task: asyncio.Task[Any],
        service: LoopService,
        entry: RouteEntry,
        cost: int,
        deadline_at: float,
        started_at: float,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        channel: Channel | None,
        outer: HttpExchange | None,
    ) -> None:
        # All slots are set here, those of the bases too, without a call: every request comes by here.
        self.deadline_at = deadline_at
        self.reason = None
        self.degraded = False
        self._clock = service.clock
        self._callbacks = None
        self.task = task
        self.base = task.cancelling()
        self.started_at = started_at
        self.started = False
        self.complete = False
        self.done = False
        self._timed = False
        self._watched = False
        self._stop = None
        self._held = None
        self._release = None
        self.answer: asyncio.Task[None] | None = None
        self.failed = False
        self.service = service
        self._guard = service.guard
        self.entry = entry
        self._cost = cost
        self.tenant: str | None = None  # set by who knows of one
        self._scope = scope
        self._receive = receive
        self._send = send
        self.channel = channel
        self._outer = outer
        # Tasks of ours call the server's functions on behalf of the request. A middleware around us may have put a
        # context variable there that it wants to find.
        self._context = copy_context()
        self._receiver: asyncio.Task[Any] | None = None
        self._interrupted = False
        self.left = False
        self._watch = False
        self._uploaded = False
        self._trailers = False
        self._last_message = False
        if channel is not None:
            channel.on_disconnect = self._caller_left

    # -- what the application calls ------------------------------------------------------------------------------------

    async def receive(self) -> ASGIReceiveEvent:
        """Receive as the server would; body messages pass straight through."""
        if self.channel is not None:
            return await self.channel.receive()
        if self._uploaded or self._receiver is not None or self.reason is not None or self.done:
            # What comes next can only be the disconnect, or somebody listens already. It is waited for where it can
            # also be handed over by us, and to several at once.
            return await self._open_channel().receive()
        self._receiver = asyncio.current_task()
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            if self._interrupted and self._receiver is not None and not self._receiver.uncancel():
                return disconnect_event()
            raise
        finally:
            self._receiver = None
            if self.channel is not None:
                self.channel.paused = False
                self.channel.listen()
            elif self._watch:
                self._open_channel().listen()
        if message["type"] == "http.disconnect":
            channel = self._open_channel()
            return await channel.offered_disconnect() if channel.latch() else message
        if not message.get("more_body", False):
            self._uploaded = True
        return message

    async def send(self, message: Any) -> None:
        """Send as the server would; drop what comes after the end."""
        if self.reason is not None:
            await asyncio.sleep(0)  # Whoever streams on must not keep the loop for himself.
            return
        kind = message["type"]
        if kind == "http.response.body" and not message.get("more_body", False):
            last = not self._trailers
        elif (
            kind == "http.response.start" or message.get("more_body", False)
        ) and self._clock.now() >= self.deadline_at:
            # More is to come, and the loop may not have come round to the timer: it was blocked, or a stream never suspends.
            await self.give_up(CancelReason.DEADLINE)
            return
        elif kind == "http.response.start":
            self.started = True
            last = False
            if "trailers" in message:
                self._trailers = bool(message["trailers"])
            if self.degraded:
                message = marked_degraded(message)
        else:
            last = is_last(message, self._trailers)
        self._last_message = last
        try:
            await self._send(message)
        except OSError:
            if self.complete:
                raise
            # The server's way to say that the connection is lost.
            await self.give_up(CancelReason.CLIENT_DISCONNECT)
            return
        if last:
            self.complete = True

    async def give_up(self, reason: CancelReason) -> None:
        """Have the request cancelled from inside `receive` or `send`: in a callback, while the handler is suspended."""
        self.service.supervisor.fire_soon(self, reason)
        await asyncio.sleep(0)

    # -- what the supervisor calls -------------------------------------------------------------------------------------

    def on_expired(self) -> None:
        """Answer 504 (413 to a body that is too large, 503 at shutdown) from a task of its own, whatever the handler does."""
        refusal = self.service.stopped[self.reason or CancelReason.DEADLINE]
        figures = self._guard.figures(self.entry, self.deadline_at)
        self.answer = asyncio.get_running_loop().create_task(
            refusal.send(self._scope, self._send, None, figures), context=self._context
        )

    def start_watching(self) -> None:
        """Listen for the disconnect from now on, or as soon as the application does not listen itself."""
        self._watch = True
        if self.channel is not None:
            self.channel.listen()
        elif self._receiver is None:
            self._open_channel().listen()

    def offer_disconnect(self) -> bool:
        """Hand `http.disconnect` to a pending `receive()`; return whether there was one."""
        offered = self._open_channel().offer_disconnect()
        if self._receiver is None or self._interrupted:
            return offered
        self._interrupted = True
        self._receiver.cancel()
        return True

    def late(self) -> None:
        """Count that the work went on after its cancellation."""
        if self.reason is not None:
            self._guard.late(self.entry, self.reason)

    # -- the end -------------------------------------------------------------------------------------------------------

    def over(self, error: BaseException | None) -> bool:
        """Return whether the request was over when the application ended, which may have seen it before we did.

        Args:
            error: what the application raised.
        """
        if self.reason is None and not self.complete:
            if self.left:
                self.reason = CancelReason.CLIENT_DISCONNECT
            elif (
                error is not None
                and reported_reason(error, self._clock.now(), self.deadline_at) is CancelReason.DEADLINE
            ):
                self.reason = CancelReason.DEADLINE
                if not self.started:
                    self.on_expired()
            if self._callbacks:
                self.run_callbacks()
        return self.reason is not None

    def release(self) -> None:
        """Count how the run ended and give the slots back."""
        now = self._clock.now()
        ran = now - self.started_at
        guard = self._guard
        reason = self.reason
        if reason is None:
            guard.end(self.entry, self._cost, ERROR if self.failed else COMPLETED, ran, self.tenant, now)
            return
        guard.end(self.entry, self._cost, reason.value, ran, self.tenant, now)
        guard.cancelled(self.entry, reason, ran)

    # -- two of ours ---------------------------------------------------------------------------------------------------

    def surrounds(self, task: asyncio.Task[Any] | None, scope: HTTPScope) -> bool:
        """Return whether a request that finds this one in its context runs inside it."""
        return not self.done and (self.task is task or self._scope is scope)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _open_channel(self) -> Channel:
        if self.channel is None:
            channel = self.channel = Channel(self._receive, self._caller_left, self._context)
            channel.paused = self._receiver is not None
            channel.disconnected = self.done
        return self.channel

    def _caller_left(self) -> bool:
        """End the request; return whether it ends because of this."""
        # A disconnect while the last message is on its way is the normal end of an exchange, unless it never gets away:
        # some servers hang there once the connection is lost.
        loop = self.task.get_loop()
        if self._last_message and not self.complete:
            loop.call_later(LAST_MESSAGE_WITHIN, self._end_abandoned, context=Context())
        if self._last_message or self.complete or self.done:
            return False
        self.left = True
        loop.call_soon(self._end_abandoned, context=Context())
        return True

    def _end_abandoned(self) -> None:
        self.service.supervisor.fire(self, CancelReason.CLIENT_DISCONNECT)
        if self.reason is None and self.channel is not None:
            # The response was completed meanwhile, so that nothing is stopped: who listens is told of it now.
            self.channel.offer_disconnect()


def surrounding(task: asyncio.Task[Any] | None, scope: HTTPScope) -> HttpExchange | None:
    """Return the exchange of another of our middlewares around this one; None if there is none.

    The context variable alone does not tell: servers create the task of the next request out of the last one's.
    """
    context = CURRENT.get()
    return context if isinstance(context, HttpExchange) and context.surrounds(task, scope) else None
