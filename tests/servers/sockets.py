"""The application of the websocket tests: few places, handlers that listen, only send or close, and a look inside."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.runtime.guard import guard_of
from tests.servers import probe  # noqa: F401  ends the server with the tests

LIMIT = 3

POLICY = ServerPolicy(
    limit=2, websocket_limit=LIMIT, exempt_paths=["/state", "/drain"], routes=[RouteRule("/monitor", priority="exempt")]
)  # fmt: skip
COUNTS = {"begun": 0}


async def listen(receive: Any, send: Any) -> None:
    """Send back what comes."""
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


async def tick(receive: Any, send: Any) -> None:
    """Send only."""
    while True:
        await send({"type": "websocket.send", "text": "tick"})
        await asyncio.sleep(0.05)


async def work(receive: Any, send: Any) -> None:
    """Neither send nor listen, but have it told."""
    gone = asyncio.Event()
    current().on_cancel(lambda _: gone.set())
    await gone.wait()


HANDLERS = {"/listen": listen, "/tick": tick, "/work": work, "/monitor": listen}


async def routed(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
    elif scope["type"] == "websocket":
        COUNTS["begun"] += 1
        await receive()
        await send({"type": "websocket.accept"})
        await HANDLERS[scope["path"]](receive, send)
    else:
        if scope["path"] == "/drain":
            POLICY.drain()
        snapshot = guard_of(POLICY).snapshot()
        assert snapshot.websockets is not None
        figures = {
            "open": sum(snapshot.websockets.opened.values()),
            "errors": snapshot.guard_errors,
            "tasks": sum("Connection." in task.get_coro().__qualname__ for task in asyncio.all_tasks()),  # type: ignore[union-attr]
            "gone": sum(each.outcomes.get("client_disconnect", 0) for each in snapshot.websockets.routes),
            **COUNTS,
        }
        body = json.dumps(figures).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


app = ResilienceMiddleware(routed, POLICY)
