"""The application of `test_stream_matrix.py`: events, silence, downloads, uploads and files, each with its rule, and a look inside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from resilient_mw import RouteRule, ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.runtime.guard import guard_of
from tests.servers import probe

LIMIT = 2
STREAMS = 25
IDLE = 1.5
DEADLINE = 1.2
LARGE = 8_000_000
PART = 40_000

POLICY = ServerPolicy(
    limit=LIMIT,
    queue=STREAMS,
    stream_limit=STREAMS,
    routes=[
        RouteRule("/events", slot="head", deadline_covers="head", deadline_default=DEADLINE),
        RouteRule("/silent", slot="head", deadline_covers="head", deadline_default=DEADLINE),
        RouteRule("/quiet", slot="head", deadline_idle=IDLE),
        RouteRule("/large", slot="head", deadline_idle=IDLE),
        RouteRule("/upload", deadline_idle=IDLE, deadline_default=DEADLINE),
        RouteRule("/special/*", slot="head", deadline_covers="gaps"),
    ],
)
SEEN = probe.Seen()


async def _numbers(pause: float) -> AsyncIterator[bytes]:
    SEEN.count("begun")
    number = 0
    try:
        while True:
            yield b"data: %d\n\n" % number
            number += 1
            await asyncio.sleep(pause)
    finally:
        SEEN.count("closed")
        print("a stream was closed", flush=True)


async def events(request: Request) -> StreamingResponse:
    return StreamingResponse(_numbers(0.1), media_type="text/event-stream")


async def quiet(request: Request) -> StreamingResponse:
    return StreamingResponse(_numbers(30.0), media_type="text/event-stream")


async def large(scope: Any, receive: Any, send: Any) -> None:
    SEEN.count("begun")
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(LARGE).encode())]}
    )
    try:
        for start in range(0, LARGE, PART):
            await send({"type": "http.response.body", "body": b"x" * PART, "more_body": start + PART < LARGE})
        SEEN.count("sent")
    finally:
        SEEN.count("closed")


async def upload(scope: Any, receive: Any, send: Any) -> None:
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await _respond(send, str(size).encode())


async def special(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what not every server can: hints before the head, a file by its path, trailers."""
    extensions = scope.get("extensions") or {}
    kind = scope["path"].rpartition("/")[2]
    if f"http.response.{kind}" not in extensions:
        await _respond(send, b"the server cannot")
        return
    if kind == "early_hint":
        await send({"type": "http.response.early_hint", "links": [b"</a.css>; rel=preload"]})
        await _respond(send, b"hinted")
    elif kind == "pathsend":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.pathsend", "path": __file__})
    elif kind == "trailers":
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": b"trailed", "more_body": False})
        await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"7")], "more_trailers": False})


async def state(scope: Any, receive: Any, send: Any) -> None:
    snapshot = guard_of(POLICY).snapshot()
    assert snapshot.streams is not None
    ended: dict[str, int] = {}
    for route in snapshot.streams.routes:
        for outcome, count in route.ended.items():
            ended[outcome] = ended.get(outcome, 0) + count
    longest = max((each.run.total for each in snapshot.routes if each.route != "/upload"), default=0.0)
    figures = {
        "slots": sum(each.slots for each in snapshot.classes if each.priority != "exempt"),
        "open": sum(each.opened for each in snapshot.streams.routes),
        "errors": snapshot.guard_errors,
        "longest": longest,
        **{f"ended: {outcome}": count for outcome, count in ended.items()},
        **SEEN.counts,
    }
    await _respond(send, json.dumps(figures).encode())


async def _respond(send: Any, body: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


framework = Starlette(routes=[Route("/events", events), Route("/silent", quiet), Route("/quiet", quiet)])
RAW = {"/large": large, "/upload": upload, "/healthz": state, "/special": special}


async def routed(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await probe.routed(scope, receive, send)
        return
    handler: Any = RAW.get("/special" if scope["path"].startswith("/special/") else scope["path"], framework)
    await handler(scope, receive, send)


app = ResilienceMiddleware(routed, POLICY)
