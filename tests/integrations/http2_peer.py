"""An application for a peer that speaks HTTP/2. `/after/<seconds>` waits before its answer, `/drip` never ends it."""

from __future__ import annotations

import asyncio
from typing import Any


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    told = dict(scope["headers"]).get(b"x-request-timeout-ms", b"")
    if scope["path"].startswith("/after/"):
        await asyncio.sleep(float(scope["path"].rpartition("/")[2]))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while scope["path"] == "/drip":
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(0.02)
    await send({"type": "http.response.body", "body": told})
