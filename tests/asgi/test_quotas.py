"""Quotas under ASGI: 429 before a slot, a store that does not hold up the loop, one that is away, counts by tenant."""

from __future__ import annotations

import asyncio
from typing import Any

import http_sf
import pytest

from resilient_mw import RouteRule, ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.events import Event, Refused
from resilient_mw.core.quotas import Quota
from resilient_mw.core.rejection import Reason
from resilient_mw.core.tenant_figures import QuotaSnapshot, TenantSnapshot
from resilient_mw.runtime.guard import guard_of
from resilient_mw_integrations.limits import MemoryQuotas
from tests.asgi.driver import (
    Counting,
    Request,
    answer,
    balanced,
    budget,
    figures,
    hello,
    http_scope,
    is_idle,
    slots,
    supervisor_of,
    until,
)
from tests.asgi.test_tenants import held, of
from tests.runtime.test_quotas import Store

pytestmark = pytest.mark.usefixtures("own_time")


HOURLY = Quota("2/hour", name="hourly")


def remote() -> Store:
    return Store(Store())


def guarded(app: Any = hello, **fields: Any) -> ResilienceMiddleware:
    given = {
        "tenant": "X-Tenant",
        "quotas": [HOURLY],
        "quota_store": MemoryQuotas(),
        "overload": None,
        **fields,
    }
    return ResilienceMiddleware(app, ServerPolicy(**given))


async def ask(middleware: ResilienceMiddleware, scope: dict[str, Any]) -> Request:
    return await Request(middleware, scope).run()


@pytest.mark.parametrize("store", [MemoryQuotas, remote])
async def test_over_its_quota_a_tenant_gets_429_and_the_others_do_not(store: Any) -> None:
    events: list[Event] = []
    middleware = guarded(quota_store=store(), listeners=[events.append])
    assert [(await ask(middleware, of("a"))).status for _ in range(3)] == [200, 200, 429]
    limited = await ask(middleware, of("a"))
    assert limited.header("x-refusal-reason") == "quota_exceeded"
    assert limited.problem["reason"] == "quota_exceeded"
    assert limited.header("cache-control") == "no-store"
    (rest,) = fields_of(limited, "ratelimit")
    assert rest[0] == "hourly"
    assert rest[1]["r"] == 0
    assert limited.header("retry-after") == str(rest[1]["t"])
    assert 1 <= rest[1]["t"] <= 7200
    assert fields_of(limited, "ratelimit-policy") == [("hourly", {"q": 2, "w": 3600})]
    assert (await ask(middleware, of("b"))).status == 200
    nobodys = [(await ask(middleware, http_scope())).status for _ in range(3)]
    assert nobodys == [200] * 3
    assert figures(middleware).quotas == QuotaSnapshot({"hourly": 2}, 0)
    assert [type(each) for each in events] == [Refused] * 2
    assert is_idle(middleware)
    balanced(middleware)


def fields_of(request: Request, name: str) -> list[tuple[str, dict[str, int]]]:
    found: Any = http_sf.parse((request.header(name) or "").encode(), tltype="list")
    return [(each, dict(rest)) for each, rest in found]


@pytest.mark.parametrize("store", [MemoryQuotas, remote])
async def test_it_is_refused_before_a_slot_is_taken(store: Any) -> None:
    app = Counting()
    middleware = guarded(app, quota_store=store(), limit=1, queue=0)
    first = Request(middleware, of("a")).start()
    await until(lambda: app.running == 1)
    full = await ask(middleware, of("a"))
    assert (full.status, full.header("x-refusal-reason")) == (503, "queue_full")  # that one has counted
    limited = await ask(middleware, of("a"))
    assert limited.status == 429
    assert slots(middleware) == 1
    app.gate.set()
    await first.end()
    assert held(middleware) == {}


@pytest.mark.parametrize("path", ["/health", "/other"])
async def test_exempt_requests_have_no_quota(path: str) -> None:
    middleware = guarded(quotas=[Quota("1/hour")])
    answers = [(await ask(middleware, of("a", path=path))).status for _ in range(2)]
    assert answers == ([200, 200] if path == "/health" else [200, 429])


async def test_what_has_no_time_or_is_too_large_counts_for_no_quota() -> None:
    middleware = guarded(max_body=10)
    for _ in range(3):
        assert (await ask(middleware, of("a", more=(budget(1),)))).status == 504
        assert (await ask(middleware, of("a", more=((b"content-length", b"11"),)))).status == 413
    assert (await ask(middleware, of("a"))).status == 200


async def test_the_loop_goes_on_while_the_store_is_asked() -> None:
    store = remote()
    store.hold = asyncio.Event()
    store.timeout = 2.0
    middleware = guarded(quota_store=store)
    asking = Request(middleware, of("a")).start()
    assert (await ask(middleware, http_scope())).status == 200
    assert (asking.status, slots(middleware)) == (None, 0)
    store.hold.set()
    assert (await asking.end()).status == 200


