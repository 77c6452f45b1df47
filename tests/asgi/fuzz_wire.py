"""The server of the fuzz test: it plays one `RequestPlan` in the time of its loop, and records what passes."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from math import inf
from typing import Any

from resilient_mw.runtime.context import CURRENT
from tests.asgi.driver import DISCONNECT, App, Message, http_scope
from tests.asgi.fuzz_plan import RequestPlan, When


class Wire:
    """One request on the scripted server.

    Attributes:
        out: what the server accepted, with the instants.
        handed: the body messages that it gave out.
        unexpected: messages that it objected to, as servers do with what comes after the end.
        arrived_at, gone_at, returned_at: instants; inf: it did not come to that.
        cancelled_at: the instant of each cancel by the server.
        raised: what left the application.
        restored: whether the context variable was put back.
    """

    def __init__(self, plan: RequestPlan, app: App, loop: asyncio.AbstractEventLoop) -> None:
        self.plan = plan
        self.scope = http_scope(
            plan.path, plan.method, client=(plan.peer, 1),
            headers=[(b"host", b"test"), *((name.encode(), value) for name, value in plan.fields)],
        )  # fmt: skip
        self.out: list[tuple[float, Message]] = []
        self.handed: list[Message] = []
        self.unexpected: list[Message] = []
        self.arrived_at = self.gone_at = self.returned_at = inf
        self.cancelled_at: list[float] = []
        self.raised: BaseException | None = None
        self.restored = False
        self.cancelling = 0
        self.task: asyncio.Task[None] | None = None
        self._app = app
        self._loop = loop
        self._incoming: deque[Message] = deque()
        self._told = False
        self._listeners: list[asyncio.Future[None]] = []
        self._started = False
        self._trailers = False
        self.complete = False

    # -- the script ----------------------------------------------------------------------------------------------------

    def begin(self, context: Context | None) -> None:
        """Let the request arrive."""
        loop, plan = self._loop, self.plan
        delay = 0.0
        for number, (pause, size) in enumerate(plan.body, 1):
            delay += pause
            more = number < len(plan.body) or not plan.ends
            message = {"type": "http.request", "body": bytes(size), "more_body": more}
            if delay:
                loop.call_later(delay, self._feed, message)
            else:
                self._incoming.append(message)
        for when, act in ((plan.leaves, self.leave), (plan.cancelled, self.cancel)):
            if when is not None and when.what == "at":
                loop.call_later(when.number, act)
        self.task = loop.create_task(self._serve(), context=context)

    async def _serve(self) -> None:
        task, before = self.task, CURRENT.get()
        self.arrived_at = self._loop.time()
        assert task is not None
        try:
            await self._app(self.scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001
            self.raised = error
        self.returned_at = self._loop.time()
        self.cancelling = task.cancelling()
        self.restored = CURRENT.get() is before

    def leave(self) -> None:
        """Let the caller disconnect; after his answer, or before."""
        if self.gone_at == inf:
            self.gone_at = self._loop.time()
            if self.plan.drops_body:
                self._incoming.clear()
            self._wake()

    def cancel(self) -> None:
        """Have the server cancel the task."""
        if self.task is not None and not self.task.done():
            self.cancelled_at.append(self._loop.time())
            self.task.cancel()

    def _feed(self, message: Message) -> None:
        if self.gone_at == inf:
            self._incoming.append(message)
            self._wake()

    def _count(self, what: str, number: int) -> None:
        for when, act in ((self.plan.leaves, self.leave), (self.plan.cancelled, self.cancel)):
            if when == When(what, number):
                act()

    # -- what the application calls ------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        while True:
            if self._incoming:
                message = self._incoming.popleft()
                self.handed.append(message)
                self._count("received", len(self.handed))
                return message
            if (self.gone_at < inf or self.complete) and not (self._told and self.plan.once):
                self._told = True
                return dict(DISCONNECT)
            listener = self._loop.create_future()
            self._listeners.append(listener)
            try:
                await listener
            except asyncio.CancelledError:
                if listener.done() and not listener.cancelled():
                    self._wake()  # it was woken for nothing, so that the next one has to be
                raise
            finally:
                self._listeners.remove(listener)

    def _wake(self) -> None:
        for listener in self._listeners:
            if not listener.done():
                listener.set_result(None)
                if self.plan.wakes_one:
                    return

    async def send(self, message: Message) -> None:
        if self.gone_at < inf:
            if self.plan.lost == "raise":
                raise ConnectionResetError("the caller has gone")
            if self.plan.lost == "hang":
                await self._loop.create_future()
            return
        if not self._is_legal(message):
            self.unexpected.append(message)
            raise RuntimeError(f"unexpected message {message['type']!r}")
        self.out.append((self._loop.time(), message))
        self._count("sent", len(self.out))
        if self.complete:
            self._wake()
        await asyncio.sleep(self.plan.slow)

    def _is_legal(self, message: Message) -> bool:
        """Follow the protocol: hints, one start, a body, trailers if they were announced, and nothing afterwards."""
        kind: str = message["type"]
        if self.complete:
            return False
        if kind == "http.response.early_hint":
            return True
        if kind == "http.response.start":
            if self._started:
                return False
            self._started, self._trailers = True, bool(message.get("trailers"))
            return True
        if not self._started:
            return False
        if kind == "http.response.trailers":
            self.complete = True
            return self._trailers
        more: Any = message.get("more_body", False)
        self.complete = not more and not self._trailers
        return True
