"""Calls by requests, urllib3 and aiohttp to a real server with our middleware in it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from resilient_mw import ServerPolicy, budget, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.dependency import Dependency
from tests.integrations.client_wires import client, every_client

__all__ = ["client"]


async def left(request: Request) -> JSONResponse:
    body = await request.body()
    return JSONResponse({"left": current().remaining(), "size": len(body)})


async def numbers(request: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"x" * 1000

    return StreamingResponse(parts())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    inner = Starlette(routes=[Route("/left", left, methods=["GET", "PUT"]), Route("/numbers", numbers)])
    app = ResilienceMiddleware(inner, ServerPolicy(limit=50))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@every_client
def test_the_budget_arrives(client: Any, url: str) -> None:
    prices = Dependency("prices", match=f"{url}/*", retry=RetryPolicy())
    client.open([prices], 2)
    for seconds in (1.0, 0.5):
        with budget(seconds):
            answer = client.get(url + "/left")
        assert answer.status == 200
        told: Any = answer.body.decode()
        assert seconds - 0.3 < float(told.partition('"left":')[2].partition(",")[0]) < seconds
    assert b'"size":2' in client.request("PUT", url + "/left", data=client.once()).body
    assert prices.snapshot().in_use == 0


@every_client
def test_streams_that_are_read_and_streams_that_are_left(client: Any, url: str) -> None:
    prices = Dependency("prices", match=f"{url}/*", bulkhead=1, retry=None)
    client.open([prices], 1)
    for _ in range(3):
        assert len(client.get(url + "/numbers").body) == 200_000
        client.close(client.send("GET", url + "/numbers"))
        assert prices.snapshot().in_use == 0
