"""B91: however many paths, methods and hosts callers try, the labels are those of the application's routes."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from flask import Flask
from prometheus_client import CollectorRegistry, generate_latest

from resilient_mw import RouteRule, priority
from resilient_mw.admission.decision import ADMITTED
from resilient_mw.runtime.protection import Protection
from resilient_mw_integrations.prometheus import install
from tests.integrations.serving import http_scope, wsgi_environ

pytestmark = pytest.mark.usefixtures("entry_points")

METHODS = ("GET", "POST", "HEAD", "OPTIONS", "FOO", "get", "X" * 4096)
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789/-._~%é\n"
ATTEMPTS = 50_000


def fastapi_app() -> Any:
    app, sub, router = FastAPI(), FastAPI(), APIRouter()

    @app.get("/items/{id}")
    async def item(id: str) -> None: ...  # noqa: A002

    @priority("sheddable")
    @app.get("/files/{name:path}")
    async def file(name: str) -> None: ...

    @router.post("/orders")
    async def order() -> None: ...

    @sub.get("/items/{id}")
    async def other(id: str) -> None: ...  # noqa: A002

    async def legacy(scope: Any, receive: Any, send: Any) -> None: ...

    app.include_router(router, prefix="/v1")
    app.mount("/sub", sub)
    app.mount("/legacy", legacy)
    return app


def flask_app() -> Any:
    app = Flask(__name__, static_folder=None)
    for endpoint, rule, methods in (
        ("item", "/items/<id>", ["GET"]),
        ("file", "/files/<path:name>", ["GET"]),
        ("order", "/v1/orders", ["POST"]),
        ("both", "/sub/items/<id>", ["GET", "PUT"]),
    ):
        app.add_url_rule(rule, endpoint, lambda **values: "", methods=methods)
    return app


def paths(rng: random.Random) -> Any:
    heads = ("", "/items/", "/files/", "/v1/orders", "/sub/", "/sub/items/", "/legacy/", "/docs", "/admin/")
    real = ("/items/7", "/files/a/b", "/v1/orders", "/sub/items/7", "/health", "/admin/x")
    while True:
        yield rng.choice(real)
        yield rng.choice(heads) + "/" * rng.randrange(2) + "".join(rng.choices(ALPHABET, k=rng.randrange(12)))


@pytest.mark.parametrize("framework", ["fastapi", "flask"])
def test_b91_labels_are_bounded(framework: str) -> None:
    name = f"b91-{framework}"  # Not one name for both: what a run leaves behind counts until it is collected.
    protection = Protection(
        None, {"name": name, "limit": 5, "queue": 0, "routes": [RouteRule("/admin/*", cost=2)]}
    )
    with pytest.warns(UserWarning, match="matches no route"):
        protection.start([fastapi_app() if framework == "fastapi" else flask_app()])
    guard, rng = protection.guard, random.Random(91)
    registry = CollectorRegistry()
    install(registry)
    series: list[int] = []
    samples = paths(rng)
    now = guard.clock.now()
    running: list[Any] = []
    for attempt in range(ATTEMPTS):
        path, method = next(samples), rng.choice(METHODS)
        path = path if path.startswith("/") else f"/{path}"
        if framework == "fastapi":
            scope = http_scope(
                path, method, headers=[(b"host", str(attempt).encode()), (b"priority", b"u=1")]
            )
        else:
            scope = wsgi_environ("/", method, HTTP_HOST=f"{attempt}.org")
            scope["PATH_INFO"] = path.encode().decode("latin-1")
        entry = protection.entry(path, "", method, scope)
        if guard.arrive(entry, now, now + 5.0) is ADMITTED:
            running.append(entry)
        if len(running) == 5 and attempt % 7 == 0:  # most are shed
            for entry in running:
                guard.end(entry, entry.cost, "completed", 0.001)
            running.clear()
        if attempt in {ATTEMPTS // 2, ATTEMPTS - 1}:
            lines = generate_latest(registry).decode().splitlines()
            series.append(sum(f'app="{name}"' in line and 'route="' in line for line in lines))
    found = {(route.route, route.priority) for route in guard.snapshot().routes}
    own = {"unmatched", "/admin/*", "/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics"}
    if framework == "fastapi":
        own |= {
            "/items/{id}",
            "/files/{name}",
            "/v1/orders",
            "/sub/items/{id}",
            "/legacy/*",
            "/docs",
            "/sub/docs",
        }
        own |= {
            f"{where}{page}"
            for where in ("", "/sub")
            for page in ("/openapi.json", "/redoc", "/docs/oauth2-redirect")
        }
    else:
        own |= {"/items/<id>", "/files/<path:name>", "/v1/orders", "/sub/items/<id>"}
    assert {route for route, _ in found} <= own
    assert {"unmatched", "/admin/*"} < {route for route, _ in found}
    assert len(found) <= len(own)
    assert 0 < series[0] == series[1]
    refused = {route.route for route in guard.snapshot().routes if sum(route.refused.values())}
    admitted = {route.route for route in guard.snapshot().routes if route.admitted}
    assert refused <= own
    assert {"unmatched", "/v1/orders"} <= refused & admitted  # shed requests carry the label of the others
    assert guard.snapshot().guard_errors == 0
    # Others of this process are scraped too.
    own_share = sum(f'app="{name}"' in line for line in lines) / len(lines)
    seconds = []
    for _ in range(5):
        begin = time.thread_time()
        generate_latest(registry)
        seconds.append(time.thread_time() - begin)
    assert min(seconds) * own_share < 0.05
