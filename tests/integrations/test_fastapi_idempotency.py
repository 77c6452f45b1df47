"""The OpenAPI document says what a request may be answered because of its idempotency key."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.idempotency import IdempotencyPolicy, IdempotencyRoute, IdempotencyRule, idempotent_route
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw_integrations.fastapi import document_refusals

ROUTES = [IdempotencyRoute("/items/{number}", IdempotencyRule(use="required"), methods=["PUT"])]
POLICY = IdempotencyPolicy(caller="X-User", routes=ROUTES)


def documented(*, admission: bool) -> dict[str, Any]:
    app = FastAPI()

    @app.post("/payments", status_code=201)
    @idempotent_route(required=True)
    def pay(amount: int) -> None: ...

    @app.post("/notes")
    def note() -> None: ...

    @app.post("/search")
    @idempotent_route(off=True)
    def search() -> None: ...

    @app.put("/items/{number}")
    def replace(number: int) -> None: ...

    @app.get("/items/{number}")
    def show(number: int) -> None: ...

    app.add_middleware(IdempotencyMiddleware, policy=POLICY, store=MemoryIdempotencyStore())
    if admission:
        app.add_middleware(ResilienceMiddleware, policy=ServerPolicy())
    document_refusals(app)
    paths: dict[str, Any] = app.openapi()["paths"]
    return {
        f"{method} {path}": operation["responses"]
        for path, item in paths.items()
        for method, operation in item.items()
    }


def test_where_keys_count() -> None:
    for admission in (True, False):
        found = documented(admission=admission)
        ours = {"400", "409", "422"}
        assert {name: ours & responses.keys() for name, responses in found.items()} == {
            "post /payments": ours,
            "post /notes": ours,
            "post /search": set(),
            "put /items/{number}": ours,
            "get /items/{number}": {"422"},
        }
        assert ("503" in found["post /notes"]) == admission


def test_what_they_say() -> None:
    found = documented(admission=True)
    reasons = found["post /payments"]["400"]["headers"]["X-Refusal-Reason"]["schema"]["enum"]
    assert set(reasons) == {"idempotency_key_invalid", "idempotency_key_missing", "idempotency_no_caller"}
    assert found["post /notes"]["400"]["headers"]["X-Refusal-Reason"]["schema"]["enum"] == [
        "idempotency_key_invalid"
    ]
    assert "Retry-After" in found["post /payments"]["409"]["headers"]
    both = found["post /payments"]["422"]["content"]
    assert both.keys() == {"application/json", "application/problem+json"}, "FastAPI's own, and ours"
