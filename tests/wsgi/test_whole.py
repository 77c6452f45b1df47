"""Responses in one piece: the run is the body, and nothing that may be said or done on the way is left out."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw import ServerPolicy, current
from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.alarm import ALARM
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw.wsgi.threads import WAITED
from resilient_mw.wsgi.whole import WholeRun
from tests.wsgi.helpers import TEXT, hello, outcomes, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def body_of(app: Any, policy: ServerPolicy) -> tuple[Any, ScriptedWSGI]:
    server = ScriptedWSGI(hello)
    return ResilienceMiddleware(app, policy)(server.environ, server._start_response), server


def test_the_run_is_the_body() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    body, server = body_of(hello, policy)
    assert isinstance(body, WholeRun)
    assert (len(body), list(body), [call.status for call in server.calls]) == (1, [b"hello"], ["200 OK"])
    assert slots_taken(policy) == 1
    body.close()
    assert (list(body), slots_taken(policy), outcomes(policy)) == ([], 0, {"completed": 1})


def test_it_ends_once() -> None:
    policy = ServerPolicy(limit=2, queue=0)
    guard = guard_of(policy)
    other, _ = body_of(hello, policy)
    body, _ = body_of(hello, policy)
    body.close()
    body.close()
    assert slots_taken(policy) == 1
    other.close()
    assert (outcomes(policy), guard.snapshot().guard_errors) == ({"completed": 2}, 0)


def test_a_body_that_is_dropped_gives_its_slot_back() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    middleware = ResilienceMiddleware(hello, policy)
    server = ScriptedWSGI(hello)
    middleware(server.environ, server._start_response)
    gc.collect()
    assert ScriptedWSGI(middleware).run().status == "200 OK"
    assert (slots_taken(policy), outcomes(policy)) == (0, {"completed": 2})


def test_an_answer_that_is_marked_says_so() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        current().mark_degraded()
        return hello(environ, start_response)

    assert ScriptedWSGI(ResilienceMiddleware(app)).run().header("X-Degraded") == "1"


def test_heads_that_tell_what_is_left_do_so() -> None:
    server = ScriptedWSGI(ResilienceMiddleware(hello, deadline_response_header="X-Budget-Left-Ms")).run()
    assert 0 < int(server.header("X-Budget-Left-Ms") or "") <= 10_000


def test_callbacks_are_forgotten_when_the_answer_is_there() -> None:
    heard: list[CancelReason] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        current().on_cancel(heard.append)
        contexts.append(current())
        return hello(environ, start_response)

    contexts: list[Any] = []
    body, _ = body_of(app, ServerPolicy())
    assert contexts[0] not in ALARM._watched
    body.close()
    assert heard == []


def test_an_answer_to_cancelled_work_is_counted_as_such() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        context: Any = current()
        context.cancel(CancelReason.CALLER)
        contexts.append(context)
        return hello(environ, start_response)

    contexts: list[Any] = []
    policy = ServerPolicy(limit=1, queue=0)
    server = ScriptedWSGI(ResilienceMiddleware(app, policy)).run()
    assert (server.body, outcomes(policy), slots_taken(policy)) == (b"hello", {"caller": 1}, 0)


def test_an_error_page_reaches_the_server_with_its_error() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        try:
            raise ValueError("mine")
        except ValueError:
            start_response("500 Internal Server Error", list(TEXT), sys.exc_info())
        return [b"sorry"]

    server = ScriptedWSGI(ResilienceMiddleware(app)).run()
    assert (server.status, server.body) == ("500 Internal Server Error", b"sorry")
    assert server.calls[0].exc_info is not None


@pytest.mark.parametrize("made", [[b"one"], (b"one",), [b""]])
def test_what_the_server_iterates_is_what_the_application_made(made: Any) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", list(TEXT))
        return made

    body, _ = body_of(app, ServerPolicy())
    assert list(body) == list(made)
    body.close()


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ({WAITED: 0.25}, {}),
        ({"HTTP_X_REQUEST_TIMEOUT_MS": "2000"}, {}),
        ({"HTTP_X_TENANT": "a"}, {"tenant": "X-Tenant"}),
        ({"CONTENT_LENGTH": "1"}, {}),
    ],
)
def test_what_a_request_says_of_itself_makes_no_detour_for_its_answer(
    said: dict[str, Any], fields: dict[str, Any]
) -> None:
    policy = ServerPolicy(limit=1, queue=0, **fields)
    server = ScriptedWSGI(hello, extra=said)
    body: Any = ResilienceMiddleware(hello, policy)(server.environ, server._start_response)
    assert isinstance(body, WholeRun)
    assert (list(body), slots_taken(policy)) == ([b"hello"], 1)
    body.close()
    assert (slots_taken(policy), outcomes(policy)) == (0, {"completed": 1})
    if "tenant" in fields:
        assert guard_of(policy).controller.classes[1].tenants is not None


@pytest.mark.parametrize(
    ("method", "status", "closed"),
    [
        ("HEAD", "200 OK", "completed"),
        ("GET", "204 No Content", "completed"),
        ("GET", "200 OK", "disconnect"),
    ],
)
def test_an_answer_in_pieces_is_complete_with_its_head_where_that_is_all(
    method: str, status: str, closed: str
) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response(status, list(TEXT))
        return iter([b"", b"one", b"two"])

    policy = ServerPolicy()
    server = ScriptedWSGI(app, method=method)
    body: Any = ResilienceMiddleware(app, policy)(server.environ, server._start_response)
    body.close()
    assert [key.split("_")[-1] for key in outcomes(policy)] == [closed]


def test_an_answer_in_pieces_ends_once_and_stays_at_its_end() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", list(TEXT))
        return iter([b"one", b"two"])

    policy = ServerPolicy()
    body, server = body_of(app, policy)
    assert (list(body), list(body)) == ([b"one", b"two"], [])
    body.close()
    assert (outcomes(policy), server.calls[0].status) == ({"completed": 1}, "200 OK")


def test_an_answer_in_pieces_that_is_marked_says_so() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        current().mark_degraded()
        return iter(hello(environ, start_response))

    assert ScriptedWSGI(ResilienceMiddleware(app)).run().header("X-Degraded") == "1"


def test_an_error_page_in_pieces_reaches_the_server_with_its_error() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        try:
            raise ValueError("mine")
        except ValueError:
            start_response("500 Internal Server Error", list(TEXT), sys.exc_info())
        return iter([b"so", b"rry"])

    server = ScriptedWSGI(ResilienceMiddleware(app)).run()
    assert (server.status, server.body) == ("500 Internal Server Error", b"sorry")
    assert server.calls[0].exc_info is not None
