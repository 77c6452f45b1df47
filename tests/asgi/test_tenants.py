"""Tenants and costs that the head of a request decides, under ASGI."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection

from resilient_mw import RouteRule, ServerPolicy
from resilient_mw.admission.head_rule import tenant_from_scope
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.events import Event, GuardFailed
from resilient_mw.core.head import RequestHead
from tests.asgi.driver import (
    Counting,
    Request,
    balanced,
    budget,
    figures,
    hello,
    http_scope,
    is_idle,
    outcomes,
    queued,
    slots,
    until,
)

pytestmark = pytest.mark.usefixtures("own_time")


def of(*tenants: str, path: str = "/", more: tuple[tuple[bytes, bytes], ...] = ()) -> dict[str, Any]:
    """Return the scope of a request with a tenant's header, once for each name."""
    lines = [(b"x-tenant", tenant.encode("latin-1")) for tenant in tenants]
    return http_scope(path, headers=[(b"host", b"test"), *lines, *more])


def held(middleware: ResilienceMiddleware) -> dict[str | None, int]:
    """Return the slots that each tenant holds in the class of unmarked routes."""
    state = next(each for each in middleware._guard.controller.classes if each.priority.name == "normal")
    return (
        {} if state.tenants is None else {name: each.slots for name, each in state.tenants._tenants.items()}
    )


async def ask(middleware: ResilienceMiddleware, scope: dict[str, Any] | None = None) -> Request:
    return await Request(middleware, scope).run()


async def test_slots_are_taken_and_given_back_in_the_name_of_the_tenant() -> None:
    app = Counting()
    guarded = ResilienceMiddleware(app, limit=3, tenant="X-Tenant", overload=None)
    requests = [Request(guarded, scope).start() for scope in (of("a"), of("b"), http_scope())]
    await until(lambda: app.running == 3)
    assert held(guarded) == {"a": 1, "b": 1, None: 1}
    app.gate.set()
    for request in requests:
        await request.end()
        assert request.status == 200
    assert held(guarded) == {}
    assert is_idle(guarded)
    assert [each.tenant for each in app.contexts] == ["a", "b", None]


@pytest.mark.parametrize("way", ["error", "deadline", "disconnect", "cancel"])
async def test_slots_come_back_to_the_tenant_on_every_way_out(way: str) -> None:
    app = Counting()

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("handler")

    inside: Any = failing if way == "error" else app
    guarded = ResilienceMiddleware(inside, limit=2, tenant="X-Tenant", overload=None)
    request = Request(guarded, of("a", more=(budget(50),) if way == "deadline" else ())).start()
    if way in {"disconnect", "cancel"}:
        await until(lambda: app.running == 1)
        (request.disconnect if way == "disconnect" else request.cancel)()
    await request.end()
    await until(lambda: held(guarded) == {})
    assert is_idle(guarded)
    balanced(guarded)
    (outcome,) = outcomes(guarded)
    expected = {
        "error": "error",
        "deadline": "deadline",
        "disconnect": "client_disconnect",
        "cancel": "error",
    }
    assert outcome == expected[way]


async def test_the_tenants_of_a_class_are_served_in_turns() -> None:
    served: list[str] = []
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        served.append(dict(scope["headers"])[b"x-tenant"].decode())
        await gate.wait()
        await hello(scope, receive, send)

    guarded = ResilienceMiddleware(app, limit=1, queue=10, tenant="X-Tenant", overload=None, wait_share=1.0)
    requests = [Request(guarded, of(name)).start() for name in ("a", "a", "a", "b")]
    await until(lambda: queued(guarded) == 3)
    gate.set()
    for request in requests:
        await request.end()
    assert served == ["a", "b", "a", "a"]  # the latest to come is the second to be served


