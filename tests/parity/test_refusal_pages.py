"""Pages of the application's own for refusals: the same over ASGI and WSGI."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from typing import Any

import pytest

from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.asgi import pages as asgi_pages
from resilient_mw.core.pages import PreparedPages, RefusalPage, RefusedRequest
from resilient_mw.core.rejection import Reason
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from tests.asgi.driver import Request, budget, http_scope, until

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
Answer = tuple[int, dict[str, str], bytes]


class Asgi:
    """One request over ASGI that is refused on arrival, or overdue while the application is at work."""

    name = "asgi"

    def __init__(self, **fields: Any) -> None:
        self.middleware: Any = AsgiMiddleware(self.app, **fields)

    @staticmethod
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.get_running_loop().create_future()

    def ask(self, milliseconds: int, accept: str, method: str = "GET") -> Answer:
        headers = [budget(milliseconds), (b"accept", accept.encode())]

        async def run() -> Request:
            return await Request(self.middleware, http_scope("/work", method, headers=headers)).run()

        request = asyncio.run(run())
        assert request.status is not None
        lines = {key.decode().title(): value.decode("latin-1") for key, value in request.starts[0]["headers"]}
        return request.status, lines, request.body


class Wsgi:
    """The same over WSGI."""

    name = "wsgi"

    def __init__(self, **fields: Any) -> None:
        self.middleware: Any = WsgiMiddleware(self.app, **fields)

    @staticmethod
    def app(environ: Any, start_response: Any) -> list[bytes]:
        threading.Event().wait(float(environ["HTTP_X_REQUEST_TIMEOUT_MS"]) / 1000 + 0.01)
        start_response("200 OK", [])
        return [b"too late"]

    def ask(self, milliseconds: int, accept: str, method: str = "GET") -> Answer:
        started: list[Any] = []
        environ = {
            "REQUEST_METHOD": method, "PATH_INFO": "/work", "HTTP_ACCEPT": accept, "SERVER_NAME": "test",
            "HTTP_X_REQUEST_TIMEOUT_MS": str(milliseconds),
        }  # fmt: skip
        body: Any = self.middleware(environ, lambda *args: started.append(args))
        try:
            text = b"".join(body)
        finally:
            getattr(body, "close", lambda: None)()
        ((status, headers),) = started
        assert len({name.lower() for name, _ in headers}) == len(headers)
        return int(status[:3]), {name.title(): value for name, value in headers}, text


@pytest.fixture(params=[Asgi, Wsgi], ids=["asgi", "wsgi"])
def shell(request: pytest.FixtureRequest) -> Any:
    return request.param


def drawn(refused: RefusedRequest) -> RefusalPage | None:
    if not refused.wants_html:
        return None
    text = f"<h1>{refused.status} {refused.title}</h1> begun={refused.begun}"
    return RefusalPage(text, headers=[("X-Design", "Ä"), ("Retry-After", "99"), ("X-Refusal-Reason", "mine")])


@pytest.mark.parametrize(
    ("milliseconds", "reason", "begun"),
    [(0, Reason.EXPIRED_ON_ARRIVAL, False), (30, Reason.DEADLINE_EXCEEDED, True)],
    ids=["refused", "stopped"],
)
def test_a_browser_sees_the_page_and_a_program_the_document(
    shell: Any, milliseconds: int, reason: Reason, begun: bool
) -> None:
    served = shell(refusal_page=drawn)
    status, headers, body = served.ask(milliseconds, BROWSER)
    assert status == 504
    assert body.decode().endswith(f"</h1> begun={begun}")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Length"] == str(len(body))
    assert headers["X-Design"] == "Ä"
    assert headers["Cache-Control"] == "no-store"
    assert "Retry-After" not in headers
    assert headers.get("X-Refusal-Reason") == (None if begun else reason.value)
    assert served.ask(milliseconds, "*/*")[1]["Content-Type"] == "application/problem+json"
    assert served.ask(milliseconds, "text/plain")[1]["Content-Type"].startswith("text/plain")


def test_head_has_no_body(shell: Any) -> None:
    _, headers, body = shell(refusal_page=drawn).ask(0, BROWSER, "HEAD")
    assert body == b""
    assert int(headers["Content-Length"]) > 20


def broken(refused: RefusedRequest) -> RefusalPage | None:
    raise LookupError("no template")


def headers_outside_the_grammar(refused: RefusedRequest) -> RefusalPage | None:
    return RefusalPage("x", headers=[("X-Split", "a\r\nSet-Cookie: b")])


def no_page(refused: RefusedRequest) -> Any:
    return {"body": "x"}


@pytest.mark.parametrize("page", [broken, headers_outside_the_grammar, no_page])
def test_a_page_that_fails_leaves_the_document(
    shell: Any, page: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served = shell(refusal_page=page)
    for milliseconds in (0, 30):
        status, headers, _ = served.ask(milliseconds, BROWSER)
        assert (status, headers["Content-Type"]) == (504, "application/problem+json")
    assert served.middleware.protection.guard.listeners.errors == 2
    assert caplog.text.count("refusal_page failed") == 1


def test_prepared_pages_are_asked_once_for_each_kind_and_told_of_no_request(shell: Any) -> None:
    asked: list[RefusedRequest] = []

    def page(refused: RefusedRequest) -> RefusalPage | None:
        asked.append(refused)
        return drawn(refused)

    served = shell(refusal_page=PreparedPages(page))
    first, second = served.ask(0, BROWSER), served.ask(0, BROWSER)
    assert first == second
    assert first[1]["Content-Type"].startswith("text/html")
    assert served.ask(0, "*/*")[1]["Content-Type"] == "application/problem+json"
    assert served.ask(0, "*/*")[1]["Content-Type"] == "application/problem+json"
    assert [(each.wants_html, each.request, each.retry_after) for each in asked] == [
        (True, {}, None),
        (False, {}, None),
    ]


def test_the_page_is_told_of_the_request(shell: Any) -> None:
    asked: list[RefusedRequest] = []
    shell(refusal_page=asked.append).ask(0, "*/*")
    (refused,) = asked
    request = refused.request
    assert (request.get("path") or request.get("PATH_INFO")) == "/work"
    assert refused.reason is Reason.EXPIRED_ON_ARRIVAL


def test_pages_of_another_origin_can_read_the_page(shell: Any) -> None:
    served = shell(refusal_page=drawn, cors_origins="*")
    assert served.ask(0, BROWSER)[1]["Access-Control-Allow-Origin"] == "*"


def test_a_reload_takes_the_page_away(shell: Any) -> None:
    served = shell(refusal_page=drawn)
    served.middleware.protection.policy.reload(refusal_page=None)
    assert served.ask(0, BROWSER)[1]["Content-Type"] == "application/problem+json"


# -- what only ASGI can --------------------------------------------------------------------------------------------------


async def slowly(refused: RefusedRequest) -> RefusalPage | None:
    await asyncio.sleep(0)
    return drawn(refused)


@pytest.mark.parametrize("page", [slowly, PreparedPages(slowly)], ids=["each", "prepared"])
def test_asgi_awaits_a_page(page: Any) -> None:
    served = Asgi(refusal_page=page)
    for milliseconds in (0, 30, 0):
        status, headers, body = served.ask(milliseconds, BROWSER)
        assert (status, headers["Content-Type"]) == (504, "text/html; charset=utf-8")
        assert body.startswith(b"<h1>504")


def test_wsgi_does_not(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Wsgi(refusal_page=slowly).ask(0, BROWSER)[1]["Content-Type"] == "application/problem+json"
        gc.collect()
    assert "must be a RefusalPage or None" in caplog.text


async def never(refused: RefusedRequest) -> RefusalPage | None:
    while True:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return None  # it swallows it, too


async def cancelled(refused: RefusedRequest) -> RefusalPage | None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("page", [never, cancelled])
def test_a_page_that_does_not_come_holds_no_answer_up(
    page: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asgi_pages, "PAGE_WITHIN", 0.05)
    served = Asgi(refusal_page=page)
    for milliseconds in (0, 30):
        status, headers, _ = served.ask(milliseconds, BROWSER)
        assert (status, headers["Content-Type"]) == (504, "application/problem+json")
    assert "refusal_page failed" in caplog.text


async def test_no_more_pages_are_awaited_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_pages, "MOST_PAGES", 2)
    gate, asked = asyncio.Event(), 0

    async def page(refused: RefusedRequest) -> RefusalPage | None:
        nonlocal asked
        asked += 1
        await gate.wait()
        return RefusalPage("mine")

    served = Asgi(refusal_page=page)
    scope = http_scope(headers=[budget(0)])
    waiting = [Request(served.middleware, scope).start() for _ in range(2)]
    await until(lambda: asked == 2)
    third = await Request(served.middleware, scope).run()
    assert third.header("content-type") == "application/problem+json"
    gate.set()
    assert [(await each.end()).body for each in waiting] == [b"mine", b"mine"]
    fourth = await Request(served.middleware, scope).run()
    assert fourth.body == b"mine"
    assert asked == 3


async def test_a_server_that_cancels_the_refusal_ends_the_page() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def page(refused: RefusedRequest) -> RefusalPage | None:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()
        return None

    request = Request(Asgi(refusal_page=page).middleware, http_scope(headers=[budget(0)])).start()
    await begun.wait()
    request.cancel()
    await request.end()
    assert isinstance(request.raised, asyncio.CancelledError)
    await asyncio.wait_for(ended.wait(), 10)
