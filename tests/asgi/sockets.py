"""A scripted server for one websocket, with the bad habits that real servers were seen to have."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any, Self

from tests.asgi.driver import App, Message

SAYS_NOTHING, RAISES = "says nothing", "raises"


def socket_scope(path: str = "/ws", *, denial: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "type": "websocket", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "scheme": "ws",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": [(b"host", b"test")],
        "client": ("203.0.113.9", 1), "server": ("127.0.0.1", 80), "subprotocols": [], "state": {},
        "extensions": {"websocket.http.response": {}} if denial else {},
    } | more  # fmt: skip


class Socket:
    """One websocket on the scripted server.

    Args:
        app: the application, middlewares included.
        scope: as the server makes it.
        lost: what `send()` does once the peer has gone: it says nothing (hypercorn) or raises (uvicorn).
        cancel_at: the server cancels the task at this step; each call of `receive` and `send` is one.
    """

    def __init__(
        self,
        app: App,
        scope: dict[str, Any] | None = None,
        *,
        lost: str = SAYS_NOTHING,
        cancel_at: int | None = None,
    ) -> None:
        self.app = app
        self.scope = socket_scope() if scope is None else scope
        self.sent: list[Message] = []
        self.gone = False
        self.steps = 0
        self.taken = 0
        self.raised: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self._incoming: deque[Message] = deque([{"type": "websocket.connect"}])
        self._lost = lost
        self._cancel_at = cancel_at
        self._listeners: list[asyncio.Future[None]] = []

    def start(self) -> Self:
        self.task = asyncio.get_running_loop().create_task(self._serve())
        return self

    async def run(self) -> Self:
        return await self.start().end()

    async def end(self, within: float = 5.0) -> Self:
        assert self.task is not None
        done, _ = await asyncio.wait({self.task}, timeout=within)
        assert done, f"the application has not ended after {within:g} s; it sent {self.sent}"
        if self.task.cancelled():
            self.raised = asyncio.CancelledError()
        return self

    async def _serve(self) -> None:
        try:
            await self.app(self.scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001
            self.raised = error

    def say(self, text: str) -> None:
        self._give({"type": "websocket.receive", "text": text})

    def leave(self, code: int = 1006) -> None:
        """Let the peer go. It is told once only."""
        self.gone = True
        self._give({"type": "websocket.disconnect", "code": code})

    def _give(self, message: Message) -> None:
        self._incoming.append(message)
        for listener in self._listeners:
            if not listener.done():
                listener.set_result(None)

    async def receive(self) -> Message:
        self._step()
        while not self._incoming:
            listener = asyncio.get_running_loop().create_future()
            self._listeners.append(listener)
            try:
                await listener
            finally:
                self._listeners.remove(listener)
        self.taken += 1
        return self._incoming.popleft()

    async def send(self, message: Message) -> None:
        self._step()
        if self.gone:
            if self._lost == RAISES:
                raise ConnectionResetError("the peer has gone")
            return
        self.sent.append(message)
        await asyncio.sleep(0)

    def _step(self) -> None:
        self.steps += 1
        if self.steps - 1 == self._cancel_at:
            assert self.task is not None
            self.task.cancel()

    # -- what was on the wire ------------------------------------------------------------------------------------------

    @property
    def types(self) -> list[str]:
        return [each["type"].removeprefix("websocket.") for each in self.sent]

    @property
    def texts(self) -> list[str]:
        return [each["text"] for each in self.sent if each["type"] == "websocket.send"]

    @property
    def denial(self) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Status, headers and problem document of a denial response."""
        start, body = self.sent
        assert (start["type"], body["type"]) == (
            "websocket.http.response.start", "websocket.http.response.body",
        )  # fmt: skip
        assert not body["more_body"]
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        assert len(headers) == len(start["headers"])
        assert int(headers["content-length"]) == len(body["body"])
        return start["status"], headers, json.loads(body["body"])
