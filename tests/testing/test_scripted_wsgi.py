from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw.testing import ScriptedWSGI
from tests.wsgi.helpers import TEXT, Chunks, serving

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def echo(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [*TEXT, ("X-Twice", "1"), ("x-twice", "2")])
    parts = [
        "REQUEST_METHOD",
        "SCRIPT_NAME",
        "PATH_INFO",
        "QUERY_STRING",
        "REMOTE_ADDR",
        "HTTP_X_A",
        "CONTENT_TYPE",
    ]
    return ["|".join(environ[part] for part in parts).encode("latin-1"), environ["wsgi.input"].read(9)]


def test_the_request_is_what_was_asked_for() -> None:
    server = ScriptedWSGI(
        echo, method="PUT", path="/ü", query="a=1", script_name="/app", peer="192.0.2.7", body=b"payload",
        headers=[("X-A", "1"), ("x-a", "2"), ("Content-Type", "text/csv")],
    ).run()  # fmt: skip
    assert server.chunks == ["PUT|/app|/ü|a=1|192.0.2.7|1,2|text/csv".encode(), b"payload"]
    assert server.status == "200 OK"
    assert server.header("content-type") == "text/plain"
    assert server.header("X-Twice") is None
    assert server.header("X-None") is None


def test_steps_are_taken_one_at_a_time() -> None:
    body = Chunks([b"a", b"b", b"c"])
    server = ScriptedWSGI(serving(body)).call()
    assert body.given == 0
    assert server.read(2) == [b"a", b"b"]
    assert body.given == 2
    assert server.read(5) == [b"c"]
    assert server.read(5) == []
    assert server.body == b"abc"
    server.close()
    assert body.closed == 1


def test_a_body_is_closed_when_the_application_fails() -> None:
    body = Chunks([b"a", b"b"], fail_at=1)
    server = ScriptedWSGI(serving(body))
    with pytest.raises(LookupError, match="chunk"):
        server.run()
    assert (server.body, body.closed) == (b"a", 1)


def test_an_abandoned_body_is_not_closed() -> None:
    body = Chunks([b"a"])
    server = ScriptedWSGI(serving(body), validate=False).call()
    server.abandon()
    assert body.closed == 0
    with pytest.raises(RuntimeError, match="use call"):
        server.read()


def test_a_breach_of_the_protocol_is_an_error() -> None:
    def wrong(environ: WSGIEnvironment, start_response: StartResponse) -> list[Any]:
        start_response("200 OK", list(TEXT))
        return ["text"]

    server = ScriptedWSGI(wrong).call()
    with pytest.raises(AssertionError, match="non-bytestring"):
        server.read()
    server.close()
    assert ScriptedWSGI(wrong, validate=False).run().chunks[:1] == list[Any](["text"])


def test_start_response_behaves_as_that_of_a_server() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        try:
            raise ValueError("mine")
        except ValueError:
            start_response("500 Internal Server Error", list(TEXT), sys.exc_info())
        yield b"a"
        start_response("404 Not Found", list(TEXT), failure)

    failure: Any = (LookupError, LookupError("late"), None)
    server = ScriptedWSGI(app).call()
    server.read(1)
    assert [call.status for call in server.calls] == ["200 OK", "500 Internal Server Error"]
    assert isinstance((server.calls[1].exc_info or (None, None))[1], ValueError)
    with pytest.raises(LookupError, match="late"):
        server.read(1)
    assert server.status == "500 Internal Server Error"
    server.close()


def test_a_second_call_without_an_error_is_refused() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", list(TEXT))
        start_response("200 OK", list(TEXT))
        return []

    with pytest.raises(AssertionError, match="second time"):
        ScriptedWSGI(app).call()


def test_written_bytes_come_first() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", list(TEXT))(b"a")
        return [b"b"]

    assert ScriptedWSGI(app).run().chunks == [b"a", b"b"]


def test_without_a_response_there_is_no_status() -> None:
    with pytest.raises(LookupError, match="has not called start_response"):
        _ = ScriptedWSGI(echo).status
