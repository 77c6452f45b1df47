"""The service behind the proxies: one slot, and it tells what became of the requests."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from resilient_mw import ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware

seen = {"asked": 0, "cancelled": 0}


async def _answer(send: Any, found: object) -> None:
    body = json.dumps(found).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Any) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    await asyncio.sleep(25)
    await send({"type": "http.response.body", "body": b"data: 2\n\n"})


async def service(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    path = scope["path"]
    if path == "/state":
        await _answer(send, seen | {"pid": os.getpid(), "left": current().remaining()})
        return
    if path not in app.protection.policy.exempt_paths:
        seen["asked"] += 1
    if path == "/hold":
        try:
            await asyncio.sleep(25)
        except asyncio.CancelledError:
            seen["cancelled"] += 1
            raise
    if path == "/events":
        await _stream(send)
        return
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    await _answer(send, {"left": current().remaining(), "headers": headers})


app = ResilienceMiddleware(
    service,
    ServerPolicy(
        limit=1,
        queue=0,
        deadline_default=28,
        deadline_maximum=30,
        trusted_peers=["127.0.0.1/32"],
        trusted_hops=1,
        exempt_paths=["/state", "/readyz", "/left"],
    ),
)
