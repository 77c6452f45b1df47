"""Listens for the caller's disconnect without taking a message away from the application.

No ASGI server tells a handler that its caller has left; only `receive()` does, some servers tell it once only, and
some wake only one of two listeners. So one reader owns the server's `receive()`, keeps what it reads for the
application, and latches the disconnect for everybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asgiref.typing import ASGIReceiveCallable, ASGIReceiveEvent, HTTPDisconnectEvent

MOST_BYTES = 65_536
"""Body bytes read ahead at most. Beyond it nobody listens until the application has taken some."""
MOST_MESSAGES = 16


class Channel:
    """What the application receives from, once somebody has to listen on its behalf.

    Args:
        receive: the server's `receive`.
        on_disconnect: called once, in the event loop, when the caller has left.
        context: where `receive` is called, so that middlewares around us find their variables in it.

    Attributes:
        disconnected: every `receive()` answers `http.disconnect` once the buffer is empty.
        paused: nothing is read while somebody else is inside the server's `receive`.
    """

    __slots__ = (
        "_buffer",
        "_bytes",
        "_context",
        "_error",
        "_listeners",
        "_reader",
        "_receive",
        "disconnected",
        "on_disconnect",
        "paused",
    )

    def __init__(
        self, receive: ASGIReceiveCallable, on_disconnect: Callable[[], bool], context: Context
    ) -> None:
        self.disconnected = False
        self.paused = False
        self.on_disconnect = on_disconnect
        self._receive = receive
        self._context = context
        # Short lists: each waiting request holds them, and an empty deque and an empty set weigh more than all the rest.
        self._buffer: list[ASGIReceiveEvent] = []
        self._bytes = 0
        self._listeners: list[asyncio.Future[None]] = []
        self._reader: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    def listen(self) -> None:
        """Start reading ahead, unless that goes on already, the caller has left, or enough is kept."""
        idle = self._reader is None and not self.paused
        if idle and self._error is None and not self.disconnected and not self._full():
            loop = asyncio.get_running_loop()
            self._reader = loop.create_task(self._read(), context=self._context)

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message for the application, in the order in which the server gave them."""
        while not self._buffer:
            if self.disconnected:
                return disconnect_event()
            if self._error is not None:
                raise self._error
            self.listen()
            await self._wait()
        message = self._buffer.pop(0)
        self._bytes -= _size(message)
        self.listen()
        return message

    async def offered_disconnect(self) -> ASGIReceiveEvent:
        """Return the disconnect once it is offered."""
        await self._wait()
        return disconnect_event()

    def latch(self) -> bool:
        """Note that the caller has left; return whether whoever is receiving right now is told later.

        A request that ends because of it is stopped from the outside first. Heard at the same time, the message would
        have frameworks cancel into a clean-up that runs already.
        """
        if self.disconnected:
            return False
        self.disconnected = True
        if self.on_disconnect():
            return True
        self._notify()
        return False

    def offer_disconnect(self) -> bool:
        """Tell the application that its caller has left, true or not; return whether it was listening.

        Frameworks that run the handler in a task of their own stop it on this message.
        """
        listening = bool(self._listeners)
        self.disconnected = True
        self._notify()
        return listening

    def stop(self) -> None:
        """Stop listening: the request has ended, which is told to whoever still receives."""
        self.on_disconnect = nothing  # no cycle with the request
        try:
            self.offer_disconnect()
            if self._reader is not None:
                self._reader.cancel()
        except RuntimeError:
            pass  # The loop is closed, and the garbage collector ends the request.

    async def _read(self) -> None:
        try:
            while not self._full():
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self.latch()
                    return
                self._buffer.append(message)
                self._bytes += _size(message)
                self._notify()
        except Exception as error:  # noqa: BLE001  the application gets it from its next receive()
            self._error = error
            self._notify()
        finally:
            self._reader = None

    async def _wait(self) -> None:
        listener = asyncio.get_running_loop().create_future()
        self._listeners.append(listener)
        try:
            await listener
        finally:
            self._listeners.remove(listener)

    def _full(self) -> bool:
        return self._bytes >= MOST_BYTES or len(self._buffer) >= MOST_MESSAGES

    def _notify(self) -> None:
        for listener in self._listeners:
            if not listener.done():
                listener.set_result(None)


def disconnect_event() -> HTTPDisconnectEvent:
    """Return a fresh `http.disconnect` message."""
    return {"type": "http.disconnect"}


def nothing() -> bool:
    """Stand in where nobody wants to know of a disconnect."""
    return False


def _size(message: ASGIReceiveEvent) -> int:
    return len(message["body"]) if message["type"] == "http.request" and "body" in message else 0