async def test_one_tenant_cannot_fill_the_queue() -> None:
    app = Counting()
    guarded = ResilienceMiddleware(app, limit=1, queue=2, tenant="X-Tenant", overload=None)
    first = [Request(guarded, of("a")).start() for _ in range(3)]
    await until(lambda: queued(guarded) == 2)
    other = Request(guarded, of("b")).start()
    await until(lambda: queued(guarded) == 2 and first[2].status is not None)
    assert (first[2].status, first[2].header("x-refusal-reason")) == (503, "tenant_share")
    app.gate.set()
    await other.end()
    assert other.status == 200


async def test_a_caller_who_leaves_the_queue_leaves_nothing_of_his_tenant() -> None:
    app = Counting()
    guarded = ResilienceMiddleware(app, limit=1, tenant="X-Tenant", overload=None)
    first, second = (Request(guarded, of(name)).start() for name in ("a", "b"))
    await until(lambda: queued(guarded) == 1)
    second.disconnect()
    await second.end()
    app.gate.set()
    await first.end()
    assert held(guarded) == {}
    assert is_idle(guarded)


async def test_a_broken_function_lets_requests_pass_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []

    def tenant(head: RequestHead) -> str | None:
        raise LookupError("no such tenant")

    def cost(head: RequestHead) -> int:
        raise LookupError("no such cost")

    policy = ServerPolicy(
        tenant=tenant, routes=[RouteRule("/x", cost=cost)], listeners=[events.append], limit=5
    )
    app = Counting()
    guarded = ResilienceMiddleware(app, policy)
    requests = [Request(guarded, http_scope("/x")).start() for _ in range(2)]
    await until(lambda: app.running == 2)
    assert slots(guarded) == 2  # each costs one
    app.gate.set()
    for request in requests:
        assert (await request.end()).status == 200
    assert is_idle(guarded)
    assert figures(guarded).guard_errors == 4
    assert [type(each) for each in events] == [GuardFailed] * 4
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 2  # each at most once a minute
    assert "cost function failed" in said[0]
    assert "tenant function failed" in said[1]


async def test_a_header_that_is_there_twice_names_nobody_and_is_counted() -> None:
    app = Counting()
    guarded = ResilienceMiddleware(app, tenant="X-Tenant")
    request = Request(guarded, of("a", "b")).start()
    await until(lambda: app.running == 1)
    assert held(guarded) == {"(invalid)": 1}
    app.gate.set()
    await request.end()
    assert figures(guarded).ignored_headers == {"x-tenant": 1}


async def test_a_header_of_a_megabyte_is_no_key() -> None:
    app = Counting()
    guarded = ResilienceMiddleware(app, tenant="X-Tenant")
    request = Request(guarded, of("a" * 1_000_000)).start()
    await until(lambda: app.running == 1)
    (name,) = held(guarded)
    assert name is not None
    assert len(name) < 64
    app.gate.set()
    await request.end()


