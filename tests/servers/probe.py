"""The application that the servers of these tests run: handlers that go wrong in known ways, and a look inside."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from resilient_mw import PriorityClass, RouteRule, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.marks import Mark
from resilient_mw.core.routes import Route as MarkedRoute
from resilient_mw.runtime import protection
from resilient_mw.runtime.awaits import chain_of
from resilient_mw.runtime.guard import guard_of

LIMIT = 20
MAX_WAIT = 1.5

POLICY = ServerPolicy(
    limit=LIMIT,
    queue=1,
    max_wait=MAX_WAIT,
    classes=[PriorityClass("normal", weight=1)],
    exempt_paths=["/healthz", "/state", "/go"],
    routes=[RouteRule("/hold", cost=LIMIT)],  # one of these, and every slot is taken
)


def _end_with(owner: int) -> None:
    """End this server, workers included, when the process that runs the tests is gone without having ended it."""

    def watch() -> None:
        while True:
            time.sleep(1.0)
            try:
                os.kill(owner, 0)
            except ProcessLookupError:
                os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="end with the tests", daemon=True).start()


if "PROBE_OWNER" in os.environ:
    _end_with(int(os.environ["PROBE_OWNER"]))


class Seen:
    """What the handlers saw since the start, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: dict[str, int] = {}

    def count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + by


SEEN = Seen()


async def _respond(send: Any, body: bytes, *, status: int = 200) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _sleep(seconds: float) -> None:
    SEEN.count("begun")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        SEEN.count("cancelled")
        SEEN.count(f"cancelled: {current().cancel_reason}")
        raise
    SEEN.count("finished")


async def _held() -> None:
    """Go on until somebody says so at `/go`."""
    before = SEEN.counts.get("go", 0)
    SEEN.count("begun")
    try:
        for _ in range(3000):
            if SEEN.counts.get("go", 0) > before:
                break
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        SEEN.count("cancelled")
        raise
    SEEN.count("finished")


async def sleep(scope: Any, receive: Any, send: Any) -> None:
    await _sleep(30)
    await _respond(send, b"slept")


async def hold(scope: Any, receive: Any, send: Any) -> None:
    await _held()
    await _respond(send, b"held")


async def go(scope: Any, receive: Any, send: Any) -> None:
    SEEN.count("go")
    await _respond(send, b"gone")


async def listen(scope: Any, receive: Any, send: Any) -> None:
    """Have one listener wait for the disconnect, and ask twice more when the caller has gone."""
    listener = asyncio.create_task(_told(receive))
    LISTENERS.add(listener)
    listener.add_done_callback(LISTENERS.discard)
    try:
        await _sleep(30)
    finally:
        for _ in range(2):
            await _told(receive)


async def _told(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    SEEN.count("told")


LISTENERS: set[Any] = set()


async def tidy(scope: Any, receive: Any, send: Any) -> None:
    """Take long over the clean-up."""
    try:
        await _sleep(30)
    finally:
        await asyncio.sleep(3.5)
        SEEN.count("tidied")


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await _respond(send, b"hello")


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await _respond(send, body)


async def background(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await _respond(send, b"accepted")
    await _held()


async def brief(scope: Any, receive: Any, send: Any) -> None:
    """Work on for a moment behind the answer."""
    await receive()
    await _respond(send, b"accepted")
    await _sleep(0.3)


async def stream(scope: Any, receive: Any, send: Any) -> None:
    SEEN.count("begun")
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    )
    try:
        for number in range(1000):
            await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
            await asyncio.sleep(0.1)
    finally:
        SEEN.count("stream ended")


async def large(scope: Any, receive: Any, send: Any) -> None:
    """Answer with more than any server keeps for a caller who takes nothing."""
    SEEN.count("begun")
    size = 2_000_000
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(size).encode())]}
    )
    for start in range(0, size, 20_000):
        await send({"type": "http.response.body", "body": b"x" * 20_000, "more_body": start + 20_000 < size})


def _is_inside_ours(task: asyncio.Task[Any]) -> bool:
    return any(getattr(step, "__qualname__", "") == "ResilienceMiddleware._http" for step in chain_of(task))


async def state(scope: Any, receive: Any, send: Any) -> None:
    snapshot = guard_of(POLICY).snapshot()
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
    others = asyncio.all_tasks() - {asyncio.current_task()}
    figures = {
        "slots": sum(each.slots for each in snapshot.classes if each.priority != "exempt"),
        "queued": sum(each.queued for each in snapshot.classes),
        "errors": snapshot.guard_errors,
        "late": sum(route.late for route in snapshot.routes),
        "readers": sum(name.startswith("Channel.") for name in names),
        "served": sum(_is_inside_ours(task) for task in others),
        **SEEN.counts,
    }
    await _respond(send, json.dumps(figures).encode())


def thread(request: Request) -> PlainTextResponse:
    """Work in a thread of the framework's pool, as every sync endpoint does."""
    SEEN.count("threads", 1)
    time.sleep(float(request.query_params.get("seconds", "0.7")))
    SEEN.count("threads", -1)
    SEEN.count("thread ended")
    return PlainTextResponse("slept")


async def work(request: Request) -> PlainTextResponse:
    await _sleep(0.2)
    return PlainTextResponse("x" * 10_000)


async def framework_background(request: Request) -> PlainTextResponse:
    return PlainTextResponse("accepted", background=BackgroundTask(_held))


framework = Starlette(
    routes=[
        Route("/thread", thread),
        Route("/work", work),
        Route("/framework/background", framework_background),
    ]
)

RAW = {
    f"/{each.__name__}": each for each in (sleep, hold, go, listen, tidy, hello, echo, background, brief, stream, large, state)
} | {"/healthz": hello}  # fmt: skip


async def routed(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            SEEN.count(phase)
            await send({"type": f"lifespan.{phase}.complete"})
    else:
        await RAW.get(scope["path"], framework)(scope, receive, send)


if os.environ.get("PROBE_WRONG_MARK"):

    class _Resolver:
        def routes(self) -> list[MarkedRoute]:
            return [MarkedRoute("/vip", Mark(priority="vip"))]

    vars(protection)["find_resolver"] = lambda apps: _Resolver()

app = ResilienceMiddleware(routed, POLICY)
