"""An ASGI server for one HTTP request, with the accidents of real ones on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from asgiref.typing import ASGI3Application

Message = MutableMapping[str, Any]


class ScriptedASGI:
    """Sends one request through an ASGI application and records every message of the answer.

    A step is one call of the server's `send()`, counted from 0; the message of that call is recorded before anything
    else happens.

    Args:
        app: the application, middlewares included.
        method, path, query, root_path: of the request.
        headers: request headers; text is sent as latin-1.
        body: the request body, one `http.request` message for each part.
        client: address and port of the peer.
        stall_at: this step does not return until `go_on()`, like a server whose peer does not read.
        disconnect_at: from this step on `receive()` says `http.disconnect`.
        cancel_at: at this step the server cancels the request's task.
        extra: more keys for the scope.

    Attributes:
        scope: the request.
        messages: what the application sent, in order.
        error: the exception that left the application; None if it returned or was cancelled.
        cancelled: whether the request's task ended as cancelled.
        stalled: set when the step `stall_at` has been reached.
    """

    def __init__(
        self,
        app: ASGI3Application,
        *,
        method: str = "GET",
        path: str = "/",
        query: bytes = b"",
        root_path: str = "",
        headers: Iterable[tuple[str | bytes, str | bytes]] = (),
        body: Sequence[bytes] = (b"",),
        client: tuple[str, int] | None = ("127.0.0.1", 40_000),
        stall_at: int | None = None,
        disconnect_at: int | None = None,
        cancel_at: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.app: Any = app  # asgiref knows the keys of a scope better than a test that may leave some out
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": root_path,
            "headers": [(_bytes(name).lower(), _bytes(value)) for name, value in headers],
            "client": client,
            "server": ("127.0.0.1", 80),
            **(extra or {}),
        }
        self.messages: list[Message] = []
        self.error: BaseException | None = None
        self.cancelled = False
        self.stalled = asyncio.Event()
        self._stall_at = stall_at
        self._disconnect_at = disconnect_at
        self._cancel_at = cancel_at
        self._task: asyncio.Task[None] | None = None
        self._go_on = asyncio.Event()
        self._gone = asyncio.Event()
        self._incoming: deque[Message] = deque(
            {"type": "http.request", "body": part, "more_body": number < len(body)}
            for number, part in enumerate(body, 1)
        )

    async def run(self, within: float = 5.0) -> Self:
        """Play the request to its end.

        Args:
            within: seconds of real time.

        Raises:
            TimeoutError: it has not ended by then; it is cancelled.
            BaseException: what the application raises. A cancellation is only recorded.
        """
        task = self._task = asyncio.create_task(self.app(self.scope, self._receive, self._send))
        try:
            done, _ = await asyncio.wait({task}, timeout=within)
        finally:
            if not task.done():
                task.cancel()
        if not done:
            await asyncio.wait({task}, timeout=within)
            raise TimeoutError(f"the application has not ended after {within:g} s; it sent {self.messages!r}")
        self.cancelled = task.cancelled()
        if not self.cancelled:
            self.error = task.exception()
            if self.error is not None:
                raise self.error
        return self

    def go_on(self) -> None:
        """Let the step that stalls return."""
        self._go_on.set()

    def disconnect(self) -> None:
        """Let the caller leave now."""
        self._gone.set()

    def cancel(self) -> None:
        """Have the server cancel the request's task now."""
        if self._task is not None:
            self._task.cancel()

    @property
    def status(self) -> int:
        """The status of the response.

        Raises:
            LookupError: no response was started.
        """
        return int(self._start()["status"])

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the response, in order."""
        return [(name, value) for name, value in self._start()["headers"]]

    @property
    def body(self) -> bytes:
        """The body so far."""
        return b"".join(
            each.get("body", b"") for each in self.messages if each["type"] == "http.response.body"
        )

    @property
    def complete(self) -> bool:
        """Whether the last body message has been sent."""
        return any(
            each["type"] == "http.response.body" and not each.get("more_body", False)
            for each in self.messages
        )

    def header(self, name: str) -> str | None:
        """Return the value of a response header, in any case; None if it is not there or stands twice."""
        values = [value for key, value in self.headers if key.lower() == name.lower().encode("latin-1")]
        return values[0].decode("latin-1") if len(values) == 1 else None

    def _start(self) -> Message:
        for message in self.messages:
            if message["type"] == "http.response.start":
                return message
        raise LookupError("the application has not started a response")

    async def _receive(self) -> Message:
        if self._incoming and not self._gone.is_set():
            return self._incoming.popleft()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        step = len(self.messages)
        self.messages.append(message)
        if step == self._disconnect_at:
            self.disconnect()
        if step == self._cancel_at:
            self.cancel()
            await asyncio.sleep(0)  # where the cancellation arrives
        if step == self._stall_at:
            self.stalled.set()
            await self._go_on.wait()


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")
