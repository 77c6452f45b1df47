"""One running HTTP request: what passes between server and application, and what is cut off when it is over."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any

from resilient_mw.admission.entry import COMPLETED, ERROR, RouteEntry
from resilient_mw.asgi.channel import Channel
from resilient_mw.asgi.refusal import Refusal
from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.supervise import Supervised, Supervisor

if TYPE_CHECKING:
    from asgiref.typing import (
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        ASGISendEvent,
        HTTPScope,
    )


class HttpExchange(Supervised):
    """The request context of an ASGI request, and the `receive` and `send` that its application uses.

    Nothing is made per request beyond this object: no task, no timer. A reader is started when the application listens
    for the disconnect itself, or when the request has lasted 50 ms.
    """

    __slots__ = (
        "_channel",
        "_entry",
        "_expiry",
        "_guard",
        "_last_message",
        "_listening",
        "_receive",
        "_scope",
        "_send",
        "_supervisor",
        "_trailers",
        "_uploaded",
        "_watch",
        "answer",
        "failed",
    )

    def __init__(  # noqa: PLR0917  made for every request: keywords would cost
        self,
        task: asyncio.Task[Any],
        deadline_at: float,
        started_at: float,
        guard: Guard,
        entry: RouteEntry,
        supervisor: Supervisor,
        expiry: Refusal,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        channel: Channel | None,
    ) -> None:
        super().__init__(task, deadline_at, started_at, guard.clock)
        self.answer: asyncio.Task[None] | None = None
        self.failed = False
        self._guard = guard
        self._entry = entry
        self._supervisor = supervisor
        self._expiry = expiry
        self._scope = scope
        self._receive = receive
        self._send = send
        self._channel = channel
        self._listening = 0
        self._watch = False
        self._uploaded = False
        self._trailers = False
        self._last_message = False
        if channel is not None:
            channel.on_disconnect = self._caller_left

    # -- what the application calls ------------------------------------------------------------------------------------

    async def receive(self) -> ASGIReceiveEvent:
        """Receive as the server would; body messages pass straight through."""
        if self._channel is not None:
            return await self._channel.receive()
        if self._uploaded or self.reason is not None:
            # What comes next can only be the disconnect. It is waited for where it can also be handed over by us.
            return await self._open_channel().receive()
        self._listening += 1
        try:
            message = await self._receive()
        finally:
            self._listening -= 1
            if self._watch and not self._listening and self._channel is None:
                self._open_channel().listen()
        if message["type"] == "http.disconnect":
            self._open_channel().offer_disconnect()
            self._caller_left()
        elif not message.get("more_body", False):
            self._uploaded = True
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send as the server would; drop what comes after the end."""
        if self.reason is not None:
            return
        if message["type"] == "http.response.start":
            if self._clock.now() >= self.deadline_at:
                await self._give_up(CancelReason.DEADLINE)
                return
            self.started = True
            self._trailers = bool(message.get("trailers", False))
        last = _is_last(message, self._trailers)
        self._last_message = last
        try:
            await self._send(message)
        except OSError:
            if self.complete:
                raise
            # The server's way to say that the connection is lost.
            await self._give_up(CancelReason.CLIENT_DISCONNECT)
            return
        if last:
            self.complete = True

    # -- what the supervisor calls -------------------------------------------------------------------------------------

    def on_expired(self) -> None:
        """Answer 504 from a task of its own, whatever the handler is doing."""
        loop = asyncio.get_running_loop()
        self.answer = loop.create_task(self._answer_expired(), context=Context())

    def start_watching(self) -> None:
        """Listen for the disconnect from now on, or as soon as the application does not listen itself."""
        self._watch = True
        if self._channel is not None:
            self._channel.listen()
        elif not self._listening:
            self._open_channel().listen()

    def offer_disconnect(self) -> bool:
        """Hand `http.disconnect` to a pending `receive()`; return whether there was one."""
        return self._open_channel().offer_disconnect()

    def late(self) -> None:
        """Count that the work went on after its cancellation."""
        if self.reason is not None:
            self._guard.late(self._entry, self.reason)

    # -- the end -------------------------------------------------------------------------------------------------------

    def stop_listening(self) -> None:
        """End the reader with the request."""
        if self._channel is not None:
            self._channel.stop()

    def release(self) -> None:
        """Count how the run ended and give the slots back."""
        ran = self._clock.now() - self.started_at
        if self.reason is not None:
            self._guard.cancelled(self._entry, self.reason, ran)
            outcome: str = self.reason.value
        else:
            outcome = ERROR if self.failed else COMPLETED
        self._guard.end(self._entry, self._entry.cost, outcome, ran)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _open_channel(self) -> Channel:
        if self._channel is None:
            self._channel = Channel(self._receive, self._caller_left)
        return self._channel

    def _caller_left(self) -> None:
        # A disconnect while the last message is on its way is the normal end of an exchange.
        if not self._last_message:
            self._supervisor.fire_soon(self, CancelReason.CLIENT_DISCONNECT)

    async def _give_up(self, reason: CancelReason) -> None:
        """Have the request cancelled from inside `send`: in a callback, while the handler is suspended here."""
        self._supervisor.fire_soon(self, reason)
        await asyncio.sleep(0)

    async def _answer_expired(self) -> None:
        try:
            await self._expiry.send(self._scope, self._send, None)
        except OSError:
            pass  # The caller has gone as well.


def _is_last(message: ASGISendEvent, trailers: bool) -> bool:
    """Return whether a message ends the response; unknown messages do not."""
    kind: str = message["type"]
    if kind in {"http.response.body", "http.response.zerocopysend"}:
        return not message.get("more_body", False) and not trailers
    if kind == "http.response.pathsend":
        return not trailers
    return kind == "http.response.trailers" and not message.get("more_trailers", False)
