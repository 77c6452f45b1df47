"""Routes and marks in whole applications: the middleware in front, real requests, what was counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from flask import Blueprint, Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from resilient_mw import ServerPolicy, exempt, priority
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.runtime.guard import guard_of
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from tests.integrations.serving import call, drive, http_scope, wsgi_environ

pytestmark = pytest.mark.usefixtures("entry_points")


def endpoint() -> Any:
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("")

    return endpoint


def served(policy: ServerPolicy) -> dict[tuple[str, str], int]:
    """Return how many requests were admitted, by label and class."""
    snapshot = guard_of(policy).snapshot()
    assert snapshot.guard_errors == 0
    return {(each.route, each.priority): each.admitted for each in snapshot.routes if each.arrived}


def fastapi_app() -> FastAPI:
    app, sub, router = FastAPI(), FastAPI(), APIRouter(prefix="/orders")
    router.get("/{id}")(endpoint())
    router.get("/alive")(exempt(endpoint()))
    app.include_router(router, prefix="/v1")
    priority("sheddable")(router)
    sub.get("/items/{id}")(priority("critical")(endpoint()))
    app.mount("/sub", sub)
    return app


EXPECTED = {
    ("/v1/orders/{id}", "sheddable"): 2,
    ("/sub/items/{id}", "critical"): 1,
    ("unmatched", "normal"): 2,
    ("/health", "exempt"): 1,
}
PATHS = ("/v1/orders/7", "/v1/orders/alive", "/sub/items/7", "/sub/none", "/v1/orders", "/health")


def added(app: FastAPI, policy: ServerPolicy) -> Any:
    app.add_middleware(AsgiMiddleware, policy=policy)
    return app


@pytest.mark.parametrize("wrap", [added, AsgiMiddleware], ids=["add_middleware", "around"])
@pytest.mark.parametrize(("root", "included"), [("", True), ("/api", True), ("/api", False)])
async def test_fastapi(wrap: Callable[[Any, ServerPolicy], Any], root: str, included: bool) -> None:
    policy = ServerPolicy()
    app = wrap(fastapi_app(), policy)
    for path in PATHS:
        await drive(app, http_scope(root + path if included else path, root_path=root))
    expected = dict(EXPECTED)
    if root and not included:
        # Starlette itself finds nothing below a mount then.
        expected["unmatched", "normal"] += expected.pop(("/sub/items/{id}", "critical"))
    assert served(policy) == expected


async def test_around_a_mounted_application() -> None:
    policy = ServerPolicy()
    sub = FastAPI()
    sub.get("/items/{id}")(priority("critical")(endpoint()))
    app = FastAPI()
    app.get("/items/{id}")(endpoint())
    app.mount("/sub", AsgiMiddleware(sub, policy))
    assert (await drive(app, http_scope("/sub/items/7"))).status == 200
    assert (await drive(app, http_scope("/items/7"))).status == 200
    assert served(policy) == {("/sub/items/{id}", "critical"): 1}


async def test_as_a_middleware_of_a_mount() -> None:
    policy = ServerPolicy()
    mount = Mount(
        "/sub",
        routes=[Route("/items/{id}", priority("critical")(endpoint()))],
        middleware=[Middleware(AsgiMiddleware, policy=policy)],
    )
    app = Starlette(routes=[mount, Route("/items/{id}", endpoint())])
    assert (await drive(app, http_scope("/sub/items/7"))).status == 200
    assert served(policy) == {("/sub/items/{id}", "critical"): 1}


async def test_inside_a_mounted_application() -> None:
    policy = ServerPolicy()
    sub = FastAPI()
    sub.get("/items/{id}")(priority("critical")(endpoint()))
    app = FastAPI()
    app.get("/sub/{name}")(endpoint())
    app.mount("/sub", added(sub, policy))
    assert (await drive(app, http_scope("/sub/items/7"))).status == 200
    assert served(policy) == {("/items/{id}", "critical"): 1}


async def test_two_layers_of_one_policy_find_the_same_route() -> None:
    inner, outer = ServerPolicy(), ServerPolicy()
    app = AsgiMiddleware(added(fastapi_app(), inner), outer)
    await drive(app, http_scope("/v1/orders/7"))
    assert served(inner) == served(outer) == {("/v1/orders/{id}", "sheddable"): 1}


async def start(app: Callable[..., Awaitable[None]]) -> dict[str, Any]:
    """Play the start of a server; return its answer."""
    asked: list[dict[str, Any]] = [{"type": "lifespan.startup"}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return asked.pop() if asked else {"type": "lifespan.shutdown"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    try:
        async with asyncio.timeout(5):
            await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    except ValueError:
        pass
    return sent[0]


@pytest.mark.parametrize("wrap", [added, AsgiMiddleware], ids=["add_middleware", "around"])
async def test_a_class_that_does_not_exist_stops_the_start(wrap: Callable[[Any, ServerPolicy], Any]) -> None:
    app = FastAPI()
    app.get("/orders")(priority("urgent")(endpoint()))
    answer = await start(wrap(app, ServerPolicy()))
    assert answer["type"] == "lifespan.startup.failed"
    assert "'urgent'" in answer["message"]


async def test_routes_that_the_start_adds_are_known() -> None:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> Any:
        app.get("/late/{id}")(priority("critical")(endpoint()))
        yield

    policy = ServerPolicy()
    app = added(FastAPI(lifespan=lifespan), policy)
    assert (await start(app))["type"] == "lifespan.startup.complete"
    await drive(app, http_scope("/late/7"))
    assert served(policy) == {("/late/{id}", "critical"): 1}


def flask_app() -> Flask:
    app, blueprint = (
        Flask(__name__),
        priority("sheddable")(Blueprint("orders", __name__, url_prefix="/v1/orders")),
    )
    blueprint.add_url_rule("/<id>", "order", lambda id: "")  # noqa: A006
    blueprint.add_url_rule("/alive", "alive", exempt(lambda: ""))
    app.register_blueprint(blueprint)
    app.add_url_rule("/items/<int:id>", "item", priority("critical")(lambda id: ""))  # noqa: A006
    return app


def inside(app: Any, policy: ServerPolicy) -> Any:
    app.wsgi_app = WsgiMiddleware(app.wsgi_app, policy)
    return app


@pytest.mark.parametrize("wrap", [inside, WsgiMiddleware], ids=["wsgi_app", "around"])
@pytest.mark.parametrize("root", ["", "/v1"])
def test_flask(wrap: Callable[[Any, ServerPolicy], Any], root: str) -> None:
    policy = ServerPolicy()
    app = wrap(flask_app(), policy)
    for path in ("/v1/orders/7", "/v1/orders/alive", "/items/7", "/items/x", "/v1/orders", "/health"):
        call(app, wsgi_environ(path, SCRIPT_NAME=root))
    assert served(policy) == {
        ("/v1/orders/<id>", "sheddable"): 1,
        ("/v1/orders/alive", "exempt"): 1,
        ("/items/<int:id>", "critical"): 1,
        ("unmatched", "normal"): 2,
        ("/health", "exempt"): 1,
    }


def test_flask_behind_the_dispatcher() -> None:
    policy = ServerPolicy()
    app = WsgiMiddleware(DispatcherMiddleware(Flask(__name__), {"/shop": flask_app()}), policy)
    assert call(app, wsgi_environ("/shop/items/7")) == 200
    call(app, wsgi_environ("/items/7"))
    assert served(policy) == {("/shop/items/<int:id>", "critical"): 1, ("unmatched", "normal"): 1}