async def test_b37_a_burst_that_waits_for_the_store_cannot_pass_the_limit() -> None:
    """The slot is taken in the same step as the decision, after the store has answered."""
    store, app = remote(), Counting()
    store.hold = asyncio.Event()
    store.timeout = 2.0
    middleware = guarded(app, quota_store=store, quotas=[Quota("100/hour")], limit=2, queue=0)
    burst = [Request(middleware, of("a")).start() for _ in range(20)]
    await asyncio.sleep(0.01)
    store.hold.set()
    await until(lambda: sum(each.status == 503 for each in burst) == 18)
    assert (app.running, app.most) == (2, 2)
    app.gate.set()
    for each in burst:
        await each.end()
    assert is_idle(middleware)
    assert held(middleware) == {}


async def test_a_request_that_is_cancelled_while_the_store_is_asked_leaves_nothing() -> None:
    store = remote()
    store.hold = asyncio.Event()
    store.timeout = 2.0
    middleware = guarded(quota_store=store, limit=1)
    request = Request(middleware, of("a")).start()
    await asyncio.sleep(0.01)
    request.cancel()
    await request.end()
    assert isinstance(request.raised, asyncio.CancelledError)
    store.hold.set()
    assert is_idle(middleware)
    assert (await ask(middleware, of("a"))).status == 200


@pytest.mark.parametrize(
    ("when_away", "statuses"), [("local", [200, 200, 429]), ("open", [200] * 3), ("closed", [503] * 3)]
)
async def test_while_the_store_is_away_the_policy_decides(when_away: str, statuses: list[int]) -> None:
    store = remote()
    store.away = ConnectionError("refused")
    middleware = guarded(quota_store=store, quota_store_away=when_away)
    requests = [await ask(middleware, of("a")) for _ in range(3)]
    assert [each.status for each in requests] == statuses
    found = figures(middleware).quotas
    assert found is not None
    assert found.without_store == 3
    if when_away == "closed":
        assert requests[0].header("x-refusal-reason") == "quota_unknown"
        assert requests[0].header("retry-after") == "1"
    assert is_idle(middleware)


async def test_a_store_that_does_not_answer_costs_its_timeout_and_no_more() -> None:
    store = remote()
    store.hold = asyncio.Event()
    middleware = guarded(quota_store=store)
    first = await ask(middleware, of("a"))
    assert first.status == 200
    assert 0.04 < first.returned_at < 1.0
    second = await ask(middleware, of("a"))
    assert second.status == 200
    assert second.returned_at < 0.04  # it is not asked again at once


async def test_an_error_of_our_own_lets_the_request_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    middleware = guarded(quota_store=remote())
    desk = middleware._guard.tenancy.desk
    assert desk is not None

    def broken(asking: object) -> None:
        raise LookupError("broken")

    monkeypatch.setattr(desk, "_estimate", broken)
    request = await ask(middleware, of("a"))
    assert request.status == 200
    assert figures(middleware).guard_errors == 1
    assert is_idle(middleware)


async def test_the_deadline_goes_on_while_the_store_is_asked() -> None:
    store = remote()
    store.timeout = 0.05
    lost = asyncio.Event()
    store.hold = lost
    app = Counting()
    middleware = guarded(app, quota_store=store)
    request = await ask(middleware, of("a", more=(budget(200),)))
    assert request.status == 504
    assert request.returned_at < 1.0  # not 200 ms more than the caller gave
    assert len(supervisor_of(middleware).in_flight) == 0


async def test_only_tenants_that_are_named_are_told_apart() -> None:
    middleware = guarded(tenant_labels=["acme", "globex"], routes=[RouteRule("/closed", max_body=0)])
    for name in ("acme", "acme", "acme", "stranger", "other"):
        await ask(middleware, of(name))
    middleware._guard.drain()
    await ask(middleware, of("stranger"))
    assert figures(middleware).tenants == {
        "acme": TenantSnapshot(2, 0, 1),
        "globex": TenantSnapshot(0, 0, 0),
        "other": TenantSnapshot(2, 1, 0),
    }


async def test_one_that_waited_is_counted_once_when_its_wait_is_over() -> None:
    app = Counting()
    middleware = guarded(app, tenant_labels=["a", "b"], quotas=(), limit=1, queue=2, max_wait=0.05)
    first = Request(middleware, of("a")).start()
    await until(lambda: app.running == 1)
    late = await ask(middleware, of("b"))
    assert late.header("x-refusal-reason") == "queue_timeout"
    gone = Request(middleware, of("b")).start()
    await asyncio.sleep(0.01)
    gone.disconnect()
    await gone.end()
    assert figures(middleware).tenants["b"] == TenantSnapshot(0, 1, 0)
    app.gate.set()
    await first.end()
    assert figures(middleware).tenants["a"] == TenantSnapshot(1, 0, 0)


async def test_b91_names_make_no_series() -> None:
    middleware = guarded(tenant_labels=["acme"], quotas=())
    for number in range(100):
        await ask(middleware, of(f"tenant{number}"))
    assert list(figures(middleware).tenants) == ["acme", "other"]
    assert len(figures(middleware).routes) <= 8


