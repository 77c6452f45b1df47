"""Idempotency keys under WSGI where something is unusual: where an application is mounted, when the deadline passes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.idempotency import State, StoreUnavailable
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import slots_taken
from tests.wsgi.test_idempotency import Payments, guarded, post, state_in


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
