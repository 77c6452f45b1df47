"""An application behind our own middleware, with one slot and no queue: what it was asked is counted and told.

`/hold/<seconds>` keeps the slot, `/status/<code>` answers with a status, `/slow` waits for its cancellation, `/count` tells
what each path was asked and what became of it, `/free` needs no slot; everything else is an order.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware

asked: Counter[str] = Counter()


async def inner(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    path = scope["path"]
    asked[path] += 1
    status, body = 200, b"ok"
    if path.startswith("/hold/"):
        await asyncio.sleep(float(path.rpartition("/")[2]))
    elif path.startswith("/status/"):
        status = int(path.rpartition("/")[2])
    elif path == "/slow":
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            asked["cancelled"] += 1
            raise
    elif path == "/count":
        body = json.dumps(asked).encode()
        asked.clear()
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


app = ResilienceMiddleware(inner, ServerPolicy(limit=1, queue=0, exempt_paths=("/count", "/free")))
