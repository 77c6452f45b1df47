"""Field case B37 with threads: a burst cannot pass the limit."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from resilient_mw import RouteRule, ServerPolicy
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import TEXT, in_thread, outcomes, refused, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

THREADS = 64


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Counting:
    """Holds each request until told to let go, and knows how many were inside at most."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.lock = threading.Lock()
        self.let_go = threading.Event()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            assert self.let_go.wait(50)
            start_response("200 OK", list(TEXT))
            yield b"x"
        finally:
            with self.lock:
                self.inside -= 1


def burst(middleware: ResilienceMiddleware, app: Counting, refusals: int, inside: int = 5) -> Counter[str]:
    """Send all requests at once; let the application go on when `refusals` have been answered and `inside` are in it."""
    barrier = threading.Barrier(THREADS)
    answered = threading.Semaphore(0)
    statuses: list[str] = []

    def send() -> None:
        server = ScriptedWSGI(middleware)
        barrier.wait()
        server.run()
        statuses.append(server.status[:3])
        answered.release()

    threads = [in_thread(send) for _ in range(THREADS)]
    for _ in range(refusals):
        assert answered.acquire(timeout=50)
    end = time.monotonic() + 20
    while app.inside < inside and time.monotonic() < end:
        time.sleep(0.005)
    app.let_go.set()
    for thread in threads:
        thread.join(50)
        assert not thread.is_alive()
    return Counter(statuses)


def test_b37_the_limit_holds_for_a_burst() -> None:
    policy, app = ServerPolicy(limit=5, queue=0, deadline_default=60.0), Counting()
    statuses = burst(ResilienceMiddleware(app, policy), app, THREADS - 5)
    assert statuses == {"200": 5, "503": THREADS - 5}
    assert app.most == 5
    assert refused(policy) == {"queue_full": THREADS - 5}
    assert slots_taken(policy) == 0


def test_b37_the_queue_bound_holds_for_a_burst() -> None:
    policy, app = (
        ServerPolicy(limit=5, queue=10, max_wait=50, wait_share=1.0, deadline_default=60.0),
        Counting(),
    )
    statuses = burst(ResilienceMiddleware(app, policy), app, THREADS - 15)
    assert statuses == {"200": 15, "503": THREADS - 15}
    assert app.most == 5
    assert outcomes(policy) == {"completed": 15}
    assert slots_taken(policy) == 0


def test_b37_the_bound_of_exempt_requests_holds_for_a_burst() -> None:
    policy = ServerPolicy(
        limit=1, exempt_limit=7, deadline_default=60.0, routes=[RouteRule("/", priority="exempt")]
    )
    app = Counting()
    statuses = burst(ResilienceMiddleware(app, policy), app, THREADS - 7, inside=7)
    assert statuses == {"200": 7, "503": THREADS - 7}
    assert app.most == 7
    assert slots_taken(policy) == 0
