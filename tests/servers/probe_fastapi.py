"""The probe once more, on FastAPI and among function middlewares (`@app.middleware("http")`)."""

from __future__ import annotations

from typing import Any

import fastapi

from resilient_mw.asgi import ResilienceMiddleware
from tests.servers.probe import POLICY, SEEN, _sleep, state

framework = fastapi.FastAPI()


@framework.get("/sleep")
async def sleep(request: fastapi.Request) -> str:
    try:
        await _sleep(30)
    finally:
        SEEN.count("is_disconnected", await request.is_disconnected())
    return "slept"


@framework.get("/work")
async def work() -> str:
    await _sleep(0.2)
    return "x" * 10_000


@framework.get("/thread")
def thread(seconds: float) -> str:
    import time

    time.sleep(seconds)
    return "slept"


async def _no_op(request: fastapi.Request, call_next: Any) -> Any:
    return await call_next(request)


def _with_state(application: Any) -> Any:
    async def routed(scope: Any, receive: Any, send: Any) -> None:
        await (state if scope["path"] == "/state" else application)(scope, receive, send)

    return routed


def _layered(layers: int, *, ours_first: bool) -> Any:
    """Return the application with function middlewares outside ours (ours_first) or inside it."""
    application = fastapi.FastAPI(routes=framework.routes)
    if ours_first:
        application.add_middleware(ResilienceMiddleware, policy=POLICY)
    for _ in range(layers):
        application.middleware("http")(_no_op)
    if not ours_first:
        application.add_middleware(ResilienceMiddleware, policy=POLICY)
    return _with_state(application)


above = _layered(4, ours_first=False)
below = _layered(1, ours_first=True)
