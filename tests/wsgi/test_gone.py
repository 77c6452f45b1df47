"""Callers who leave while a thread works for them: what the work, the server and the figures hear of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw import ServerPolicy, current
from resilient_mw.core.errors import RequestCancelled
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import TEXT, hello, outcomes, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


class Caller:
    """A service and a caller of it who may leave."""

    def __init__(self, app: Any, **options: Any) -> None:
        self.left = False
        self.looks = 0
        self.policy = ServerPolicy(limit=1, queue=0)
        self.clock = ManualClock()
        use_clock(self.policy, self.clock)
        environ = {"waitress.client_disconnected": self.has_left}
        self.server = ScriptedWSGI(ResilienceMiddleware(app, self.policy), extra=environ, **options)

    def has_left(self) -> bool:
        self.looks += 1
        return self.left

    def leave(self) -> None:
        self.left = True
        self.clock.advance(0.1)


def test_work_that_stops_for_it_is_no_error_of_the_application() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        current().check()
        caller.leave()
        current().check()
        raise AssertionError("not reached")

    caller = Caller(app)
    server = caller.server.run()
    assert (server.status, server.body) == ("499 Client Closed Request", b"")
    assert (outcomes(caller.policy), slots_taken(caller.policy)) == ({"client_disconnect": 1}, 0)


def test_work_that_does_not_look_is_not_looked_after() -> None:
    caller = Caller(hello)
    caller.left = True
    assert caller.server.run().body == b"hello"
    assert (caller.looks, outcomes(caller.policy)) == (0, {"completed": 1})


def test_a_body_that_stops_for_it_ends_as_connections_end() -> None:
    """Servers log no traceback for that, and never take what there was for the whole."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        yield b"one"
        caller.leave()
        current().check()
        yield b"two"

    caller = Caller(app)
    with pytest.raises(ConnectionResetError) as raised:
        caller.server.run()
    assert raised.value.errno == errno.ECONNRESET
    assert isinstance(raised.value.__cause__, RequestCancelled)
    assert (caller.server.body, outcomes(caller.policy)) == (b"one", {"client_disconnect": 1})
    assert slots_taken(caller.policy) == 0


def test_each_piece_of_a_body_is_an_occasion_to_look() -> None:
    seen: list[bool] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        yield b"one"
        caller.leave()
        yield b"two"
        seen.append(current().reason is not None)
        yield b"three"

    caller = Caller(app)
    assert caller.server.run().body == b"onetwothree", "what is sent is the server's affair"
    assert seen == [True]
    assert outcomes(caller.policy) == {"client_disconnect": 1}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_head_is_all_that_some_answers_have(method: str) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        yield b"one"
        caller.leave()
        current().check()
        yield b"two"

    caller = Caller(app, method=method)
    if method == "HEAD":
        caller.server.run()
    else:
        with pytest.raises(ConnectionResetError):
            caller.server.run()
    assert outcomes(caller.policy) == {"completed" if method == "HEAD" else "client_disconnect": 1}
