"""A service that calls others, on both stacks, and those whom it calls.

ASGI: an async handler with `httpx.AsyncClient` behind uvicorn. WSGI: a sync handler with `httpx.Client` behind waitress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import flask
import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from resilient_mw import CancelReason, Dependency, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from resilient_mw_integrations.httpx import (
    AsyncResilientTransport,
    CallExpired,
    CallRefused,
    ResilientTransport,
)
from tests.contract.stacks import behind_uvicorn, behind_waitress

# --- who is called ---


@dataclass
class Received:
    """One request as the called service saw it.

    Attributes:
        at: monotonic instant of its arrival.
        path: what was asked for.
        budget_ms: what the caller said that is left; None: nothing.
        ended_at: instant at which the work ended; None while it goes on.
        reason: why it was cancelled, if it was.
    """

    at: float
    path: str
    budget_ms: int | None
    ended_at: float | None = None
    reason: CancelReason | None = None


@dataclass
class Script:
    """How to answer one request: after `seconds`, with a status and fields."""

    status: int = 200
    seconds: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)


OK = Script()


class Called:
    """A service that is called. It answers by a script and keeps what it received.

    Attributes:
        scripts: for the next requests, one each; afterwards `always`.
        received: the requests, in order.
        most: most of them at work at once.
        url: where it is.
    """

    def __init__(self, *scripts: Script, always: Script = OK) -> None:
        self.scripts = list(scripts)
        self.always = always
        self.received: list[Received] = []
        self.most = 0
        self.url = ""
        self._now = 0

    async def work(self, request: Request) -> JSONResponse:
        told = request.headers.get("x-request-timeout-ms")
        seen = Received(time.monotonic(), request.url.path, None if told is None else int(told))
        self.received.append(seen)
        script = self.scripts.pop(0) if self.scripts else self.always
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await asyncio.sleep(script.seconds)
        except asyncio.CancelledError:
            seen.reason = current().cancel_reason
            raise
        finally:
            self._now -= 1
            seen.ended_at = time.monotonic()
        return JSONResponse({}, script.status, headers=dict(script.headers))


@contextmanager
def called(*scripts: Script, always: Script = OK) -> Iterator[Called]:
    """Serve a service that is called; it is protected itself, so that it stops when its caller has gone."""
    service = Called(*scripts, always=always)
    app = FastAPI()
    app.add_middleware(AsgiMiddleware, policy=ServerPolicy(limit=1000, name="called"))
    app.add_api_route("/{path:path}", service.work, methods=["GET"], response_model=None)
    with behind_uvicorn(app) as port:
        service.url = f"http://127.0.0.1:{port}"
        yield service


def dependency(name: str, service: Called, **fields: Any) -> Dependency:
    """Return the service as a dependency; a busy machine may take a while to connect."""
    return Dependency(name, match=f"{service.url}/*", connect_timeout=5.0, **fields)


# --- who calls ---

CONNECTIONS = 10
"""Connections in the one pool that the calls to all dependencies share."""


def answered(response: httpx.Response) -> tuple[dict[str, Any], int]:
    """Return what a caller is told about a call that was answered: body and status."""
    return {"called": response.status_code}, 200 if response.status_code == 200 else 502


def failed(error: httpx.TransportError) -> tuple[dict[str, Any], int]:
    """Return what a caller is told about a call that was not answered."""
    if isinstance(error, CallExpired):
        return {"phase": error.phase}, 504
    if isinstance(error, CallRefused):
        return {"refused": error.reason}, 503
    return {"error": type(error).__name__}, 502


def async_caller(policy: ServerPolicy, targets: Mapping[str, str], calls: list[Dependency]) -> FastAPI:
    limits = httpx.Limits(max_connections=CONNECTIONS)
    client = httpx.AsyncClient(transport=AsyncResilientTransport(calls, limits=limits), timeout=None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(AsgiMiddleware, policy=policy)

    @app.get("/call/{target}/{path:path}", response_model=None)
    async def call(target: str, path: str) -> JSONResponse:
        try:
            body, status = answered(await client.get(f"{targets[target]}/{path}"))
        except httpx.TransportError as error:
            body, status = failed(error)
        return JSONResponse(body, status)

    return app


def sync_caller(policy: ServerPolicy, targets: Mapping[str, str], client: httpx.Client) -> flask.Flask:
    app = flask.Flask("caller")
    app.wsgi_app = WsgiMiddleware(app.wsgi_app, policy)  # type: ignore[method-assign]

    @app.get("/call/<target>/<path:path>")
    def call(target: str, path: str) -> tuple[dict[str, Any], int]:
        try:
            return answered(client.get(f"{targets[target]}/{path}"))
        except httpx.TransportError as error:
            return failed(error)

    return app


@contextmanager
def caller(stack: str, *dependencies: Dependency, **policy: Any) -> Iterator[int]:
    """Serve a service that makes the call `/{path}` to a dependency when it is asked for `/call/{name}/{path}`.

    Args:
        stack: `asgi` or `wsgi`.
        dependencies: whom it may call; each matches one host and all paths below it.
        **policy: fields of its own `ServerPolicy`.
    """
    server_policy = ServerPolicy(name="caller", **policy)
    targets = {each.name: each.rules[0].pattern.removesuffix("/*") for each in dependencies}
    if stack == "asgi":
        with behind_uvicorn(async_caller(server_policy, targets, list(dependencies))) as port:
            yield port
        return
    limits = httpx.Limits(max_connections=CONNECTIONS)
    threads = server_policy.slots + server_policy.queue_length + 8
    client = httpx.Client(transport=ResilientTransport(dependencies, limits=limits), timeout=None)
    with client, behind_waitress(sync_caller(server_policy, targets, client), threads) as port:
        yield port
