"""B08: ours inside and outside of Starlette's CORS layer, and the hint at start about refusals that nobody can read."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from resilient_mw import ResilienceWarning, ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.testing import ScriptedASGI

pytestmark = pytest.mark.usefixtures("entry_points")

SHOP = "https://shop.example"
HIDDEN = "CORSMiddleware is inside this middleware.*Set cors_origins"
CORS = Middleware(CORSMiddleware, allow_origins=[SHOP])
MAKERS: list[Callable[..., Any]] = [Starlette, FastAPI]


def ours(policy: ServerPolicy) -> Middleware:
    return Middleware(ResilienceMiddleware, policy=policy)


class OwnCors(CORSMiddleware):
    """Somebody's own version of it."""


def ask(app: Any) -> dict[str, str]:
    """Return the headers of a refusal to a page of another origin."""
    headers = [("Origin", SHOP), ("X-Request-Timeout-Ms", "0")]
    server = asyncio.run(ScriptedASGI(app, headers=headers).run())
    assert server.messages[0]["status"] == 504
    lines = [(name.decode().lower(), value.decode()) for name, value in server.messages[0]["headers"]]
    assert len(dict(lines)) == len(lines), "no field twice"
    return dict(lines)


@pytest.mark.parametrize("make", MAKERS)
def test_b08_outside_the_cors_layer_the_start_says_what_to_set(make: Callable[..., Any]) -> None:
    app = make(middleware=[ours(ServerPolicy()), Middleware(GZipMiddleware), CORS])
    with pytest.warns(ResilienceWarning, match=HIDDEN):
        assert "access-control-allow-origin" not in ask(app)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(app)  # once is enough


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("layer", [CORS, Middleware(OwnCors, allow_origins=[SHOP])])
def test_b08_around_an_application_that_has_not_made_its_layers_yet(
    make: Callable[..., Any], layer: Middleware
) -> None:
    app = make(middleware=[Middleware(GZipMiddleware), layer])
    with pytest.warns(ResilienceWarning, match=HIDDEN):
        ask(ResilienceMiddleware(app))
    with pytest.warns(ResilienceWarning, match=HIDDEN):
        ask(ResilienceMiddleware(GZipMiddleware(app)))


def test_b08_the_hint_stops_the_start_where_warnings_are_errors() -> None:
    told: list[Any] = []
    incoming = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, str]:
        return {"type": next(incoming)}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    app = ResilienceMiddleware(Starlette(middleware=[CORS]))
    asyncio.run(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send))
    assert told[0]["type"] == "lifespan.startup.failed"
    assert "cors_origins" in told[0]["message"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("fields", [{"cors_origins": [SHOP]}, {"cors_origins": "*"}])
def test_b08_with_origins_named_the_page_can_read_it(
    make: Callable[..., Any], fields: dict[str, Any]
) -> None:
    headers = ask(make(middleware=[ours(ServerPolicy(**fields)), CORS]))
    assert headers["access-control-allow-origin"] in {SHOP, "*"}
    assert headers["access-control-expose-headers"] == "Retry-After, X-Refusal-Reason"


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("fields", [{}, {"cors_origins": [SHOP]}])
def test_b08_inside_the_cors_layer_there_is_nothing_to_say(
    make: Callable[..., Any], fields: dict[str, Any]
) -> None:
    headers = ask(make(middleware=[CORS, ours(ServerPolicy(**fields))]))
    assert headers["access-control-allow-origin"] == SHOP
    assert {each.strip() for each in headers["vary"].split(",")} == {"Accept", "Origin"}


@pytest.mark.parametrize("make", MAKERS)
def test_without_a_cors_layer_there_is_nothing_to_say(make: Callable[..., Any]) -> None:
    app = make(middleware=[Middleware(GZipMiddleware), Middleware(lambda app: app)])
    assert "access-control-allow-origin" not in ask(ResilienceMiddleware(app))
