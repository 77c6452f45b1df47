"""Marks and rules decide the class of a websocket as they do that of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.routing import Mount, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from resilient_mw import RouteRule, current, exempt, priority
from resilient_mw.asgi import ResilienceMiddleware

pytestmark = pytest.mark.usefixtures("entry_points")


def endpoint() -> Any:
    """Return a new one, because marks are for the whole process."""

    async def serve(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_json(current().remaining() == float("inf"))
        try:
            await websocket.receive_text()
        except WebSocketDisconnect:
            pass

    return serve


def on_starlette() -> Any:
    below = Starlette(routes=[WebSocketRoute("/orders/{name}", priority("critical", cost=5)(endpoint()))])
    return Starlette(
        routes=[
            WebSocketRoute("/plain/{name}", endpoint()),
            WebSocketRoute("/watching/{name}", exempt(endpoint())),
            Mount("/below", app=below),
        ]
    )


def on_fastapi() -> Any:
    app, router = FastAPI(), APIRouter()
    app.websocket("/plain/{name}")(endpoint())
    app.websocket("/watching/{name}")(exempt(endpoint()))
    router.websocket("/orders/{name}")(priority("critical", cost=5)(endpoint()))
    app.include_router(router, prefix="/below")
    return app


@pytest.mark.parametrize("framework", [on_starlette, on_fastapi])
def test_marks_and_rules_decide_the_class(framework: Callable[[], Any]) -> None:
    rules = [
        RouteRule("/plain/special", methods=["GET"], priority="critical"),
        RouteRule("/plain/low", methods=["WEBSOCKET"], priority="sheddable"),
    ]
    middleware = ResilienceMiddleware(framework(), routes=rules)
    with TestClient(middleware) as client:
        for path in ("/below/orders/a", "/below/orders/b", "/plain/special", "/plain/low", "/watching/a"):
            with client.websocket_connect(path) as session:
                assert session.receive_json() is True
    snapshot = middleware.protection.policy.snapshot()
    assert snapshot.websockets is not None
    assert {(each.route, each.priority): each.arrived for each in snapshot.websockets.routes} == {
        ("/below/orders/{name}", "critical"): 2,
        ("/plain/{name}", "normal"): 1,
        ("/plain/{name}", "sheddable"): 1,
        ("/watching/{name}", "exempt"): 1,
    }
    assert sum(snapshot.websockets.opened.values()) == 0
    assert not [each for each in snapshot.routes if each.arrived]
    assert snapshot.guard_errors == 0


@pytest.mark.parametrize("framework", [on_starlette, on_fastapi])
def test_the_test_client_sees_a_refusal(framework: Callable[[], Any]) -> None:
    middleware = ResilienceMiddleware(framework(), websocket_limit=1)
    with TestClient(middleware) as client, client.websocket_connect("/plain/a") as session:
        session.receive_json()
        with pytest.raises(WebSocketDenialResponse) as caught, client.websocket_connect("/plain/b"):
            pass
        assert (caught.value.status_code, caught.value.json()["reason"]) == (503, "websocket_limit")
