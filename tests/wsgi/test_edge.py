"""The edge under WSGI: time spent before, trust behind proxies, bodies that are too large, the head that tells."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask, request

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import BodyTooLarge
from resilient_mw.core.events import Event, Refused
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime import protection
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw.wsgi.idempotency_input import HashedInput
from resilient_mw.wsgi.input import CountedInput
from tests.wsgi.helpers import hello, outcomes, refused, slots_taken
from tests.wsgi.test_deadline_headers import Asked

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

NOW = 1_795_953_599_000_000_000
BUDGET = ("X-Request-Timeout-Ms", "30000")
TRUSTED = {"trusted_peers": ["10.0.0.0/8"]}
PROXY = "10.0.0.7"


@pytest.fixture(autouse=True)
def wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "wall_clock_ns", lambda: NOW)


def began(seconds_ago: float) -> tuple[str, str]:
    return "X-Request-Start", f"{(NOW - round(seconds_ago * 1e9)) // 1_000_000}"


# -- time spent before, and whose word counts --------------------------------------------------------------------------


def test_time_since_the_proxy_took_the_request_in_is_charged() -> None:
    assert Asked([began(3.0)], PROXY, **TRUSTED).budget == 7.0
    assert Asked([began(3.0), BUDGET], PROXY, **TRUSTED).budget == 27.0
    assert Asked([began(3.0)], "203.0.113.9", **TRUSTED).budget == 10.0
    assert Asked([began(3.0)], PROXY).budget == 10.0
    late = Asked([began(10.0)], PROXY, **TRUSTED)
    assert (late.status, late.server.header("X-Refusal-Reason")) == (504, "expired_on_arrival")


@pytest.mark.parametrize(
    "start", [("X-Request-Start", "soon"), ("X-Request-Start", ""), began(-2.0), began(61.0)]
)
def test_a_start_that_cannot_be_is_as_if_absent_and_counted(start: tuple[str, str]) -> None:
    asked = Asked([start], PROXY, **TRUSTED)
    assert (asked.budget, asked.ignored) == (10.0, {"x-request-start": 1})


def test_behind_proxies_the_address_that_the_outermost_one_added_decides() -> None:
    for forwarded, left in (("10.9.9.9, 203.0.113.9", 10.0), ("203.0.113.9, 10.9.9.9", 30.0)):
        for lines in ([forwarded], forwarded.split(", ")):
            headers = [BUDGET, *(("X-Forwarded-For", line) for line in lines)]
            assert Asked(headers, PROXY, **TRUSTED, trusted_hops=1).budget == left
    asked = Asked([BUDGET, ("X-Forwarded-For", "unknown")], PROXY, **TRUSTED, trusted_hops=1)
    assert (asked.budget, asked.ignored) == (10.0, {"x-forwarded-for": 1})
    assert Asked([BUDGET], PROXY, **TRUSTED, trusted_hops=1).budget == 10.0
    asked = Asked([BUDGET, ("X-Forwarded-For", "10.9.9.9")], "203.0.113.9", **TRUSTED, trusted_hops=1)
    assert (asked.budget, asked.ignored) == (10.0, {})


# -- bodies ------------------------------------------------------------------------------------------------------------

CHUNKED = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}


WAYS: dict[str, Callable[[Any], Iterable[bytes]]] = {
    "read": lambda stream: [stream.read(-1)],
    "parts": lambda stream: iter(lambda: stream.read(4), b""),
    "line": lambda stream: iter(stream.readline, b""),
    "short lines": lambda stream: iter(lambda: stream.readline(3), b""),
    "lines": lambda stream: stream.readlines(),
    "iteration": iter,
}


class Reading:
    """An application that reads its body in one of the ways that there are."""

    def __init__(self, way: str = "read", *, swallow: bool = False) -> None:
        self.way = way
        self.swallow = swallow
        self.read: list[bytes] = []
        self.errors: list[BaseException] = []
        self.reason: CancelReason | None = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        try:
            for part in WAYS[self.way](environ["wsgi.input"]):
                self.read.append(part)
        except OSError as error:
            self.errors.append(error)
            self.reason = current().cancel_reason
            if not self.swallow:
                raise
        return hello(environ, start_response)


def serve(app: Any, body: bytes, *, chunked: bool = True, **fields: Any) -> tuple[ScriptedWSGI, ServerPolicy]:
    policy = ServerPolicy(**{"max_body": 10, **fields})
    server = ScriptedWSGI(
        ResilienceMiddleware(app, policy), method="POST", body=body, extra=CHUNKED if chunked else {}
    )
    server.run()
    assert slots_taken(policy) == 0
    return server, policy


def test_a_larger_content_length_is_refused_before_a_slot() -> None:
    events: list[Event] = []
    app = Reading()
    server, policy = serve(app, b"x" * 11, chunked=False, listeners=[events.append])
    assert (server.status[:3], server.header("X-Refusal-Reason")) == ("413", "body_too_large")
    assert server.header("Retry-After") is None
    assert server.environ["wsgi.input"].input.tell() == 0
    assert app.read == []
    assert (refused(policy), outcomes(policy)) == ({"body_too_large": 1}, {})
    assert events == [Refused("unmatched", "normal", Reason.BODY_TOO_LARGE, 0.0)]


def test_a_content_length_that_fits_leaves_the_servers_stream_as_it_is() -> None:
    streams: list[object] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        streams.append(environ["wsgi.input"])
        return hello(environ, start_response)

    policy = ServerPolicy(max_body=10)
    server = ScriptedWSGI(
        ResilienceMiddleware(app, policy), method="POST", body=b"x" * 10, validate=False
    ).run()
    assert server.status == "200 OK"
    assert streams == [server.environ["wsgi.input"]]
    assert isinstance(streams[0], io.BytesIO)


@pytest.mark.parametrize("length", ["5, 5", "-1", "ten", "²"])
def test_what_is_no_size_is_counted_while_it_is_read(length: str) -> None:
    for body, status in ((b"x" * 10, "200"), (b"x" * 11, "413")):
        middleware = ResilienceMiddleware(Reading(), ServerPolicy(max_body=10))
        server = ScriptedWSGI(middleware, body=body, validate=False, extra={"CONTENT_LENGTH": length}).run()
        assert server.status[:3] == status


@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_fits_is_read_as_it_is(way: str) -> None:
    for body in (b"", b"x", b"ab\ncd\nefgh", b"\n\n\n"):
        app = Reading(way)
        server, policy = serve(app, body)
        assert (server.status, b"".join(app.read)) == ("200 OK", body)
        assert outcomes(policy) == {"completed": 1}
        if way in {"line", "lines", "iteration"}:
            assert app.read == body.splitlines(keepends=True)


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_turns_out_too_large_is_answered_413_whatever_the_application_makes_of_it(
    way: str, swallow: bool
) -> None:
    for body in (b"x" * 11, b"ab\ncd\nef\nghi\n", b"x" * 10_000):
        app = Reading(way, swallow=swallow)
        server, policy = serve(app, body)
        assert server.status[:3] == "413"
        assert server.header("X-Refusal-Reason") is None, "the work had begun"
        assert b'"reason":"body_too_large"' in server.body
        assert len(b"".join(app.read)) <= 10
        assert isinstance(app.errors[0], BodyTooLarge)
        assert app.reason is CancelReason.BODY_TOO_LARGE
        assert outcomes(policy) == {"body_too_large": 1}
        server_input = server.environ[
            "wsgi.input"
        ].input._stream.input  # each `wsgiref.validate` has wrapped it
        assert server_input.tell() <= 11, "no more is read than it takes to know"


@pytest.mark.parametrize("lazily", [False, True])
def test_when_the_response_has_begun_it_is_cut_off(lazily: bool) -> None:
    class Body:
        closed = 0

        def __init__(self, environ: WSGIEnvironment) -> None:
            self.parts = self.make(environ)

        def __iter__(self) -> Iterator[bytes]:
            return self.parts

        def close(self) -> None:
            self.closed += 1

        def make(self, environ: WSGIEnvironment) -> Iterator[bytes]:
            yield b"begun"
            try:
                environ["wsgi.input"].read(-1)
            except BodyTooLarge:
                if not lazily:
                    raise
            yield b"ended"

    bodies: list[Body] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        bodies.append(Body(environ))
        return bodies[0]

    policy = ServerPolicy(max_body=10)
    server = ScriptedWSGI(
        ResilienceMiddleware(app, policy), method="POST", body=b"x" * 11, extra=CHUNKED
    ).call()
    with pytest.raises(BodyTooLarge):
        server.read()
    server.close()
    assert (server.status, server.body, bodies[0].closed) == ("200 OK", b"begun", 1)
    assert (outcomes(policy), slots_taken(policy)) == ({"body_too_large": 1}, 0)


def test_what_is_written_after_it_reaches_nobody() -> None:
    errors: list[BodyTooLarge] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            environ["wsgi.input"].read(-1)
        except BodyTooLarge as error:
            errors.append(error)
        try:
            write(b"more")
        except BodyTooLarge as error:
            errors.append(error)
        return []

    server, policy = serve(app, b"x" * 11)
    assert server.status[:3] == "413"
    assert b"more" not in server.body
    assert len(errors) == 2
    assert outcomes(policy) == {"body_too_large": 1}


def test_callbacks_are_told_why_and_who_reads_on_is_told_again() -> None:
    reasons: list[CancelReason] = []
    errors: list[str] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        current().on_cancel(reasons.append)
        for size in (-1, 1):
            try:
                environ["wsgi.input"].read(size)
            except BodyTooLarge as error:
                errors.append(str(error))
        return hello(environ, start_response)

    serve(app, b"x" * 50)
    assert reasons == [CancelReason.BODY_TOO_LARGE]
    assert errors == ["the request body is larger than max_body, 10 bytes"] * 2


def test_hints_bound_the_lines() -> None:
    context: Any = None
    stream = CountedInput(io.BytesIO(b"a\nb\nc\n"), 10, context)
    assert stream.readlines(3) == [b"a\n", b"b\n"]
    assert stream.readlines() == [b"c\n"]
    assert stream.read() == b""


def counted(body: bytes) -> CountedInput:
    context: Any = None
    return CountedInput(io.BytesIO(body), 10, context)


def hashed(body: bytes) -> HashedInput:
    fingerprint: Any = hashlib.sha256()
    return HashedInput(io.BytesIO(body), fingerprint, len(body))


@pytest.mark.parametrize("make", [counted, hashed])
def test_none_asks_for_everything_as_it_does_of_files(make: Callable[[bytes], Any]) -> None:
    assert make(b"a\nb").read(None) == b"a\nb"
    assert make(b"a\nb").readline(None) == b"a\n"
    assert make(b"a\nb").readlines(None) == [b"a\n", b"b"]


def test_flask_does_not_make_another_answer_of_it() -> None:
    app = Flask(__name__)

    @app.post("/data")
    def data() -> str:
        return str(len(request.get_data()))

    @app.post("/form")
    def form() -> str:
        return request.form["a"]

    app.add_url_rule("/large", view_func=data, endpoint="large", methods=["POST"])
    app.wsgi_app = ResilienceMiddleware(app.wsgi_app, max_body=30, routes=[RouteRule("/large", max_body=99)])  # type: ignore[method-assign]
    for path, body in (("/data", b"x" * 31), ("/form", b"a=" + b"x" * 31)):
        kind = {"CONTENT_TYPE": "application/x-www-form-urlencoded"}
        # Flask reads without a size, which `wsgiref.validate` does not let pass.
        server = ScriptedWSGI(
            app.wsgi_app, method="POST", path=path, body=body, extra=CHUNKED | kind, validate=False
        ).run()
        assert server.status[:3] == "413"
    for path, size in (("/data", 30), ("/large", 99)):
        server = ScriptedWSGI(
            app.wsgi_app, method="POST", path=path, body=b"x" * size, extra=CHUNKED, validate=False
        ).run()
        assert (server.status, server.body) == ("200 OK", str(size).encode())


# -- what was left -----------------------------------------------------------------------------------------------------


def test_the_head_tells_what_was_left_when_it_left() -> None:
    clock = ManualClock()
    policy = ServerPolicy(deadline_response_header="X-Budget-Left-Ms")
    use_clock(policy, clock)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), ("x-budget-left-ms", "77777"), ("A", "b")])
        clock.advance(1.25)
        yield b"one"
        clock.advance(1.25)
        yield b"two"

    middleware = ResilienceMiddleware(app, policy)
    server = ScriptedWSGI(middleware, headers=[("X-Request-Timeout-Ms", "4000")]).run()
    assert server.headers == [("Content-Type", "text/plain"), ("A", "b"), ("X-Budget-Left-Ms", "2750")]
    assert server.body == b"onetwo"
    refusal = ScriptedWSGI(middleware, headers=[("X-Request-Timeout-Ms", "0")]).run()
    assert (refusal.status[:3], refusal.header("X-Budget-Left-Ms")) == ("504", None)


def test_the_head_tells_it_also_where_the_body_is_complete_with_it() -> None:
    clock = ManualClock()
    policy = ServerPolicy(deadline_response_header="X-Budget-Left-Ms")
    use_clock(policy, clock)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        clock.advance(1.25)
        return hello(environ, start_response)

    server = ScriptedWSGI(ResilienceMiddleware(app, policy), headers=[("X-Request-Timeout-Ms", "4000")]).run()
    assert server.header("X-Budget-Left-Ms") == "2750"


def test_it_is_off_by_default() -> None:
    server = ScriptedWSGI(ResilienceMiddleware(hello, ServerPolicy())).run()
    assert [name for name, _ in server.headers] == ["Content-Type", "Content-Length"]
