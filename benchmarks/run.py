"""Measure what the middleware adds to a request, beside a wrapper that does nothing and beside its peers.

    python benchmarks/run.py [--rounds N]

CPU time per request, in process, rounds interleaved so that a drift of the machine hits everybody alike; medians. Read
the ratios: absolute figures belong to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.runtime.guard import guard_of
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware

REQUESTS = 3_000
TOGETHER = 50

Message = dict[str, Any]
Case = Callable[[], float]


async def raw_asgi(scope: Message, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class NoOp:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class NoOpBase(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(message: Message) -> None:
    pass


def scope() -> Message:
    names = (
        "host",
        "user-agent",
        "accept",
        "accept-encoding",
        "cookie",
        "x-request-id",
        "traceparent",
        "via",
    )
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": "/item", "raw_path": b"/item", "query_string": b"", "root_path": "",
        "headers": [(name.encode(), b"some value") for name in names], "client": ("127.0.0.1", 1), "server": ("x", 80),
    }  # fmt: skip


def asgi(app: Any) -> Case:
    """Return a case: CPU microseconds per request, a task each as a server makes them, 50 at once."""

    async def run() -> float:
        for _ in range(200):
            await app(scope(), receive, send)
        scopes = [scope() for _ in range(REQUESTS)]
        began = time.process_time()
        for start in range(0, REQUESTS, TOGETHER):
            calls: Iterable[Awaitable[None]] = (
                app(each, receive, send) for each in scopes[start : start + TOGETHER]
            )
            await asyncio.gather(*calls)
        return (time.process_time() - began) / REQUESTS * 1e6

    return lambda: asyncio.run(run())


def raw_wsgi(environ: Message, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


def noop_wsgi(environ: Message, start_response: Any) -> Iterable[bytes]:
    return raw_wsgi(environ, start_response)


def flask_route(*, limited: bool = False, guarded: bool = False) -> Any:
    """Return a Flask application with one route: alone, under flask-limiter (in memory), or under this middleware."""
    app = Flask("bench")
    if limited:
        Limiter(
            get_remote_address, app=app, default_limits=["1000000000 per second"], storage_uri="memory://"
        )

    @app.get("/item")
    def item() -> str:
        return "ok"

    if guarded:
        app.wsgi_app = WsgiMiddleware(app.wsgi_app, limit=1000, name="bench-flask")  # type: ignore[method-assign]
    return app


def wsgi(app: Any) -> Case:
    """Return a case: CPU microseconds per request, one after the other."""

    def run() -> float:
        environs = [
            {
                "REQUEST_METHOD": "GET", "PATH_INFO": "/item", "SCRIPT_NAME": "", "QUERY_STRING": "",
                "SERVER_NAME": "x", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "127.0.0.1",
                "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(),
                "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
            }
            for _ in range(REQUESTS)
        ]  # fmt: skip
        began = time.process_time()
        for environ in environs:
            body = app(environ, lambda *_: None)
            for _ in body:
                pass
            close = getattr(body, "close", None)
            if close is not None:
                close()
        return (time.process_time() - began) / REQUESTS * 1e6

    return run


def full(middleware: Any, app: Any) -> Any:
    """Return a middleware that has no slot and no place left, so that each request is refused."""
    policy = ServerPolicy(limit=1, queue=0, name="full")
    guard = guard_of(policy)
    guard.arrive(guard.entries.get("taken", _no_mark()), guard.clock.now(), guard.clock.now() + 3600)
    return middleware(app, policy)


def _no_mark() -> Any:
    from resilient_mw.core.marks import Mark

    return Mark()


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=15, help="rounds of every case (default: 15)")
    rounds = arguments.parse_args().rounds
    route = Starlette(routes=[Route("/item", lambda request: PlainTextResponse("ok"))])
    cases: dict[str, tuple[Case, str | None]] = {
        "ASGI raw": (asgi(raw_asgi), None),
        "ASGI no-op wrapper": (asgi(NoOp(raw_asgi)), "ASGI raw"),
        "ASGI resilient_mw, admitted": (
            asgi(AsgiMiddleware(raw_asgi, limit=1000, name="bench-asgi")),
            "ASGI raw",
        ),
        "ASGI resilient_mw, refused": (asgi(full(AsgiMiddleware, raw_asgi)), "ASGI raw"),
        "ASGI BaseHTTPMiddleware that does nothing": (asgi(NoOpBase(raw_asgi)), "ASGI raw"),
        "ASGI Starlette route": (asgi(route), "ASGI raw"),
        "WSGI raw": (wsgi(raw_wsgi), None),
        "WSGI no-op wrapper": (wsgi(noop_wsgi), "WSGI raw"),
        "WSGI resilient_mw, admitted": (
            wsgi(WsgiMiddleware(raw_wsgi, limit=1000, name="bench-wsgi")),
            "WSGI raw",
        ),
        "WSGI resilient_mw, refused": (wsgi(full(WsgiMiddleware, raw_wsgi)), "WSGI raw"),
        "Flask route": (wsgi(flask_route()), None),
        "Flask route, resilient_mw": (wsgi(flask_route(guarded=True)), "Flask route"),
        "Flask route, flask-limiter": (wsgi(flask_route(limited=True)), "Flask route"),
    }
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(1, rounds + 1):
        print(f"\rround {number} of {rounds}", end="", file=sys.stderr, flush=True)
        for name, (case, _) in cases.items():
            seen[name].append(case())
    print(file=sys.stderr)
    print(f"{'CPU µs per request, median of ' + str(rounds):<46}{'total':>8}{'added':>8}{'of raw':>8}")
    for name, (_, base) in cases.items():
        total = statistics.median(seen[name])
        if base is None:
            print(f"{name:<46}{total:8.2f}")
            continue
        added = statistics.median(a - b for a, b in zip(seen[name], seen[base], strict=True))
        print(f"{name:<46}{total:8.2f}{added:8.2f}{total / statistics.median(seen[base]):8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
