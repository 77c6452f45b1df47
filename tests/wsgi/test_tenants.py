"""Tenants and costs that the head of a request decides, under WSGI."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.admission.head_rule import tenant_from_scope
from resilient_mw.core.head import RequestHead
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import Blocking, hello, in_thread, queued, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def held(policy: ServerPolicy) -> dict[str | None, int]:
    """Return the slots that each tenant holds in the class of unmarked routes."""
    state = next(each for each in guard_of(policy).controller.classes if each.priority.name == "normal")
    return (
        {} if state.tenants is None else {name: each.slots for name, each in state.tenants._tenants.items()}
    )


def of(tenant: str) -> list[tuple[str, str]]:
    return [("X-Tenant", tenant)]


class Seen:
    """An application that notes what each tenant holds while it works."""

    def __init__(self) -> None:
        self.held: list[dict[str | None, int]] = []
        self.slots: list[int] = []
        self.policy: ServerPolicy | None = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        assert self.policy is not None
        self.held.append(held(self.policy))
        self.slots.append(slots_taken(self.policy))
        return hello(environ, start_response)


def guarded(app: Any, **fields: Any) -> tuple[ResilienceMiddleware, ServerPolicy]:
    policy = ServerPolicy(**{"overload": None, **fields})
    if isinstance(app, Seen):
        app.policy = policy
    return ResilienceMiddleware(app, policy), policy


def test_slots_are_taken_and_given_back_in_the_name_of_the_tenant() -> None:
    app = Seen()
    middleware, policy = guarded(app, tenant="X-Tenant")
    for headers in (of("a"), of("b"), [], of("a, b")):
        assert ScriptedWSGI(middleware, headers=headers).run().status == "200 OK"
    assert app.held == [{"a": 1}, {"b": 1}, {None: 1}, {"(invalid)": 1}]
    assert held(policy) == {}
    assert guard_of(policy).snapshot().ignored_headers == {"x-tenant": 1}


def test_slots_come_back_to_the_tenant_when_the_handler_fails() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        raise LookupError("handler")

    middleware, policy = guarded(app, tenant="X-Tenant")
    with pytest.raises(LookupError, match="handler"):
        ScriptedWSGI(middleware, headers=of("a")).run()
    assert held(policy) == {}
    assert slots_taken(policy) == 0


def test_slots_that_futures_hold_come_back_to_the_tenant() -> None:
    work: Future[None] = Future()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        current().hold(work)
        return hello(environ, start_response)

    middleware, policy = guarded(app, tenant="X-Tenant")
    ScriptedWSGI(middleware, headers=of("a")).run()
    assert held(policy) == {"a": 1}
    work.set_result(None)
    assert held(policy) == {}


def test_one_tenant_cannot_fill_the_queue() -> None:
    app = Blocking()
    middleware, policy = guarded(app, tenant="X-Tenant", limit=1, queue=1, max_wait=30, wait_share=1.0)
    answers: list[ScriptedWSGI] = []
    threads = []
    for number, name in enumerate(("a", "a", "b")):
        request = ScriptedWSGI(middleware, headers=of(name))
        answers.append(request)
        threads.append(in_thread(request.run))
        if number == 0:
            assert app.entered.acquire(timeout=10)
        else:
            end = time.monotonic() + 10
            while queued(policy) < 1 and time.monotonic() < end:
                time.sleep(0.002)
    # The place of the second one of `a` is one of one: a tenant that would hold as many does not take it.
    threads[2].join(10)
    assert answers[2].header("X-Refusal-Reason") == "queue_full"
    app.let_go.set()
    for thread in threads:
        thread.join(10)
    assert [each.status for each in answers] == ["200 OK", "200 OK", "503 Service Unavailable"]
    assert held(policy) == {}


def test_a_broken_function_lets_requests_pass_and_is_counted() -> None:
    def broken(head: RequestHead) -> Any:
        raise LookupError("broken")

    app = Seen()
    middleware, policy = guarded(app, tenant=broken, routes=[RouteRule("/*", cost=broken)])
    for _ in range(2):
        assert ScriptedWSGI(middleware).run().status == "200 OK"
    assert app.held == [{}, {}]
    assert app.slots == [1, 1]
    assert guard_of(policy).snapshot().guard_errors == 4


def test_what_the_server_authenticated_is_a_tenant() -> None:
    app = Seen()
    middleware, _ = guarded(app, tenant=tenant_from_scope("REMOTE_USER"))
    ScriptedWSGI(middleware, extra={"REMOTE_USER": "ann"}).run()
    ScriptedWSGI(middleware).run()
    assert app.held == [{"ann": 1}, {None: 1}]


def by_query(head: RequestHead) -> int:
    return int(head.scope["QUERY_STRING"] or 1)


@pytest.mark.parametrize(("query", "cost"), [("", 1), ("3", 3), ("99", 5), ("-1", 1)])
def test_a_request_takes_the_slots_that_its_head_is_worth(query: str, cost: int) -> None:
    app = Seen()
    middleware, policy = guarded(app, limit=5, routes=[RouteRule("/*", cost=by_query)])
    assert ScriptedWSGI(middleware, query=query).run().status == "200 OK"
    assert app.slots == [cost]
    assert slots_taken(policy) == 0


@pytest.mark.parametrize("slot", ["head", "body"])
def test_a_stream_gives_its_slot_back_to_the_tenant(slot: str) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", [])
        return [b"one", b"two"]

    middleware, policy = guarded(app, tenant="X-Tenant", routes=[RouteRule("/*", slot=slot)])
    request = ScriptedWSGI(middleware, headers=of("a"), validate=False).call()
    assert held(policy) == {"a": 1}
    request.read(2)
    assert held(policy) == ({} if slot == "head" else {"a": 1})
    request.close()
    assert held(policy) == {}
    assert slots_taken(policy) == 0


@pytest.mark.parametrize("shadow", [["admission"], ["deadlines"], True])
def test_in_shadow_mode_slots_go_back_to_the_tenant_too(shadow: Any) -> None:
    app = Seen()
    middleware, policy = guarded(app, tenant="X-Tenant", shadow=shadow)
    assert ScriptedWSGI(middleware, headers=of("a")).run().status == "200 OK"
    assert app.held == [{"a": 1}]
    assert held(policy) == {}