async def test_two_middlewares_of_one_policy_share_the_quotas() -> None:
    policy = ServerPolicy(tenant="X-Tenant", quotas=[HOURLY], quota_store=MemoryQuotas())
    one, two = ResilienceMiddleware(hello, policy), ResilienceMiddleware(hello, policy)
    statuses = [(await ask(each, of("a"))).status for each in (one, two, one, two)]
    assert statuses == [200, 200, 429, 429]
    # Inside each other a request counts once.
    nested = ResilienceMiddleware(ResilienceMiddleware(answering, policy), policy)
    statuses = [(await ask(nested, of("b"))).status for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert guard_of(policy).snapshot().quotas == QuotaSnapshot({"hourly": 3}, 0)


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await answer(send)


async def test_a_daily_quota_says_when_to_come_back() -> None:
    middleware = guarded(quotas=[Quota("1/day", name="daily")])
    await ask(middleware, of("a"))
    limited = await ask(middleware, of("a"))
    assert 128 <= int(limited.header("retry-after") or 0) <= 2 * 86_400


async def test_refusals_are_in_the_figures_of_the_route() -> None:
    middleware = guarded(quotas=[Quota("1/hour")])
    for _ in range(3):
        await ask(middleware, of("a"))
    (route,) = [each for each in figures(middleware).routes if each.arrived]
    assert (route.arrived, route.admitted, dict(route.refused)) == (3, 1, {Reason.QUOTA_EXCEEDED.value: 2})


async def test_a_reload_changes_tenants_and_quotas() -> None:
    policy = ServerPolicy(tenant="X-Tenant", quotas=[HOURLY], quota_store=MemoryQuotas(), overload=None)
    middleware = ResilienceMiddleware(hello, policy)
    assert [(await ask(middleware, of("a"))).status for _ in range(3)] == [200, 200, 429]
    policy.reload(limit=7)
    assert (await ask(middleware, of("a"))).status == 429
    policy.reload(quotas=[Quota("3/hour", name="hourly")])
    assert [(await ask(middleware, of("a"))).status for _ in range(4)] == [
        200,
        200,
        200,
        429,
    ]  # another rate begins anew
    policy.reload(tenant=lambda head: "one for all")
    assert [(await ask(middleware, of(name))).status for name in ("a", "b", "c", "d")] == [200, 200, 200, 429]
    policy.reload(tenant=None, quotas=())
    assert (await ask(middleware, of("a"))).status == 200
    assert figures(middleware).quotas is None


async def test_over_a_quota_no_place_among_the_streams_is_taken() -> None:
    store = remote()
    middleware = guarded(
        quota_store=store, quotas=[Quota("1/hour")], routes=[RouteRule("/*", slot="head")], stream_limit=1
    )
    assert [(await ask(middleware, of("a"))).status for _ in range(3)] == [200, 429, 429]
    assert (await ask(middleware, of("b"))).status == 200
    assert is_idle(middleware)


@pytest.mark.parametrize("store", [MemoryQuotas, remote])
async def test_in_shadow_mode_who_is_over_his_quota_runs_and_is_counted(store: Any) -> None:
    events: list[Event] = []
    middleware = guarded(
        quota_store=store(), shadow=["quotas"], tenant_labels=["a"], listeners=[events.append]
    )
    assert [(await ask(middleware, of("a"))).status for _ in range(3)] == [200] * 3
    snapshot = figures(middleware)
    assert snapshot.quotas == QuotaSnapshot({"hourly": 0}, 0)
    assert snapshot.tenants["a"] == TenantSnapshot(3, 0, 0)
    assert snapshot.shadow is not None
    (route,) = snapshot.shadow.routes
    assert dict(route.refused) == {"quota_exceeded": 1}
    assert len(events) == 1
    assert is_idle(middleware)
    assert held(middleware) == {}


@pytest.mark.parametrize("shadow", [["admission"], True])
async def test_in_shadow_mode_of_all_the_store_is_asked_before_the_model(shadow: Any) -> None:
    app = Counting()
    middleware = guarded(app, quota_store=remote(), quotas=[Quota("9/hour")], shadow=shadow, limit=1, queue=1)
    requests = [Request(middleware, of(name)).start() for name in ("a", "b", "c")]
    await until(lambda: app.running == 3)
    app.gate.set()
    for request in requests:
        assert (await request.end()).status == 200
    assert is_idle(middleware)
    assert held(middleware) == {}


@pytest.mark.parametrize("store", [MemoryQuotas, remote])
async def test_who_is_over_his_quota_is_counted_once_where_all_is_in_shadow_mode(store: Any) -> None:
    app = Counting()
    middleware = guarded(app, quota_store=store(), quotas=[Quota("1/hour")], shadow=True, limit=1, queue=0)
    requests = [Request(middleware, of("a")).start() for _ in range(2)]
    await until(lambda: app.running == 2)
    snapshot = figures(middleware)
    assert snapshot.shadow is not None
    assert snapshot.shadow.outside == 1
    assert [dict(route.refused) for route in snapshot.shadow.routes] == [{"quota_exceeded": 1}]
    app.gate.set()
    for request in requests:
        assert (await request.end()).status == 200
    assert is_idle(middleware)
    assert held(middleware) == {}
