"""Field case B49: a server that drops the body and never closes it."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from resilient_mw import ResilienceWarning, ServerPolicy, current
from resilient_mw.runtime.context import NO_REQUEST
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import TEXT, hello, in_thread, outcomes, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def streaming(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    start_response("200 OK", list(TEXT))
    for number in range(10):
        yield f"{current().remaining():.3f} {number}".encode()


def leave_in_a_cycle(middleware: ResilienceMiddleware) -> None:
    """Take two chunks of a body and drop it where only the garbage collector finds it."""
    server = ScriptedWSGI(middleware, validate=False).call()
    server.read(2)
    cycle: list[object] = [server._iterable, server]
    cycle.append(cycle)


def test_b49_the_slot_comes_back_and_the_thread_is_clean() -> None:
    policy = ServerPolicy(limit=1, queue=0, deadline_default=5.0)
    middleware = ResilienceMiddleware(streaming, policy)
    gc.disable()
    try:
        leave_in_a_cycle(middleware)
        assert current() is NO_REQUEST
        assert slots_taken(policy) == 1
        assert ScriptedWSGI(middleware).run().status.startswith("503")
        collector = in_thread(gc.collect)  # unraisable exceptions fail this test
        collector.join(5)
    finally:
        gc.enable()
    with pytest.warns(ResilienceWarning, match="without closing it"):
        first = ScriptedWSGI(middleware).call()
    first.close()
    for _ in range(5):
        server = ScriptedWSGI(middleware).run()
        assert 4.0 < float(server.body.split()[0]) <= 5.0
        assert current() is NO_REQUEST
    assert slots_taken(policy) == 0
    assert outcomes(policy) == {"error": 1, "client_disconnect": 1, "completed": 5}


def test_b49_with_warnings_as_errors_the_next_request_is_served_all_the_same() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    middleware = ResilienceMiddleware(streaming, policy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ScriptedWSGI(middleware, validate=False).call().abandon()
        assert ScriptedWSGI(middleware).run().status == "200 OK"
    assert guard_of(policy).snapshot().guard_errors == 1
    assert slots_taken(policy) == 0


@pytest.mark.filterwarnings("ignore::resilient_mw.ResilienceWarning")
def test_b49_the_collector_may_run_while_this_thread_holds_our_lock() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    middleware = ResilienceMiddleware(streaming, policy)
    guard = guard_of(policy)
    server = ScriptedWSGI(middleware, validate=False).call()
    done = threading.Event()

    def collect_under_the_lock() -> None:
        with guard._lock:
            server.abandon()
            gc.collect()
        done.set()

    in_thread(collect_under_the_lock)
    assert done.wait(5)
    assert ScriptedWSGI(middleware).run().status == "200 OK"
    assert slots_taken(policy) == 0


@pytest.mark.filterwarnings("ignore::resilient_mw.ResilienceWarning")
def test_b49_a_body_that_was_never_iterated() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    middleware = ResilienceMiddleware(hello, policy)
    ScriptedWSGI(middleware, validate=False).call().abandon()
    assert ScriptedWSGI(middleware).run().status == "200 OK"
    assert slots_taken(policy) == 0


def test_b49_a_body_that_was_read_whole_is_no_reason_to_warn() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    middleware = ResilienceMiddleware(streaming, policy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        server = ScriptedWSGI(middleware, validate=False).call()
        server.read()
        server.abandon()
        assert ScriptedWSGI(middleware).run().status == "200 OK"
    assert outcomes(policy) == {"completed": 2}
    assert guard_of(policy).snapshot().guard_errors == 0


def test_b49_a_body_that_was_closed_is_not_abandoned() -> None:
    middleware = ResilienceMiddleware(hello)
    ScriptedWSGI(middleware).run()
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ScriptedWSGI(middleware).run().status == "200 OK"
