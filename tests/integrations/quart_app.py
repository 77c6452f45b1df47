"""A Quart application that says what becomes of its views, for real servers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from quart import Blueprint, Quart, websocket

from resilient_mw import RouteRule, current
from resilient_mw_integrations.quart import Resilience

app = Quart("shop", static_folder=None)
resilience = Resilience(
    app,
    limit=4,
    queue=0,
    deadline_default=20.0,
    exempt_paths=("/health", "/state"),
    # Marks need the package installed, and these servers run in the tree.
    routes=[RouteRule("/thread", deadline_default=0.2), RouteRule("/background", deadline_default=0.3)],
)
counts: Counter[str] = Counter()
api = Blueprint("api", "x", url_prefix="/api")


@app.get("/health")
async def health() -> str:
    return "ok"


@app.get("/state")
async def state() -> dict[str, Any]:
    seen = resilience.policy_of(app).snapshot()
    taken = sum(each.slots for each in seen.classes if each.priority != "exempt")
    sockets = {} if seen.websockets is None else seen.websockets.opened
    return {"counts": counts, "slots": taken, "sockets": sum(sockets.values())}


@api.get("/sleep/<int:number>")
async def sleep(number: int) -> str:
    counts["begun"] += 1
    try:
        await asyncio.sleep(number)
    except asyncio.CancelledError:
        counts[f"cancelled: {current().cancel_reason}"] += 1
        raise
    return "slept"


@app.get("/thread")
def thread() -> str:
    time.sleep(1.5)
    counts["thread returned"] += 1
    return "late"


@app.get("/stream")
async def stream() -> Any:
    async def parts() -> AsyncIterator[bytes]:
        try:
            for number in range(1000):
                yield b"%d\n" % number
                await asyncio.sleep(0.01)
        finally:
            counts["stream closed"] += 1

    return parts(), {"Content-Type": "text/plain"}


@app.get("/short")
async def short() -> Any:
    async def parts() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d %d\n" % (number, current().remaining() > 0)

    return parts(), {"Content-Type": "text/plain"}


@app.post("/upload")
async def upload() -> str:
    from quart import request

    return str(len(await request.get_data()))


@app.get("/background")
async def background() -> str:
    async def work() -> None:
        await asyncio.sleep(0.8)
        counts["background done"] += 1

    app.add_background_task(work)
    return "promised"


@app.websocket("/echo")
async def echo() -> None:
    while True:
        await websocket.send(await websocket.receive())


app.register_blueprint(api)
