"""Idempotency keys under WSGI where something is unusual: where an application is mounted, when the deadline passes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.idempotency import State, StoreUnavailable
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import queued, slots_taken
from tests.wsgi.test_idempotency import InThread, Payments, guarded, post, state_in, until


def test_each_place_where_an_application_is_mounted_has_keys_of_its_own() -> None:
    app = Payments()
    middleware = guarded(app)
    for root in ("/shop", "/office", "/shop"):
        post(middleware, script_name=root).run()
    assert app.runs == 2


class Slow(MemoryIdempotencyStore):
    """A store that takes all the time that it gets."""

    def __init__(self, *, answers: bool) -> None:
        super().__init__()
        self._answers = answers

    def begin(self, claim: Any, *, timeout: float = 5.0) -> Any:
        time.sleep(timeout)
        if self._answers:
            return super().begin(claim, timeout=timeout)
        raise StoreUnavailable("slow")


@pytest.mark.parametrize("answers", [True, False])
def test_nothing_is_begun_after_the_deadline(answers: bool) -> None:
    """Neither under the key, which would be unknown for a day, nor unprotected."""
    app = Payments()
    middleware = guarded(app, Slow(answers=answers), store_down="open")
    policy = ServerPolicy(deadline_default=0.2)
    said = post(ResilienceMiddleware(middleware, policy)).run()
    assert (said.status[:3], app.runs) == ("504", 0)
    assert state_in(middleware) is None
    assert slots_taken(policy) == 0


@pytest.mark.parametrize(("error", "left"), [(SystemExit(1), State.UNKNOWN), (RuntimeError("no"), None)])
@pytest.mark.parametrize("streams", [False, True])
def test_b86_what_ends_a_worker_leaves_unknown(
    error: BaseException, left: State | None, streams: bool
) -> None:
    """As gunicorn ends one that takes too long: in the middle of the work. An error says that the work has failed."""

    def cut_off() -> Any:
        raise error

    def body() -> Any:
        yield cut_off()

    def app(_: Any, __: Any) -> Any:
        return body() if streams else cut_off()

    middleware = guarded(app)
    with pytest.raises(type(error)):
        post(middleware, validate=False).run()
    assert state_in(middleware) is left


def test_an_empty_key_is_malformed() -> None:
    """As under ASGI: a client that means to be protected must hear that it is not."""
    app = Payments()
    said = post(guarded(app), ("Idempotency-Key", "")).run()
    assert (said.status[:3], said.header("X-Refusal-Reason"), app.runs) == (
        "400",
        "idempotency_key_invalid",
        0,
    )


def test_work_that_was_lost_while_it_waited_for_a_slot_is_not_begun() -> None:
    """Somebody else is at it by then, or an operator has released the key."""
    runs = {"POST": 0, "PUT": 0}
    fail, go = threading.Event(), threading.Event()

    def app(environ: Any, start_response: Any) -> Any:
        method = environ["REQUEST_METHOD"]
        runs[method] += 1
        if method == "POST":
            assert fail.wait(20)
            raise RuntimeError("no")
        assert go.wait(20)
        start_response("204 No Content", [])
        return []

    store, policy = MemoryIdempotencyStore(), ServerPolicy(limit=2, queue=5)
    middleware = guarded(app, store, heartbeat=0.01)
    outer = ResilienceMiddleware(middleware, policy)
    first = InThread(post(outer))
    until(lambda: runs["POST"] == 1)
    repeat = InThread(post(outer))
    until(lambda: middleware.joins.waiting == 1)
    others = [InThread(post(outer, method="PUT"))]
    until(lambda: runs["PUT"] == 1)
    others.append(InThread(post(outer, method="PUT")))
    until(lambda: queued(policy) == 1)
    fail.set()
    first.end()
    until(lambda: runs["PUT"] == 2 and queued(policy) == 1)  # which is the repeat
    (record,) = store.records()
    assert store.release(record.record, running=True)
    until(lambda: middleware.desk.figures.outcomes().get("lost") == 1)
    go.set()
    for each in others:
        each.end()
    assert (repeat.end().status[:3], runs["POST"]) == ("409", 1)
    assert slots_taken(policy) == 0
