"""Brownout through the middlewares and frameworks: the cheaper variant answers, and its answer is marked."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from resilient_mw import OverloadPolicy, ServerPolicy, current, degradable
from resilient_mw.admission.overload_policy import OverloadState
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.runtime.guard import guard_of
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware


def cheap(item: int) -> dict[str, object]:
    return {"item": item, "by": "cheap", "overload": current().overload}


async def cheap_async(item: int) -> dict[str, object]:
    return cheap(item)


def fastapi_app(policy: ServerPolicy) -> Any:
    app = FastAPI()

    @app.get("/sync/{item}")
    @degradable(cheap)
    def sync(item: int) -> dict[str, object]:
        return {"item": item, "by": "full", "overload": current().overload}

    @app.get("/async/{item}")
    @degradable(cheap_async)
    async def asynchronous(item: int) -> dict[str, object]:
        return {"item": item, "by": "full", "overload": current().overload}

    app.add_middleware(AsgiMiddleware, policy=policy)
    return TestClient(app)


def flask_app(policy: ServerPolicy) -> Any:
    app = Flask("degradable")

    @app.get("/sync/<int:item>")
    @degradable(cheap)
    def sync(item: int) -> dict[str, object]:
        return {"item": item, "by": "full", "overload": current().overload}

    app.wsgi_app = WsgiMiddleware(app.wsgi_app, policy)  # type: ignore[method-assign]
    return app.test_client()


def set_state(policy: ServerPolicy, monkeypatch: pytest.MonkeyPatch, state: OverloadState) -> None:
    """Have the guard say so, whatever it measures."""
    overload = guard_of(policy).overload
    monkeypatch.setattr(type(overload), "look", lambda *_: None)
    overload.state, overload.level = state, 0.75 if state is not OverloadState.NORMAL else 0.0


@pytest.mark.parametrize("state", OverloadState)
@pytest.mark.parametrize(
    ("make", "path"), [(fastapi_app, "/sync/7"), (fastapi_app, "/async/7"), (flask_app, "/sync/7")]
)
def test_the_variant_answers_and_is_marked(
    make: Any, path: str, state: OverloadState, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ServerPolicy()
    client = make(policy)
    set_state(policy, monkeypatch, state)
    answer = client.get(path)
    found = answer.json() if callable(answer.json) else answer.json
    if state is OverloadState.NORMAL:
        assert found == {"item": 7, "by": "full", "overload": 0.0}
        assert "X-Degraded" not in answer.headers
    else:
        assert found == {"item": 7, "by": "cheap", "overload": 0.75}
        assert answer.headers["X-Degraded"] == "1"


def test_the_parameters_are_those_of_the_endpoint() -> None:
    client = fastapi_app(ServerPolicy())
    assert client.get("/sync/seven").status_code == 422
    schema = client.get("/openapi.json").json()
    assert schema["paths"]["/sync/{item}"]["get"]["parameters"][0]["schema"]["type"] == "integer"


def test_a_starlette_endpoint_that_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    async def less(request: Request) -> Any:
        return StreamingResponse(iter(["a", "b"]))

    @degradable(less)
    async def much(request: Request) -> Any:
        return PlainTextResponse("full")

    policy = ServerPolicy()
    app = AsgiMiddleware(Starlette(routes=[Route("/", much)]), policy)
    set_state(policy, monkeypatch, OverloadState.OVERLOADED)
    answer = TestClient(app).get("/")
    assert (answer.text, answer.headers["x-degraded"]) == ("ab", "1")


def test_a_handler_can_mark_its_answer_itself() -> None:
    app = Flask("by hand")

    @app.get("/")
    def page() -> str:
        with current().within(1.0):
            current().mark_degraded()
        return "less"

    @app.get("/full")
    def full() -> str:
        return "all"

    app.wsgi_app = WsgiMiddleware(app.wsgi_app, ServerPolicy(overload=OverloadPolicy()))  # type: ignore[method-assign]
    client = app.test_client()
    assert client.get("/", buffered=True).headers["X-Degraded"] == "1"
    assert "X-Degraded" not in client.get("/full", buffered=True).headers
