"""A scripted ASGI server for these tests, with the bad habits that real servers were seen to have.

It records every message, can stall inside `send`, hang or raise there once the caller has gone, tell a disconnect once
only, and cancel the task of a request at a chosen step. `nothing_left()` looks afterwards at what must not remain.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.exchange import HttpExchange
from resilient_mw.core.snapshot import AppSnapshot
from resilient_mw.runtime.context import current
from resilient_mw.runtime.supervise import Supervisor

Message = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

DISCONNECT: Message = {"type": "http.disconnect"}
LATCHED, ONE_SHOT = "latched", "one-shot"
IGNORE, RAISE, HANG = "ignore", "raise", "hang"


def http_scope(path: str = "/", method: str = "GET", **more: Any) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"test")], "client": ("203.0.113.9", 1), "server": ("127.0.0.1", 80), "state": {},
        "extensions": {},
    } | more  # fmt: skip


def budget(milliseconds: object, name: str = "x-request-timeout-ms") -> tuple[bytes, bytes]:
    """Return a deadline header line."""
    return name.encode(), str(milliseconds).encode("latin-1")


class Request:
    """One request on the scripted server.

    Args:
        app: the application, middlewares included.
        scope: as the server makes it.
        body: the parts of the request body; empty: nothing comes before `feed()`.
        telling: a disconnect is told by every `receive()` (uvicorn), or by one only (hypercorn, daphne).
        lost: what `send()` does once the caller has gone: ignore, raise (spec 2.4) or hang (hypercorn HTTP/2).
        cancel_at: the server cancels the task at this step; each call of `receive` and `send` is one.
        stall: `send()` of a message for which this is true waits for `go_on()`.
    """

    def __init__(
        self,
        app: App,
        scope: dict[str, Any] | None = None,
        *,
        body: Iterable[bytes] = (b"",),
        telling: str = LATCHED,
        lost: str = IGNORE,
        cancel_at: int | None = None,
        stall: Callable[[Message], bool] = lambda _: False,
    ) -> None:
        parts = list(body)
        self.app = app
        self.scope = http_scope() if scope is None else scope
        self.messages: list[Message] = []
        self.times: list[float] = []
        self.gone = False
        self.steps = 0
        self.inside_receive = 0
        self.stalled = asyncio.Event()
        self.raised: BaseException | None = None
        self.cancelling = 0
        self.task: asyncio.Task[None] | None = None
        self._incoming: deque[Message] = deque(
            {"type": "http.request", "body": part, "more_body": number < len(parts)}
            for number, part in enumerate(parts, 1)
        )
        self._telling = telling
        self._lost = lost
        self._cancel_at = cancel_at
        self._stall = stall
        self._told = False
        self._listeners: list[asyncio.Future[None]] = []
        self._flowing = asyncio.Event()

    # -- the server's side ---------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin, in a task of its own, as servers do."""
        self.began = time.monotonic()
        self.task = asyncio.get_running_loop().create_task(self._serve())
        return self

    async def run(self, within: float = 5.0) -> Self:
        """Serve the request to its end."""
        return await self.start().end(within)

    async def end(self, within: float = 5.0) -> Self:
        """Wait until the application has returned or raised."""
        assert self.task is not None
        done, _ = await asyncio.wait({self.task}, timeout=within)
        assert done, f"the application has not ended after {within:g} s; it sent {self.messages}"
        if self.task.cancelled():  # before its first step
            self.raised, self.cancelling = asyncio.CancelledError(), self.task.cancelling()
        return self

    async def _serve(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await self.app(self.scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001
            self.raised = error
        self.returned_at = time.monotonic() - self.began
        self.cancelling = task.cancelling()

    def feed(self, body: bytes, *, more_body: bool = True) -> None:
        """Let a part of the body arrive."""
        self._incoming.append({"type": "http.request", "body": body, "more_body": more_body})
        self._wake()

    def disconnect(self) -> None:
        """Let the caller leave."""
        self.gone = True
        self._flowing.set()
        self._wake()

    def cancel(self) -> None:
        """Have the server cancel the task."""
        assert self.task is not None
        self.task.cancel()

    def go_on(self) -> None:
        """Let the `send()` that stalls return."""
        self._flowing.set()

    async def receive(self) -> Message:
        self._step()
        self.inside_receive += 1
        try:
            while True:
                if self._incoming:
                    return self._incoming.popleft()
                if (self.gone or self.complete) and not (self._told and self._telling == ONE_SHOT):
                    self._told = True
                    return dict(DISCONNECT)
                listener = asyncio.get_running_loop().create_future()
                self._listeners.append(listener)
                try:
                    await listener
                finally:
                    self._listeners.remove(listener)
        finally:
            self.inside_receive -= 1

    async def send(self, message: Message) -> None:
        self._step()
        if self.gone:
            if self._lost == RAISE:
                raise ConnectionResetError("the caller has gone")
            if self._lost == HANG:
                await asyncio.get_running_loop().create_future()
            return
        self.times.append(time.monotonic() - self.began)
        self.messages.append(message)
        if self.complete:
            self._wake()
        if self._stall(message):
            self.stalled.set()
            await self._flowing.wait()
        await asyncio.sleep(0)

    def _step(self) -> None:
        self.steps += 1
        if self.steps - 1 == self._cancel_at:
            self.cancel()

    def _wake(self) -> None:
        for listener in self._listeners:
            if not listener.done():
                listener.set_result(None)

    # -- what was on the wire ------------------------------------------------------------------------------------------

    @property
    def starts(self) -> list[Message]:
        return [each for each in self.messages if each["type"] == "http.response.start"]

    @property
    def status(self) -> int | None:
        assert len(self.starts) <= 1, self.messages
        return self.starts[0]["status"] if self.starts else None

    @property
    def body(self) -> bytes:
        return b"".join(
            each.get("body", b"") for each in self.messages if each["type"] == "http.response.body"
        )

    @property
    def problem(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def complete(self) -> bool:
        trailers = any(each.get("trailers") for each in self.starts)
        last = {"http.response.trailers"} if trailers else {"http.response.body", "http.response.pathsend"}
        return any(
            each["type"] in last and not each.get("more_body", False) and not each.get("more_trailers", False)
            for each in self.messages
        )

    def header(self, name: str) -> str | None:
        assert self.starts, self.raised
        values = [value for key, value in self.starts[0].get("headers", []) if key == name.encode()]
        assert len(values) <= 1
        return values[0].decode() if values else None


# -- applications ------------------------------------------------------------------------------------------------------


async def answer(send: Any, body: bytes = b"done", status: int = 200) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]}
    )
    await send({"type": "http.response.body", "body": body})


