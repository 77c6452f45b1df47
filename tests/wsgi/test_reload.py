"""A reload under WSGI: who waits in his thread keeps his place."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from resilient_mw import ServerPolicy, current
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import TEXT, hello, outcomes, queued, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def test_waiting_threads_start_under_the_new_limit() -> None:
    policy = ServerPolicy(limit=1, queue=9, max_wait=30.0, wait_share=1.0)
    inside, go = threading.Semaphore(0), threading.Event()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        inside.release()
        assert go.wait(10)
        return hello(environ, start_response)

    served = ResilienceMiddleware(app, policy)
    threads = [threading.Thread(target=ScriptedWSGI(served).run) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert inside.acquire(timeout=10)
    end = time.monotonic() + 10
    while queued(policy) < 2:
        assert time.monotonic() < end
        time.sleep(0.005)
    policy.reload(limit=3)
    assert inside.acquire(timeout=10)
    assert inside.acquire(timeout=10)
    policy.reload(limit=1)
    go.set()
    for thread in threads:
        thread.join(10)
    assert outcomes(policy) == {"completed": 3}
    assert slots_taken(policy) == 0


def test_what_is_prepared_is_prepared_anew() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", list(TEXT))
        return [f"{current().remaining():.0f}".encode()]

    policy = ServerPolicy()
    served = ResilienceMiddleware(app, policy)
    assert ScriptedWSGI(served).run().body == b"10"
    policy.reload(
        deadline_default=4.0, cors_origins=["https://shop.example"], deadline_response_header="X-Left-Ms"
    )
    answer = ScriptedWSGI(served).run()
    assert (answer.body, answer.header("X-Left-Ms") is not None) == (b"4", True)
    refused = ScriptedWSGI(
        served, headers=[("Origin", "https://shop.example"), ("X-Request-Timeout-Ms", "0")]
    ).run()
    assert refused.header("Access-Control-Allow-Origin") == "https://shop.example"
