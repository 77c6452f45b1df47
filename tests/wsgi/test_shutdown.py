"""The end of a server under WSGI: a thread cannot be stopped, so it is told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from resilient_mw import CancelReason, ServerPolicy, current
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import TEXT, hello, outcomes, refused, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def test_a_draining_service_refuses_after_the_delay_and_serves_health_checks() -> None:
    policy = ServerPolicy()
    served = ResilienceMiddleware(hello, policy)
    assert ScriptedWSGI(served).run().status == "200 OK"
    policy.drain(delay=60)
    assert policy.readiness().reasons == ("draining",)
    assert ScriptedWSGI(served).run().status == "200 OK"
    policy.drain()
    answer = ScriptedWSGI(served).run()
    assert (answer.status[:3], answer.header("X-Refusal-Reason")) == ("503", "draining")
    assert refused(policy) == {"draining": 1}
    assert ScriptedWSGI(served, path="/healthz").run().status == "200 OK"


def test_check_ends_what_still_runs_at_the_end() -> None:
    policy = ServerPolicy()
    pause = threading.Event()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        policy.drain(timeout=0.1)
        while True:
            current().check()
            pause.wait(0.01)

    answer = ScriptedWSGI(ResilienceMiddleware(app, policy)).run()
    assert answer.status.startswith("503")
    assert b'"draining"' in answer.body
    assert answer.header("X-Refusal-Reason") is None
    assert outcomes(policy) == {"shutdown": 1}
    assert slots_taken(policy) == 0


def test_on_cancel_cuts_a_wait_short_at_the_end() -> None:
    policy = ServerPolicy()
    told: list[CancelReason] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        cut = threading.Event()
        current().on_cancel(told.append)
        current().on_cancel(lambda _: cut.set())
        policy.drain(timeout=0.1)
        assert cut.wait(5)
        start_response("200 OK", list(TEXT))
        return [b"half of it"]

    answer = ScriptedWSGI(ResilienceMiddleware(app, policy)).run()
    assert told == [CancelReason.SHUTDOWN]
    assert (answer.status, answer.body) == ("200 OK", b"half of it")  # an answer is better than none
    assert outcomes(policy) == {"shutdown": 1}