class ByHeader(AuthenticationBackend):
    """Whoever says a name has it."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        name = conn.headers.get("authorization")
        return None if name is None else (AuthCredentials(), SimpleUser(name))


async def test_an_authenticated_user_is_a_tenant_where_authentication_is_outside() -> None:
    app = Counting()
    guarded = ResilienceMiddleware(app, tenant=tenant_from_scope("user", "username"))
    outside = AuthenticationMiddleware(guarded, backend=ByHeader())
    known = Request(outside, http_scope(headers=[(b"authorization", b"ann")])).start()
    unknown = Request(outside, http_scope()).start()
    await until(lambda: app.running == 2)
    assert held(guarded) == {"ann": 1, None: 1}
    app.gate.set()
    await known.end()
    await unknown.end()
    assert held(guarded) == {}


def by_size(head: RequestHead) -> int:
    """Cost as many slots as there are megabytes to come."""
    (length,) = head.values("content-length") or ("0",)
    return int(length) // 1_000_000


@pytest.mark.parametrize(("size", "cost"), [(0, 1), (3_000_000, 3), (900_000_000, 5)])
async def test_a_request_takes_the_slots_that_its_head_is_worth(size: int, cost: int) -> None:
    app = Counting()
    guarded = ResilienceMiddleware(app, limit=5, routes=[RouteRule("/x", cost=by_size)])
    scope = http_scope("/x", "POST", headers=[(b"content-length", str(size).encode())])
    request = Request(guarded, scope).start()
    await until(lambda: app.running == 1)
    assert slots(guarded) == cost
    app.gate.set()
    await request.end()
    assert is_idle(guarded)


async def test_an_expensive_request_waits_for_all_of_its_slots() -> None:
    app = Counting()
    guarded = ResilienceMiddleware(app, limit=5, routes=[RouteRule("/x", cost=by_size)], overload=None)
    small = Request(guarded, http_scope("/x")).start()
    await until(lambda: app.running == 1)
    large = Request(guarded, http_scope("/x", headers=[(b"content-length", b"5000000")])).start()
    await until(lambda: queued(guarded) == 1)
    app.gate.set()
    for request in (small, large):
        assert (await request.end()).status == 200
    assert is_idle(guarded)


async def test_exempt_requests_have_no_tenant() -> None:
    asked: list[str] = []

    def tenant(head: RequestHead) -> str:
        asked.append(head.path)
        return "a"

    guarded = ResilienceMiddleware(hello, tenant=tenant)
    for path in ("/health", "/other"):
        assert (await ask(guarded, http_scope(path))).status == 200
    assert asked == ["/other"]


async def test_what_is_refused_for_its_size_asks_for_no_tenant() -> None:
    guarded = ResilienceMiddleware(hello, tenant="X-Tenant", max_body=10)
    request = await ask(guarded, of("a", more=((b"content-length", b"11"),)))
    assert request.status == 413
    assert held(guarded) == {}
    fits = await ask(guarded, of("a", more=((b"content-length", b"10"),)))
    assert fits.status == 200
    assert held(guarded) == {}


@pytest.mark.parametrize("cancel_at", range(6))
async def test_cancelled_at_any_step_a_request_leaves_nothing(cancel_at: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await hello(scope, receive, send)

    guarded = ResilienceMiddleware(app, limit=1, tenant="X-Tenant")
    await Request(guarded, of("a"), cancel_at=cancel_at).run()
    await until(lambda: is_idle(guarded) and held(guarded) == {})
    assert (await ask(guarded, of("b"))).status == 200


@pytest.mark.parametrize("slot", ["head", "body"])
async def test_a_stream_gives_its_slot_back_to_the_tenant(slot: str) -> None:
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await gate.wait()
        await send({"type": "http.response.body", "body": b"end"})

    guarded = ResilienceMiddleware(
        app, tenant="X-Tenant", routes=[RouteRule("/*", slot=slot)], limit=1, overload=None
    )
    first, second = (Request(guarded, of(name)).start() for name in ("a", "b"))
    await until(lambda: first.status == 200)
    if slot == "head":
        await until(lambda: second.status == 200 and held(guarded) == {})
    else:
        assert queued(guarded) == 1
        assert held(guarded) == {"a": 1, "b": 0}
    gate.set()
    for request in (first, second):
        assert (await request.end()).raised is None
    assert held(guarded) == {}
    assert is_idle(guarded)


@pytest.mark.parametrize("shadow", [["admission"], ["deadlines"], True])
async def test_in_shadow_mode_slots_go_back_to_the_tenant_too(shadow: Any) -> None:
    app = Counting()
    guarded = ResilienceMiddleware(app, tenant="X-Tenant", shadow=shadow, limit=1, queue=1, overload=None)
    requests = [Request(guarded, of(name)).start() for name in ("a", "b", "c")]
    await until(lambda: app.running == (1 if shadow == ["deadlines"] else 3))
    assert held(guarded)["a"] == 1
    app.gate.set()
    for request in requests:
        await request.end()
    assert held(guarded) == {}
    assert is_idle(guarded)
