"""The handlers on the page of the clients turn errors of calls into answers."""

from __future__ import annotations

import math
import re
import textwrap
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from resilient_mw import Dependency
from resilient_mw.calls.events import Phase
from resilient_mw_integrations.httpx import BudgetTooSmall, CallExpired, CallRefused, ResilientTransport
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## What your own caller gets\n", 1)[1].split("\n## ", 1)[0]
PRICES = Dependency("prices", "http://prices/*", retry=None)


def _fails(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def _app() -> FastAPI:
    code = "\n".join(re.findall(r"^    .*$|^$", SECTION, re.MULTILINE))
    app = FastAPI()
    names: dict[str, Any] = {"app": app, "httpx": httpx, "JSONResponse": JSONResponse, "math": math}
    exec(compile(textwrap.dedent(code), "clients.md", "exec"), names)
    client = httpx.Client(transport=ResilientTransport([PRICES], httpx.MockTransport(_fails)))

    @app.get("/price")
    def price() -> int:
        return client.get("http://prices/tea").status_code

    return app


def test_an_open_circuit_is_503_with_retry_after_and_a_failure_502() -> None:
    browser = TestClient(_app())
    assert browser.get("/price").status_code == 502
    PRICES.open_circuit()
    refused = browser.get("/price")
    assert (refused.status_code, refused.json(), refused.headers["retry-after"]) == (
        503,
        {"reason": "circuit_open"},
        "1",
    )
    PRICES.reset_circuit()


@pytest.mark.parametrize("error", [CallExpired("late", Phase.HEAD, "prices")])
def test_a_call_that_expired_is_504(error: Exception) -> None:
    app = _app()

    @app.get("/late")
    def late() -> None:
        raise error

    answer = TestClient(app).get("/late")
    assert (answer.status_code, answer.json()) == (504, {"reason": "deadline_exceeded"})


def test_the_table_says_what_also_catches_each_error() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `httpx\.(\w+)` \|", PAGE, re.MULTILINE))
    for kind in (CallExpired, CallRefused, BudgetTooSmall):
        assert issubclass(kind, getattr(httpx, rows[kind.__name__]))
