"""A minimal protocol shell around the supervisor, and a scripted server under it.

It does what the ASGI middleware does with the supervisor and nothing else, so that these tests show what the
supervisor does. Times are real and short: a deadline of 100 ms. "On time" leaves room for a machine that is busy with
something else; what would be late is held until the test says so, or takes 5 s.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.context import CURRENT
from resilient_mw.runtime.supervise import Supervised, Supervisor

Message = dict[str, Any]
App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]

DEADLINE = 0.1
ON_TIME = 2.0


@dataclass
class Outcome:
    """What the server and the owner of the slots saw. Times count from the arrival."""

    messages: list[Message] = field(default_factory=list)
    arrived: float = 0.0
    answered_at: float | None = None
    returned_at: float | None = None
    released_at: float | None = None
    releases: int = 0
    raised: BaseException | None = None
    app_raised: type[BaseException] | None = None
    dropped: int = 0
    late: int = 0
    cancelling: int = -1
    exchange: Exchange | None = None

    def disconnect(self) -> None:
        """Let the client leave."""
        assert self.exchange is not None
        self.exchange.disconnect()

    def freed_after(self, instant: float) -> float:
        """Return how long after an instant of the clock the slot came back."""
        assert self.released_at is not None
        return self.arrived + self.released_at - instant

    @property
    def status(self) -> int | None:
        heads = [message["status"] for message in self.messages if message["type"] == "http.response.start"]
        assert len(heads) <= 1
        return heads[0] if heads else None

    @property
    def finished(self) -> bool:
        """Whether the server got a last body message."""
        return any(m["type"] == "http.response.body" and not m.get("more_body", False) for m in self.messages)


class Exchange(Supervised):
    """One request, as the scripted server and the shell see it."""

    __slots__ = (
        "_disconnected",
        "_head",
        "_listeners",
        "answer",
        "arrived",
        "outcome",
        "supervisor",
        "watched_at",
    )

    def __init__(self, supervisor: Supervisor, deadline: float, outcome: Outcome, arrived: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        now = time.monotonic()
        super().__init__(task, now + deadline, now)
        self.supervisor = supervisor
        self.outcome = outcome
        self.arrived = arrived
        self.answer: asyncio.Task[None] | None = None
        self.watched_at: float | None = None
        self._head = True
        self._disconnected = False
        self._listeners: set[asyncio.Future[None]] = set()

    async def receive(self) -> Message:
        if self._head:
            self._head = False
            return {"type": "http.request", "body": b"", "more_body": False}
        if not self._disconnected:
            listener = asyncio.get_running_loop().create_future()
            self._listeners.add(listener)
            try:
                await listener
            finally:
                self._listeners.discard(listener)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.reason is not None:
            self.outcome.dropped += 1
            return
        if message["type"] == "http.response.start":
            self.started = True
        self.to_server(message)
        await asyncio.sleep(0)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True

    def to_server(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.outcome.answered_at = time.monotonic() - self.arrived
        self.outcome.messages.append(message)

    def disconnect(self) -> None:
        """Let the client leave. Whoever listens already hears of it from the supervisor, in its time."""
        self._disconnected = True
        self.supervisor.fire_soon(self, CancelReason.CLIENT_DISCONNECT)

    def on_expired(self) -> None:
        self.answer = asyncio.get_running_loop().create_task(self._expired(), context=Context())

    async def _expired(self) -> None:
        self.to_server({"type": "http.response.start", "status": 504, "headers": []})
        self.to_server({"type": "http.response.body", "body": b""})

    def start_watching(self) -> None:
        assert self.watched_at is None
        self.watched_at = time.monotonic() - self.arrived

    def offer_disconnect(self) -> bool:
        self._disconnected = True
        listening = bool(self._listeners)
        for listener in self._listeners:
            if not listener.done():
                listener.set_result(None)
        return listening

    def late(self) -> None:
        self.outcome.late += 1


class Shell:
    """The shell: what an ASGI middleware does with the supervisor."""

    def __init__(self, app: App, deadline: float = DEADLINE) -> None:
        self.app = app
        self.deadline = deadline
        self.supervisor = Supervisor(asyncio.get_running_loop())
        self.taken = 0
        self.exchange: Exchange | None = None

    async def __call__(self, scope: dict[str, Any], outcome: Outcome, deadline: float | None = None) -> None:
        arrived = outcome.arrived = time.monotonic()
        released = False

        def release() -> None:
            nonlocal released
            assert not released
            released = True
            outcome.released_at = time.monotonic() - arrived
            outcome.releases += 1
            self.taken -= 1

        self.taken += 1
        exchange = Exchange(
            self.supervisor, self.deadline if deadline is None else deadline, outcome, arrived
        )
        self.exchange = outcome.exchange = exchange
        error: BaseException | None = None
        self.supervisor.enter(exchange)
        token = CURRENT.set(exchange)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except BaseException as caught:
            outcome.app_raised = type(caught)  # not itself: its traceback leads back here
            if exchange.reason is None:
                raise
            error = caught
        finally:
            CURRENT.reset(token)
            self.supervisor.leave(exchange, release)
        if exchange.reason is not None:
            try:
                await self.supervisor.settle(exchange, error, exchange.answer)
            finally:
                error = None


def http_scope(path: str = "/", **more: Any) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"test")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        "extensions": {},
    } | more  # fmt: skip


async def serve(
    shell: Shell,
    path: str = "/",
    deadline: float | None = None,
    *,
    outcome: Outcome | None = None,
    **more: Any,
) -> Outcome:
    """Serve one request in a task of its own, as servers do."""
    outcome = Outcome() if outcome is None else outcome
    arrived = time.monotonic()

    async def connection() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await shell(http_scope(path, **more), outcome, deadline)
        finally:
            outcome.returned_at = time.monotonic() - arrived
            outcome.cancelling = task.cancelling()

    task = asyncio.create_task(connection())
    await asyncio.wait([task])
    outcome.raised = asyncio.CancelledError() if task.cancelled() else task.exception()
    return outcome


async def run(app: App, path: str = "/", deadline: float = DEADLINE, **more: Any) -> Outcome:
    """Serve one request through a new shell and wait until its slot is free."""
    shell = Shell(app, deadline)
    outcome = await serve(shell, path, **more)
    await until(lambda: shell.taken == 0)
    return outcome


class Held:
    """Work in threads that goes on until the test says so.

    Attributes:
        release: ends it.
        ended: instants at which it ended.
    """

    def __init__(self) -> None:
        self.release = threading.Event()
        self.ended: list[float] = []

    def work(self) -> None:
        self.release.wait(10)
        self.ended.append(time.monotonic())


async def run_held(app: App, held: Held, *, late: bool = False) -> Outcome:
    """Serve one request through a new shell; end the work in threads when the answer, and the note of late work, is out."""
    shell, outcome = Shell(app, 3 * DEADLINE), Outcome()  # the work is in its threads by then
    serving = asyncio.create_task(serve(shell, outcome=outcome))
    try:
        await until(lambda: outcome.answered_at is not None and (outcome.late == 1 or not late))
        assert outcome.releases == 0
    finally:
        held.release.set()
    await serving
    await until(lambda: shell.taken == 0)
    return outcome


async def until(condition: Callable[[], bool], within: float = 5.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.005)


def plain(handler: Callable[[], Awaitable[object]]) -> App:
    """Return an application that awaits `handler` and answers 200."""

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await handler()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    return app


def expired(outcome: Outcome, *, within: float = ON_TIME) -> None:
    """Assert what must hold for every request whose deadline passed before its response began."""
    assert outcome.status == 504
    assert outcome.answered_at is not None
    assert DEADLINE - 0.001 <= outcome.answered_at <= within
    assert outcome.raised is None
    assert outcome.cancelling == 0
    assert outcome.releases == 1


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Assert that afterwards no task is pending and the loop had nothing to complain about."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    before = asyncio.all_tasks()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    try:
        yield
        await until(lambda: not (asyncio.all_tasks() - before), 3.0)
        gc.collect()
        await asyncio.sleep(0)
        assert complaints == []
    finally:
        loop.set_exception_handler(None)
