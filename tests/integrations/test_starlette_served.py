"""A Starlette application behind uvicorn: routers, mounts, sub-applications, and pages of every kind of response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, Router

from resilient_mw import ServerPolicy, current, priority
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw_integrations import _asgi_pages
from resilient_mw_integrations.starlette.pages import RequestRefused, handled_by
from tests.asgi import driver
from tests.contract.client import ask, leave
from tests.contract.stacks import behind_uvicorn

POLICY = ServerPolicy(limit=20, name="starlette-served")
LOG: list[str] = []


async def left(request: Request) -> JSONResponse:
    return JSONResponse({"left": current().remaining()})


async def slow(request: Request) -> PlainTextResponse:
    LOG.append("begun")
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        LOG.append(str(current().cancel_reason))
        raise
    return PlainTextResponse("too late")


@priority("sheddable")
class Things(HTTPEndpoint):
    async def get(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("got")

    @priority("critical")
    async def post(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("posted")


def make_app(policy: ServerPolicy) -> Starlette:
    inner = Starlette(routes=[Route("/left/{who}", left)])
    router = priority("sheddable")(Router([Route("/rows/{year:int}", left), Mount("/deep", inner)]))
    app = Starlette(
        routes=[
            Route("/things/{id}", Things),
            Route("/slow", slow),
            Mount("/reports", router),
            Mount("/legacy", priority("critical")(driver.plain(lambda: asyncio.sleep(0)))),
        ]
    )
    app.add_middleware(ResilienceMiddleware, policy=policy)
    return app


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with behind_uvicorn(make_app(POLICY)) as port:
        yield port


async def test_b11_templates_of_mounted_routers_and_applications_are_labels(port: int) -> None:
    for path in (
        "/things/1",
        "/reports/rows/2024",
        "/reports/deep/left/me",
        "/legacy/a/b",
        "/reports/rows/x",
    ):
        await ask(port, path)
    routes = {each.route: each.priority for each in POLICY.snapshot().routes if each.arrived}
    assert routes == {
        "/things/{id}": "sheddable",
        "/reports/rows/{year}": "sheddable",
        "/reports/deep/left/{who}": "sheddable",
        "/legacy/*": "critical",
        "unmatched": "normal",
    }


async def test_the_deadline_and_a_caller_who_leaves_cancel_the_handler(port: int) -> None:
    late = await ask(port, "/slow", budget_ms=100)
    assert (late.status, late.json["reason"]) == (504, "deadline_exceeded")
    await driver.until(lambda: "deadline" in LOG, 10)
    there, begun = asyncio.Event(), LOG.count("begun")
    caller = asyncio.create_task(leave(port, "/slow", after=there))
    await driver.until(lambda: LOG.count("begun") > begun, 10)
    there.set()
    await caller
    await driver.until(lambda: "client_disconnect" in LOG, 10)


# -- pages -----------------------------------------------------------------------------------------------------------


def answered(response: Any, method: str = "GET", handler: Any = None) -> driver.Request:
    """Return the answer to a refused request whose page is `response`."""

    async def handle(request: Request, error: Exception) -> Any:
        assert isinstance(error, RequestRefused)
        return response() if callable(response) and not isinstance(response, JSONResponse) else response

    app = Starlette(routes=[Route("/", left)], exception_handlers={HTTPException: handler or handle})
    app.add_middleware(ResilienceMiddleware, refusal_page=handled_by(app))
    extensions: dict[str, Any] = {"http.response.pathsend": {}}
    scope = driver.http_scope("/", method, headers=[driver.budget(0)], extensions=extensions)
    return asyncio.run(driver.Request(app, scope).run())


def test_a_streamed_page_is_one_body() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    request = answered(lambda: StreamingResponse(parts(), media_type="text/plain"))
    assert (request.status, request.body) == (504, b"ab")
    assert request.header("content-length") == "2"
    assert request.header("x-refusal-reason") == "expired_on_arrival"


def test_a_page_from_a_file_is_its_content(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<h1>busy</h1>")
    request = answered(lambda: FileResponse(file))
    assert request.body == b"<h1>busy</h1>"
    assert request.header("content-type") == "text/html; charset=utf-8"


def test_head_says_how_long_the_page_is(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<h1>busy</h1>")
    request = answered(lambda: FileResponse(file), "HEAD")
    assert (request.body, request.header("content-length")) == (b"", "13")


def test_a_page_that_is_too_large_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_asgi_pages, "LARGEST", 10)
    request = answered(lambda: PlainTextResponse("x" * 11))
    assert request.header("content-type") == "application/problem+json"
    assert answered(lambda: PlainTextResponse("x" * 10)).body == b"x" * 10


async def failing(request: Request, error: Exception) -> Any:
    raise LookupError("no template")


async def silent(request: Request, error: Exception) -> Any:
    async def response(scope: Any, receive: Any, send: Any) -> None: ...

    return response


@pytest.mark.parametrize("handler", [failing, silent])
def test_a_handler_that_draws_nothing_leaves_the_document(
    handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    request = answered(None, handler=handler)
    assert (request.status, request.header("content-type")) == (504, "application/problem+json")
    assert "refusal_page failed" in caplog.text
