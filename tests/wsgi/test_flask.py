"""A Flask application under the middleware, in process and on a real server."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest
from flask import Flask, Response, request, stream_with_context
from flask.typing import ResponseReturnValue

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import outcomes, slots_taken
from tests.wsgi.servers import serve


def build(policy: ServerPolicy) -> Flask:
    app = Flask("shop")

    @app.get("/")
    def index() -> ResponseReturnValue:
        return {"remaining": current().remaining()}

    @app.get("/sleep/<float:seconds>")
    def sleep(seconds: float) -> ResponseReturnValue:
        time.sleep(seconds)
        return "slept"

    @app.get("/check")
    def check() -> ResponseReturnValue:
        while True:
            time.sleep(0.01)
            current().check()

    @app.get("/stream")
    def stream() -> ResponseReturnValue:
        def parts() -> Iterator[str]:
            for number in range(5):
                yield f"{request.path} {number} {current().remaining():.3f}\n"

        return Response(stream_with_context(parts()), mimetype="text/plain")

    add_more_views(app)
    app.wsgi_app = ResilienceMiddleware(app.wsgi_app, policy)  # type: ignore[method-assign]
    return app


def add_more_views(app: Flask) -> None:
    @app.get("/cookies")
    def cookies() -> ResponseReturnValue:
        response = Response("x")
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        return response

    @app.get("/broken")
    def broken() -> ResponseReturnValue:
        raise LookupError("mine")

    @app.post("/upload")
    def upload() -> ResponseReturnValue:
        return str(len(request.get_data()))


application = build(ServerPolicy(limit=2, queue=0, routes=[RouteRule("/check", deadline_default=0.2)]))


def test_requests_pass_and_are_counted_under_their_rule() -> None:
    policy = ServerPolicy(routes=[RouteRule("/cookies", priority="critical")])
    client = build(policy).test_client()
    assert 9.0 < client.get("/", buffered=True).get_json()["remaining"] <= 10.0
    assert client.get("/cookies", buffered=True).headers.getlist("Set-Cookie") == [
        "a=1; Path=/",
        "b=2; Path=/",
    ]
    assert client.head("/cookies", buffered=True).status_code == 200
    assert client.post("/upload", data=b"x" * 100_000, buffered=True).text == "100000"
    assert client.get("/nothing", buffered=True).status_code == 404
    assert client.get("/broken", buffered=True).status_code == 500
    assert slots_taken(policy) == 0
    assert outcomes(policy) == {"completed": 6}
    critical = [route for route in guard_of(policy).snapshot().routes if route.priority == "critical"]
    assert sum(route.admitted for route in critical) == 2


@pytest.mark.filterwarnings("error")
def test_a_test_client_that_closes_nothing_uses_up_no_slots() -> None:
    policy = ServerPolicy(limit=2, queue=0)
    client = build(policy).test_client()
    for _ in range(10):
        assert client.get("/").get_json()["remaining"] > 0
        gc.collect()
    assert outcomes(policy) == {"completed": 9}


def test_an_error_that_flask_lets_through_passes_us_too() -> None:
    policy = ServerPolicy()
    app = build(policy)
    app.testing = True
    with pytest.raises(LookupError, match="mine"):
        app.test_client().get("/broken", buffered=True)
    assert outcomes(policy) == {"error": 1}
    assert slots_taken(policy) == 0


def test_check_in_a_view_is_a_504_although_flask_makes_it_a_500() -> None:
    policy = ServerPolicy(deadline_default=0.05)
    response = build(policy).test_client().get("/check", buffered=True)
    assert response.status_code == 504
    assert response.get_json()["reason"] == "deadline_exceeded"
    assert outcomes(policy) == {"deadline": 1}


def test_a_stream_has_both_contexts_and_holds_its_slot_to_the_end() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    app = build(policy)
    response = app.test_client().get("/stream")
    parts = response.iter_encoded()
    assert next(iter(parts)).startswith(b"/stream 0 ")
    assert app.test_client().get("/", buffered=True).status_code == 503
    response.close()
    assert app.test_client().get("/", buffered=True).status_code == 200
    assert outcomes(policy) == {"client_disconnect": 1, "completed": 1}


@pytest.mark.filterwarnings("ignore::resilient_mw.ResilienceWarning")
def test_b49_an_abandoned_stream_spoils_no_later_request() -> None:
    policy = ServerPolicy(limit=1, queue=0, deadline_default=7.0)
    app = build(policy)
    torn_down: list[bool] = []
    app.teardown_request(lambda error: torn_down.append(True))
    server = ScriptedWSGI(app, path="/stream", validate=False).call()
    server.read(2)
    server.abandon()
    gc.collect()
    torn_down.clear()
    for number in range(1, 6):
        response = app.test_client().get("/", buffered=True)
        assert 6.0 < response.get_json()["remaining"] <= 7.0
        assert len(torn_down) == number
    assert slots_taken(policy) == 0


def test_the_answer_is_late_by_the_manual_clock() -> None:
    policy, clock = ServerPolicy(deadline_default=2.0), ManualClock()
    use_clock(policy, clock)
    app = build(policy)

    @app.get("/slow")
    def slow() -> ResponseReturnValue:
        clock.advance(3.0)
        return "late"

    assert app.test_client().get("/slow", buffered=True).status_code == 504


def test_flask_on_waitress() -> None:
    with serve("waitress", "tests.wsgi.test_flask:application") as server:
        assert server.get("/sleep/0.0").body == b"slept"
        late = server.get("/check")
        assert late.status == 504  # it would never end
        assert len(server.get("/stream").body.splitlines()) == 5
        assert server.get("/health").status == 404  # exempt, and not there
