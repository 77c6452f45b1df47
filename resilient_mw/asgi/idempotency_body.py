"""The request body of a request with a key: a part of it is read before the handler, and all of it is hashed as it passes."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from resilient_mw.idempotency.fingerprint import Fingerprint

Receive = Callable[[], Awaitable[Any]]


class HashedBody:
    """A `receive` that hashes what passes it.

    Args:
        receive: the server's, or that of a middleware around.
        fingerprint: has the head of the request already.

    Attributes:
        complete: whether the body was seen to its end.
        gone: whether the caller has left before that.
    """

    __slots__ = ("_fingerprint", "_kept", "_receive", "complete", "gone")

    def __init__(self, receive: Receive, fingerprint: Fingerprint) -> None:
        self._receive = receive
        self._fingerprint = fingerprint
        self._kept: deque[Any] = deque()
        self.complete = False
        self.gone = False

    async def receive(self) -> Any:
        """Return what was read before, then what comes. Given to the handler."""
        return self._kept.popleft() if self._kept else await self._next()

    async def read(self, most: int) -> str | None:
        """Read up to so many bytes, keep them for the handler, and return the fingerprint if that was all."""
        while not self.complete and not self.gone and self._fingerprint.size <= most:
            message = await self._next()
            # Of pieces without bytes a caller could send any number, and each would be kept.
            if message.get("body") or not message.get("more_body", False):
                self._kept.append(message)
        return self.digest()

    async def drain(self) -> str | None:
        """Read what is left, keep nothing, and return the fingerprint; None: the caller has left."""
        while not self.complete and not self.gone:
            await self._next()
        return self.digest()

    def digest(self) -> str | None:
        """Return the fingerprint, if the body was seen to its end."""
        return self._fingerprint.digest() if self.complete else None

    async def _next(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request":
            if not self.complete:
                self._fingerprint.update(message.get("body", b""))
                self.complete = not message.get("more_body", False)
        elif message["type"] == "http.disconnect" and not self.complete:
            self.gone = True
        return message
