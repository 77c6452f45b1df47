"""Quotas under WSGI: 429 before a slot, a store that is away, counts by tenant."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.core.quotas import Quota
from resilient_mw.core.tenant_figures import QuotaSnapshot, TenantSnapshot
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw_integrations.limits import MemoryQuotas
from tests.runtime.test_quotas import Store
from tests.wsgi.helpers import hello, refused, slots_taken
from tests.wsgi.test_tenants import held, of


def remote() -> Store:
    return Store(Store())


def guarded(**fields: Any) -> tuple[ResilienceMiddleware, ServerPolicy]:
    given = {
        "tenant": "X-Tenant", "quotas": [Quota("2/hour", name="hourly")], "quota_store": MemoryQuotas(), "overload": None,
        **fields,
    }  # fmt: skip
    policy = ServerPolicy(**given)
    return ResilienceMiddleware(hello, policy), policy


def ask(middleware: ResilienceMiddleware, tenant: str = "a", *more: tuple[str, str]) -> ScriptedWSGI:
    return ScriptedWSGI(middleware, headers=[*of(tenant), *more]).run()


@pytest.mark.parametrize("store", [MemoryQuotas, remote])
def test_over_its_quota_a_tenant_gets_429_and_the_others_do_not(store: Any) -> None:
    middleware, policy = guarded(quota_store=store(), tenant_labels=["a"])
    assert [ask(middleware).status for _ in range(2)] == ["200 OK"] * 2
    limited = ask(middleware)
    assert limited.status == "429 Too Many Requests"
    assert limited.header("X-Refusal-Reason") == "quota_exceeded"
    assert limited.header("RateLimit-Policy") == '"hourly";q=2;w=3600'
    rest = limited.header("RateLimit") or ""
    assert rest.startswith('"hourly";r=0;t=')
    assert limited.header("Retry-After") == rest.partition("t=")[2]
    assert ask(middleware, "b").status == "200 OK"
    assert ScriptedWSGI(middleware).run().status == "200 OK"
    snapshot = guard_of(policy).snapshot()
    assert snapshot.quotas == QuotaSnapshot({"hourly": 1}, 0)
    assert snapshot.tenants == {"a": TenantSnapshot(2, 0, 1), "other": TenantSnapshot(1, 0, 0)}
    assert refused(policy) == {"quota_exceeded": 1}
    assert slots_taken(policy) == 0
    assert held(policy) == {}


def test_what_has_no_time_counts_for_no_quota() -> None:
    middleware, _ = guarded()
    for _ in range(3):
        assert ask(middleware, "a", ("X-Request-Timeout-Ms", "1")).status == "504 Gateway Timeout"
    assert ask(middleware).status == "200 OK"


@pytest.mark.parametrize(
    ("when_away", "statuses"), [("local", [200, 200, 429]), ("open", [200] * 3), ("closed", [503] * 3)]
)
def test_while_the_store_is_away_the_policy_decides(when_away: str, statuses: list[int]) -> None:
    store = remote()
    store.away = ConnectionError("refused")
    middleware, policy = guarded(quota_store=store, quota_store_away=when_away)
    assert [int(ask(middleware).status[:3]) for _ in range(3)] == statuses
    found = guard_of(policy).snapshot().quotas
    assert found is not None
    assert found.without_store == 3
    assert store.asked == 1
    assert slots_taken(policy) == 0


def test_an_error_of_our_own_lets_the_request_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    middleware, policy = guarded(quota_store=remote())
    desk = guard_of(policy).tenancy.desk
    assert desk is not None

    def broken(asking: object) -> None:
        raise LookupError("broken")

    monkeypatch.setattr(desk, "_estimate", broken)
    assert ask(middleware).status == "200 OK"
    assert guard_of(policy).snapshot().guard_errors == 1
    assert slots_taken(policy) == 0


def test_a_head_request_over_the_quota_has_no_body() -> None:
    middleware, _ = guarded(quotas=[Quota("1/hour")])
    ask(middleware)
    limited = ScriptedWSGI(middleware, method="HEAD", headers=of("a")).run()
    assert (limited.status, limited.body) == ("429 Too Many Requests", b"")


@pytest.mark.parametrize("store", [MemoryQuotas, remote])
def test_in_shadow_mode_who_is_over_his_quota_runs_and_is_counted(store: Any) -> None:
    middleware, policy = guarded(quota_store=store(), shadow=True)
    assert [ask(middleware).status for _ in range(3)] == ["200 OK"] * 3
    shadow = guard_of(policy).snapshot().shadow
    assert shadow is not None
    (route,) = shadow.routes
    assert dict(route.refused) == {"quota_exceeded": 1}
    assert held(policy) == {}
