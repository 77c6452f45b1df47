"""Drives real applications in process, and asks a resolver about the same requests."""

from __future__ import annotations

import asyncio
import io
from typing import Any, NamedTuple
from urllib.parse import unquote
from wsgiref.util import setup_testing_defaults

from resilient_mw.core.routes import Route, RouteResolver, below_root
from resilient_mw_integrations.flask import route_source as flask_source
from resilient_mw_integrations.starlette import route_source as starlette_source


class Answer(NamedTuple):
    """What became of a request: its status, and the endpoint that the framework chose last."""

    status: int
    endpoint: object


def http_scope(path: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"example.org")],
        "client": ("127.0.0.1", 40_000),
        "server": ("127.0.0.1", 80),
        **more,
    }


def websocket_scope(path: str, **more: Any) -> dict[str, Any]:
    scope = http_scope(path, **{"type": "websocket", "subprotocols": [], "scheme": "ws", **more})
    del scope["method"]
    return scope


async def drive(app: Any, scope: dict[str, Any]) -> Answer:
    """Send one request through an ASGI application; a websocket that is accepted counts as 101, a closed one as 403."""
    sent: list[dict[str, Any]] = []
    connect = "websocket.connect" if scope["type"] == "websocket" else "http.request"
    asked: list[dict[str, Any]] = [{"type": connect, "body": b"", "more_body": False}]

    over = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if asked:
            return asked.pop()
        await over.wait()  # then the caller leaves: Quart waits for it
        return {"type": connect.partition(".")[0] + ".disconnect", "code": 1000}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            over.set()

    await app(scope, receive, send)
    status = {"websocket.accept": 101, "websocket.close": 403}.get(sent[0]["type"]) or sent[0]["status"]
    return Answer(status, scope.get("endpoint"))


def run(app: Any, scope: dict[str, Any]) -> Answer:
    with asyncio.Runner() as runner:
        return runner.run(drive(app, scope))


def asgi_routes(app: object) -> RouteResolver:
    resolver = starlette_source.resolver(app)
    assert resolver is not None
    return resolver


def pick(routes: RouteResolver, scope: dict[str, Any]) -> Route | None:
    """Ask as the middleware does: with the path below the root path."""
    return routes.resolve(below_root(scope["path"], scope["root_path"]), scope)


def template(routes: RouteResolver, path: str, method: str = "GET", **more: Any) -> str | None:
    """Return the label of a request."""
    route = pick(routes, http_scope(path, method, **more))
    return None if route is None else route.template


def priority_of(routes: RouteResolver, path: str, method: str = "GET", **more: Any) -> str | None:
    """Return the class that the marks of a request's route name."""
    route = pick(routes, http_scope(path, method, **more))
    return None if route is None or route.mark is None else route.mark.priority


def wsgi_environ(path: str, method: str = "GET", **more: str) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(path).encode().decode("latin-1"),
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
        **more,
    }
    setup_testing_defaults(environ)
    return environ


def call(app: Any, environ: dict[str, Any]) -> int:
    """Send one request through a WSGI application; return the status."""
    status: list[str] = []
    body = app(environ, lambda line, headers, exc_info=None: status.append(line))
    for _ in body:
        pass
    close = getattr(body, "close", None)
    if close is not None:
        close()
    return int(status[-1].split()[0])


def wsgi_routes(app: object) -> RouteResolver:
    resolver = flask_source.resolver(app)
    assert resolver is not None
    return resolver


def rule_of(routes: RouteResolver, path: str, method: str = "GET", **more: str) -> str | None:
    """Return the label of a request."""
    environ = wsgi_environ(path, method, **more)
    route = routes.resolve(path, environ)
    return None if route is None else route.template


def view_priority(routes: RouteResolver, path: str, method: str = "GET", **more: str) -> str | None:
    """Return the class that the marks of a request's rule name."""
    route = routes.resolve(path, wsgi_environ(path, method, **more))
    return None if route is None or route.mark is None else route.mark.priority
