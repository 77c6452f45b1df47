"""A middleware of the wrong package is refused when it is made, by what the application is."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar
from quart import Quart
from starlette.testclient import TestClient

from resilient_mw.asgi import ResilienceMiddleware as Asgi
from resilient_mw.asgi.idempotency import IdempotencyMiddleware as AsgiKeys
from resilient_mw.idempotency import IdempotencyPolicy
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.wsgi import ResilienceMiddleware as Wsgi
from resilient_mw.wsgi.idempotency import IdempotencyMiddleware as WsgiKeys

KEYS: Any = {"policy": IdempotencyPolicy(single_tenant=True), "store": MemoryIdempotencyStore()}
FLASK, QUART = Flask("shop"), Quart("shop")


def plain(environ: Any, start_response: Any) -> Any:
    raise NotImplementedError


async def plain_async(scope: Any, receive: Any, send: Any) -> None:
    raise NotImplementedError


UNDER_WSGI = {
    "Flask": FLASK,
    "its wsgi_app": FLASK.wsgi_app,
    "Django": WSGIHandler.__new__(WSGIHandler),
    "a function": plain,
    "a middleware": Wsgi(plain),
}
UNDER_ASGI = {
    "FastAPI": FastAPI(),
    "Quart": QUART,
    "its asgi_app": QUART.asgi_app,
    "Litestar": Litestar(logging_config=None),  # else it sets up that of the whole process
    "Django": ASGIHandler.__new__(ASGIHandler),
    "a function": plain_async,
    "a middleware": Asgi(plain_async),
}


@pytest.mark.parametrize("app", UNDER_WSGI.values(), ids=UNDER_WSGI)
def test_a_wsgi_application_is_refused_by_the_middlewares_of_asgi(app: Any) -> None:
    Wsgi(app)
    WsgiKeys(app, **KEYS)
    with pytest.raises(ValueError, match=r"is not allowed: it is a WSGI .* from resilient_mw\.wsgi$"):
        Asgi(app)
    with pytest.raises(ValueError, match=r"from resilient_mw\.wsgi$"):
        AsgiKeys(app, **KEYS)


@pytest.mark.parametrize("app", UNDER_ASGI.values(), ids=UNDER_ASGI)
def test_an_asgi_application_is_refused_by_the_middlewares_of_wsgi(app: Any) -> None:
    Asgi(app)
    AsgiKeys(app, **KEYS)
    with pytest.raises(ValueError, match=r"is not allowed: it is an ASGI .* from resilient_mw\.asgi$"):
        Wsgi(app)
    with pytest.raises(ValueError, match=r"from resilient_mw\.asgi$"):
        WsgiKeys(app, **KEYS)


def test_what_hides_its_code_is_taken_at_its_word() -> None:
    Asgi(partial(plain))
    Wsgi(partial(plain_async))  # type: ignore[arg-type]


def test_the_wrong_layer_of_an_application_is_named() -> None:
    app = FastAPI()
    app.add_middleware(Wsgi, limit=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Import the middleware from resilient_mw.asgi"), TestClient(app):
        pass