def plain(handler: Callable[[], Awaitable[object]]) -> App:
    """Return an application that awaits `handler` and answers 200."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await handler()
        await answer(send)

    return app


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, b"hello")


class Counting:
    """An application that waits to be let go on, and counts what it sees of its requests."""

    def __init__(self) -> None:
        self.begun = 0
        self.running = 0
        self.most = 0
        self.cancelled = 0
        self.finished = 0
        self.contexts: list[HttpExchange] = []
        self.gate = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        context = current()
        if isinstance(context, HttpExchange):
            self.contexts.append(context)
        try:
            await self.gate.wait()
            await answer(send)
            self.finished += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


# -- what must hold ----------------------------------------------------------------------------------------------------


def figures(middleware: ResilienceMiddleware) -> AppSnapshot:
    return middleware._guard.snapshot()


def slots(middleware: ResilienceMiddleware) -> int:
    return sum(each.slots for each in figures(middleware).classes)


def queued(middleware: ResilienceMiddleware) -> int:
    return sum(each.queued for each in figures(middleware).classes)


def outcomes(middleware: ResilienceMiddleware) -> dict[str, int]:
    total: dict[str, int] = {}
    for route in figures(middleware).routes:
        for outcome, count in route.outcomes.items():
            total[outcome] = total.get(outcome, 0) + count
    return total


def supervisor_of(middleware: ResilienceMiddleware) -> Supervisor:
    """Return what watches over the requests of the running loop."""
    return middleware._service(asyncio.get_running_loop()).supervisor


def is_idle(middleware: ResilienceMiddleware) -> bool:
    in_flight = supervisor_of(middleware).in_flight
    return slots(middleware) == 0 and queued(middleware) == 0 and not in_flight


def balanced(middleware: ResilienceMiddleware) -> None:
    """Assert that every arrival is accounted for, once nothing runs or waits."""
    for route in figures(middleware).routes:
        assert route.arrived == route.admitted + sum(route.refused.values()) + route.left, route
        assert route.admitted == sum(route.outcomes.values()), route


async def until(condition: Callable[[], bool], within: float = 5.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def nothing_left(*middlewares: ResilienceMiddleware, collect: bool = True) -> AsyncIterator[None]:
    """Assert that afterwards no slot, waiter or task remains and the loop had nothing to complain about.

    Exceptions that nobody retrieves are complained about when they are freed, if need be by the garbage collector.
    """
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    before, handler = asyncio.all_tasks(), loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    try:
        yield
        await until(lambda: all(map(is_idle, middlewares)), 2.0)
        await until(lambda: not (asyncio.all_tasks() - before), 1.0)
        for middleware in middlewares:
            balanced(middleware)
        if collect:
            gc.collect()
        await asyncio.sleep(0)
        assert complaints == []
    finally:
        loop.set_exception_handler(handler)
