"""One open websocket: its context, and what passes between server and application."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from resilient_mw.admission.entry import COMPLETED, ERROR
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.context import CancelCallback
from resilient_mw.runtime.measured import Measured
from resilient_mw.runtime.supervise import Supervised
from resilient_mw.runtime.thread_work import call_in_loop
from resilient_mw.runtime.websockets import Websockets

if TYPE_CHECKING:
    from resilient_mw.runtime.shield import Shield

WATCH_AFTER = 0.5
"""Seconds for which an application may send without listening before we listen for the disconnect ourselves."""
MOST_BYTES = 65_536
"""Bytes (or characters) read ahead at most. Beyond it nobody listens until the application has taken some."""
MOST_MESSAGES = 16
SERVICE_RESTART = 1012
"""The close code of servers that are about to stop."""

Message = Mapping[str, Any]


class PeerGone(ConnectionResetError):
    """The peer has left, and the application sends to it without having been told.

    Attributes:
        connection: whose peer.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__("the peer of this websocket has gone")
        self.connection = connection


class Connection(Supervised):
    """The context of an open websocket, without a deadline, and the `receive` and `send` that its application uses.

    Its application is told of a disconnect by `websocket.disconnect`, and is not cancelled. Where it does not listen but
    sends, asks or has registered an `on_cancel` callback, a reader listens for it, and keeps what it reads for it.

    Args:
        task: the server's task, in which the application runs.
        websockets: the owner of the place.
        clock: the one clock.
        scope, receive, send: as the server gave them.
        outer: another one of ours around it, of another policy.
    """

    __slots__ = (
        "_bytes", "_context", "_error", "_heard_at", "_inside", "_kept", "_outer", "_reader", "_receive", "_send", "_untold",
        "_waiting", "_watch", "_websockets", "scope",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917  the parts of a middleware, and the three of ASGI
        self,
        task: asyncio.Task[Any],
        websockets: Websockets,
        clock: Clock,
        scope: Any,
        receive: Any,
        send: Any,
        outer: Connection | None,
    ) -> None:
        super().__init__(task, FOREVER, clock.now(), clock)
        self.scope = scope
        self._websockets = websockets
        self._receive = receive
        self._send = send
        self._outer = outer
        # A middleware around us may have put a context variable there that its `receive` wants to find.
        self._context = copy_context()
        self._kept: deque[Message] = deque()
        self._bytes = 0
        self._inside = 0  # calls of the server's `receive` by the application
        self._heard_at = self.started_at  # when the last of them ended
        self._watch = False
        self._reader: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._untold = False  # the disconnect was read, and the application has not taken it yet
        self._waiting: set[asyncio.Future[None]] = set()

    # -- what the application calls ------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Receive as the server would."""
        while not self._kept:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._reader is None:
                return await self._receive_now()
            await self._news()
        message = self._kept.popleft()
        self._bytes -= _size(message)
        if message["type"] == "websocket.disconnect":
            self._untold = False
        self._listen()
        return message

    async def send(self, message: Message) -> None:
        """Send as the server would.

        Raises:
            ConnectionResetError: the peer has gone, and the application has not been told yet. Some servers say nothing
                to it, and an application that only sends would go on for ever.
        """
        kind = message["type"]
        if kind == "websocket.send":
            if self._untold:
                raise PeerGone(self)
            if not self._watch and not self._inside and self._clock.now() - self._heard_at >= WATCH_AFTER:
                self._start_watching()
        elif kind == "websocket.close" or kind.startswith("websocket.http.response."):
            self.complete = True  # what comes now is the end that the application wants
        try:
            await self._send(message)
        except OSError:
            self._peer_left(message)  # the server's way to say so
            raise

    # -- what asks for the disconnect ----------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether the peer has left."""
        return self.cancel_reason is not None

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the connection is over; None while it is not. Who asks is who wants it to be noticed."""
        self._want_to_know()
        return self.reason

    def on_cancel(self, callback: CancelCallback) -> None:
        """Have `callback(reason)` called once if the peer leaves while the application runs; see `Supervised.on_cancel`."""
        super().on_cancel(callback)
        self._want_to_know()

    def measured(self) -> Measured:
        """Return where the overload of this service is measured."""
        return self._websockets.overload

    # -- the end -------------------------------------------------------------------------------------------------------

    def outcome(self, *, failed: bool) -> str:
        """Return the outcome under which the connection is counted.

        Args:
            failed: whether an exception of its own left the application.
        """
        if self.reason is not None:
            return self.reason.value
        return ERROR if failed else COMPLETED

    def finish(self, release: Callable[[], object]) -> None:
        """Say that the application has returned or raised, and give the place back; later, while something holds it."""
        self.done = True
        self._watch = False
        if self.held:
            self._release = release
        else:
            release()
        try:
            if self._reader is not None:
                self._reader.cancel()
        except RuntimeError:
            pass  # The loop is closed, and the garbage collector ends the connection.

    def deliver(self) -> None:
        """Call the callbacks of a connection that is over, unless a section is open. Its application is not cancelled."""
        self.run_callbacks()

    def _hand_over(self, section: Shield) -> bool:
        super()._hand_over(section)
        return False  # nobody cancels the code inside

    # -- two of ours ---------------------------------------------------------------------------------------------------

    def placed_by(self, websockets: Websockets) -> bool:
        """Return whether this owner has given the connection a place already, here or further out."""
        return self._websockets is websockets or (
            isinstance(self._outer, Connection) and self._outer.placed_by(websockets)
        )

    def surrounds(self, task: asyncio.Task[Any] | None, scope: Any) -> bool:
        """Return whether a websocket that finds this one in its context is this one, further in."""
        return not self.done and (self.task is task or self.scope is scope)

    # -- listening -----------------------------------------------------------------------------------------------------

    def _want_to_know(self) -> None:
        if not self._watch and not self.done:
            self._watch = True
            call_in_loop(self.task.get_loop(), self._listen)  # whoever asks may be in another thread

    def _start_watching(self) -> None:
        self._watch = True
        self._listen()

    def _listen(self) -> None:
        """Start to read ahead, if somebody wants to know and nobody listens."""
        over = self.done or self._untold or self.reason is not None or self._error is not None
        full = self._bytes >= MOST_BYTES or len(self._kept) >= MOST_MESSAGES
        if self._watch and not over and not full and not self._inside and self._reader is None:
            self._reader = self.task.get_loop().create_task(self._read(), context=self._context)

    async def _read(self) -> None:
        try:
            while self._bytes < MOST_BYTES and len(self._kept) < MOST_MESSAGES:
                message = await self._receive()
                self._kept.append(message)
                self._bytes += _size(message)
                if message["type"] == "websocket.disconnect":
                    self._untold = True
                    self._peer_left(message)
                    return
                self._notify()
        except Exception as error:  # noqa: BLE001  the application gets it from its next receive()
            self._error = error
        finally:
            self._reader = None
            self._notify()

    async def _receive_now(self) -> Message:
        self._inside += 1
        try:
            message: Message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._peer_left(message)
        finally:
            self._inside -= 1
            self._heard_at = self._clock.now()
            self._listen()
        return message

    async def _news(self) -> None:
        waiting = self.task.get_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    def _notify(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def _peer_left(self, message: Message) -> None:
        """Note that the peer has left, or that the server ends; not if the application has closed before."""
        if self.reason is None and not self.complete and not self.done:
            stops = message.get("code") == SERVICE_RESTART
            self.reason = CancelReason.SHUTDOWN if stops else CancelReason.CLIENT_DISCONNECT
            self.run_callbacks()


def _size(message: Message) -> int:
    return len(message.get("bytes") or message.get("text") or "")
