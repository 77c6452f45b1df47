"""For random applications and random requests, the resolver names the endpoint that the framework then runs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Host, Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket

from tests.integrations.serving import asgi_routes, drive, http_scope, pick, websocket_scope

METHODS = ("GET", "HEAD", "POST", "PUT", "OPTIONS", "FOO")
WORDS = ("a", "b", "ab", "items", "v1.0", "a+b", "(", "7", "é", "")
PARAMETERS = (
    "{%s}",
    "{%s:int}",
    "{%s:float}",
    "{%s:path}",
    "{%s:str}",
    "x-{%s}",
    "{%s:int}.txt",
    "{%s}{%s:int}",
)
VALUES = (*WORDS, "7.5", "x-a", "7.txt", "a\n", "\n", "A", "%2f", ".", "..", "{id}", "a7")

word = st.sampled_from(WORDS)
segment = st.one_of(word, word, st.sampled_from(PARAMETERS))
path_template = st.lists(segment, min_size=1, max_size=3)
prefix_template = st.lists(
    st.one_of(st.sampled_from(("a", "b", "v1.0")), st.just("{%s}")), min_size=1, max_size=2
)
methods = st.one_of(st.none(), st.lists(st.sampled_from(METHODS), min_size=1, max_size=3, unique=True))
route = st.tuples(st.just("route"), path_template, methods)
leaf = st.one_of(
    route,
    route,
    route,
    st.tuples(st.just("websocket"), path_template),
    st.tuples(st.just("foreign"), prefix_template),
)
tree = st.recursive(
    st.lists(leaf, max_size=6),
    lambda below: st.lists(
        st.one_of(
            leaf,
            leaf,
            st.tuples(st.just("mount"), st.one_of(prefix_template, st.just([])), below),
            st.tuples(st.just("host"), st.sampled_from(("example.org", "{sub}.org", "other.org")), below),
            st.tuples(st.just("include"), st.one_of(prefix_template, st.just([])), below),
        ),
        max_size=6,
    ),
    max_leaves=12,
)
request_path = st.lists(st.sampled_from(VALUES), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
request = st.tuples(
    st.sampled_from(("http", "http", "http", "websocket")),
    request_path,
    st.sampled_from(METHODS),
    st.sampled_from(("", "", "", "/a", "/root", "/a/b", "/")),
    st.booleans(),
)


class Builder:
    """Builds the same tree of routes for Starlette or for FastAPI."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def text(self, parts: list[str]) -> str:
        """Write a path, each parameter under a name of its own."""
        return "".join(f"/{self._named(part)}" for part in parts)

    def _named(self, part: str) -> str:
        while "%s" in part:
            part = part.replace("%s", f"p{next(self._numbers)}", 1)
        return part

    def endpoint(self) -> Callable[..., Any]:
        async def endpoint(request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

        return endpoint

    def websocket(self) -> Callable[..., Any]:
        async def endpoint(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.close()

        return endpoint

    def foreign(self) -> Callable[..., Any]:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "websocket":
                await send({"type": "websocket.accept"})
            else:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})

        return application

    def routes(self, items: list[Any]) -> list[BaseRoute]:
        """Starlette's own routes; an inclusion is a mount here."""
        built: list[BaseRoute] = []
        for kind, *rest in items:
            if kind == "route":
                built.append(Route(self.text(rest[0]), self.endpoint(), methods=rest[1]))
            elif kind == "websocket":
                built.append(WebSocketRoute(self.text(rest[0]), self.websocket()))
            elif kind == "foreign":
                built.append(Mount(self.text(rest[0]), app=self.foreign()))
            elif kind == "host":
                built.append(Host(rest[0], app=Router(self.routes(rest[1]))))
            else:
                built.append(Mount(self.text(rest[0]), app=Starlette(routes=self.routes(rest[1]))))
        return built

    def fill(self, router: Any, items: list[Any]) -> None:
        """FastAPI's ways to add the same routes."""
        for kind, *rest in items:
            if kind == "route" and rest[1] is None:
                router.add_route(self.text(rest[0]), self.endpoint())
            elif kind == "route":
                router.add_api_route(self.text(rest[0]), self.endpoint(), methods=rest[1])
            elif kind == "websocket":
                router.add_api_websocket_route(self.text(rest[0]), self.websocket())
            elif kind == "foreign":
                router.mount(self.text(rest[0]), self.foreign())
            elif kind == "host":
                router.host(rest[0], Router(self.routes(rest[1])))
            elif kind == "mount":
                below = FastAPI(openapi_url=None)
                self.fill(below, rest[1])
                router.mount(self.text(rest[0]), below)
            else:
                inner = APIRouter(prefix=self.text(rest[0][1:]))
                router.include_router(inner, prefix=self.text(rest[0][:1]))
                self.fill(inner, rest[1])  # after its inclusion


@pytest.fixture(scope="module")
def loop() -> Any:
    with asyncio.Runner() as runner:
        yield runner


def check(app: Any, requests: list[Any], loop: asyncio.Runner) -> None:
    routes = asgi_routes(app)
    for kind, path, method, root, included in requests:
        full = root + path if included else path
        make = websocket_scope if kind == "websocket" else http_scope
        more = {} if kind == "websocket" else {"method": method}
        asked = make(full, root_path=root, **more)
        found = pick(routes, asked)
        assert asked == make(full, root_path=root, **more), "the scope was changed"
        answer = loop.run(drive(app, make(full, root_path=root, **more)))
        shown = (kind, full, method, root, answer, found and found.template)
        if (kind == "http" and answer.status in {307, 404}) or answer.status == 403:
            assert found is None, shown
        else:
            assert found is not None, shown
            assert answer.endpoint in found.targets, shown


COMMON = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@COMMON
@given(items=tree, redirect=st.booleans(), requests=st.lists(request, min_size=1, max_size=12))
@example(items=[("route", ["a"], None)], redirect=True, requests=[("http", "/a\n", "GET", "", True)])
@example(items=[("route", ["a"], None)], redirect=True, requests=[("http", "/a/", "GET", "", True)])
def test_starlette(items: list[Any], redirect: bool, requests: list[Any], loop: asyncio.Runner) -> None:
    app = Starlette(routes=Builder().routes(items))
    app.router.redirect_slashes = redirect
    check(app, requests, loop)


@COMMON
@given(
    items=tree,
    redirect=st.booleans(),
    own_root=st.sampled_from(("", "", "/a")),
    requests=st.lists(request, min_size=1, max_size=12),
)
def test_fastapi(
    items: list[Any], redirect: bool, own_root: str, requests: list[Any], loop: asyncio.Runner
) -> None:
    app = FastAPI(openapi_url=None, redirect_slashes=redirect)
    app.root_path = own_root
    Builder().fill(app.router, items)
    check(app, requests, loop)
