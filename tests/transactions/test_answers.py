"""What the caller gets when an endpoint refuses an idempotency key: the same answer by every shell and framework."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar, post
from litestar.testing import TestClient as LitestarClient
from quart import Quart

from resilient_mw import Reason, ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.idempotency.transaction import refused
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from resilient_mw_integrations.fastapi import idempotency_refused
from resilient_mw_integrations.flask import Resilience as FlaskResilience
from resilient_mw_integrations.litestar import ResiliencePlugin
from resilient_mw_integrations.quart import Resilience as QuartResilience
from tests.wsgi.helpers import outcomes, slots_taken

POLICY = ServerPolicy(limit=4)
Answer = tuple[int, dict[str, str], Any]


def busy() -> IdempotencyRefused:
    return refused(Reason.IDEMPOTENCY_IN_PROGRESS, 1)


async def asked(app: Any) -> Answer:
    # As a server would see it: an error that leaves the application is one.
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        response = await client.post("/pay")
    return response.status_code, {**response.headers}, response.json()


def asked_wsgi(app: Any, method: str = "POST") -> Answer:
    seen: list[Any] = []
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": "/pay",
        "SERVER_NAME": "x",
        "SERVER_PORT": "80",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http",
    }
    body = app(environ, lambda status, headers, exc=None: seen.append((status, headers)))
    try:
        data = b"".join(body)
    finally:
        body.close() if hasattr(body, "close") else None
    ((status, headers),) = seen
    return int(status[:3]), {name.lower(): value for name, value in headers}, json.loads(data)


def check(answer: Answer) -> None:
    status, headers, body = answer
    assert status == 409
    assert headers["content-type"] == "application/problem+json"
    assert headers["retry-after"] == "1"
    assert "x-refusal-reason" not in headers
    assert body["reason"] == "idempotency_in_progress"


async def test_asgi() -> None:
    async def app(*_: Any) -> None:
        raise busy()

    policy = ServerPolicy(limit=4)
    check(await asked(ResilienceMiddleware(app, policy)))
    assert slots_taken(policy) == 0
    assert outcomes(policy) == {"completed": 1}


async def test_asgi_after_the_head() -> None:
    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise busy()

    policy = ServerPolicy(limit=4)
    with pytest.raises(IdempotencyRefused):
        await asked(ResilienceMiddleware(app, policy))
    assert outcomes(policy) == {"error": 1}


def generator(_: Any, start: Any) -> Iterable[bytes]:
    start("200 OK", [])
    raise busy()
    yield b""


def function(_: Any, __: Any) -> Iterable[bytes]:
    raise busy()


@pytest.mark.parametrize("app", [generator, function])
def test_wsgi(app: Callable[..., Iterable[bytes]]) -> None:
    policy = ServerPolicy(limit=4)
    check(asked_wsgi(WsgiMiddleware(app, policy)))
    assert slots_taken(policy) == 0
    assert outcomes(policy) == {"completed": 1}


def test_wsgi_after_the_head() -> None:
    def app(_: Any, start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        yield b"a"
        raise busy()

    policy = ServerPolicy(limit=4)
    body = WsgiMiddleware(app, policy)(
        {"REQUEST_METHOD": "POST", "PATH_INFO": "/"}, lambda *_: lambda _: None
    )
    with pytest.raises(IdempotencyRefused):
        list(body)
    assert outcomes(policy) == {"error": 1}


@pytest.mark.parametrize("outside", [True, False])
async def test_fastapi(outside: bool) -> None:
    app = FastAPI()

    @app.post("/pay")
    def pay() -> None:
        raise busy()

    if outside:
        app.add_exception_handler(IdempotencyRefused, idempotency_refused)
        check(await asked(ResilienceMiddleware(app, ServerPolicy(limit=4))))
    else:
        app.add_middleware(ResilienceMiddleware, policy=ServerPolicy(limit=4))
        check(await asked(app))


def test_flask() -> None:
    app = Flask("payments")
    FlaskResilience(app, ServerPolicy(limit=4))

    @app.post("/pay")
    def pay() -> str:
        raise busy()

    check(asked_wsgi(app.wsgi_app))


async def test_quart() -> None:
    app = Quart("payments")
    QuartResilience(app, ServerPolicy(limit=4))

    @app.post("/pay")
    async def pay() -> str:
        raise busy()

    check(await asked(app.asgi_app))


def test_litestar() -> None:
    @post("/pay", sync_to_thread=False)
    def pay() -> None:
        raise busy()

    app = Litestar([pay], plugins=[ResiliencePlugin(ServerPolicy(limit=4))], logging_config=None)
    with LitestarClient(app) as client:
        response = client.post("/pay")
    check((response.status_code, {**response.headers}, response.json()))


def test_django() -> None:
    from resilient_mw_integrations.django.middleware import ResilienceMiddleware as DjangoMiddleware
    from tests.django_project import ready

    ready()
    from django.test import RequestFactory

    request = RequestFactory().post("/pay")
    response = DjangoMiddleware(lambda _: None).process_exception(request, busy())
    check((response.status_code, {name.lower(): value for name, value in response.headers.items()},
           json.loads(response.content)))  # fmt: skip
