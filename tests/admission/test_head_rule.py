"""Whom a request comes for, and what it costs, as its head says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from resilient_mw import PriorityClass, RouteRule, ServerPolicy, priority
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.head_rule import (
    INVALID,
    LONGEST_NAME,
    HeadRule,
    TenantOf,
    bounded_name,
    tenant_from_header,
    tenant_from_scope,
    tenant_rule,
)
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.core.marks import Mark


class Head:
    """A request's head of given header lines, in a given scope."""

    method, path, peer = "GET", "/", "203.0.113.9"

    def __init__(self, *lines: tuple[str, str], scope: Mapping[str, Any] | None = None) -> None:
        self.lines = lines
        self.scope: Mapping[str, Any] = scope or {}

    def values(self, name: str) -> list[str]:
        return [value for each, value in self.lines if each == name]


def entry(mark: Mark | None = None, **policy: Any) -> RouteEntry:
    return RouteEntries(ServerPolicy(**policy)).get("/x", mark or Mark())


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ([], None),
        ([("x-tenant", "acme")], "acme"),
        ([("x-tenant", " acme\t")], "acme"),
        ([("x-tenant", "")], None),
        ([("x-tenant", "  ")], None),
        ([("x-other", "acme")], None),
        ([("x-tenant", "acme"), ("x-tenant", "acme")], INVALID),
        ([("x-tenant", "acme"), ("x-tenant", "other")], INVALID),
        ([("x-tenant", "acme, other")], INVALID),  # two lines, as WSGI servers join them
    ],
)
def test_a_header_names_the_tenant(lines: list[tuple[str, str]], name: str | None) -> None:
    assert HeadRule(tenant_from_header("X-Tenant"), None, 1).tenant(Head(*lines)) == name


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        ({}, None),
        ({"user": None}, None),
        ({"user": {"tenant": "acme"}}, "acme"),
        ({"user": SimpleNamespace(tenant="acme")}, "acme"),
        ({"user": SimpleNamespace(tenant=None)}, None),
        ({"user": SimpleNamespace()}, None),
        ({"user": {"tenant": 17}}, "17"),
        ({"user": "acme"}, None),
    ],
)
def test_an_authenticated_scope_names_the_tenant(scope: dict[str, Any], name: str | None) -> None:
    assert HeadRule(tenant_from_scope("user", "tenant"), None, 1).tenant(Head(scope=scope)) == name


def test_a_way_into_the_scope_has_keys() -> None:
    for keys in [(), ("",), (3,)]:
        with pytest.raises(ValueError, match="keys="):
            tenant_from_scope(*keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [LONGEST_NAME + 1, 1_000_000])
def test_a_long_name_is_kept_as_its_digest(length: int) -> None:
    names = {bounded_name("a" * length), bounded_name("a" * (length - 1) + "b"), bounded_name("a" * length)}
    assert len(names) == 2  # they are still told from each other
    assert all(len(name) <= 40 for name in names)
    assert bounded_name("é" * LONGEST_NAME) == "é" * LONGEST_NAME


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "\udc80"])
def test_a_name_that_cannot_be_printed_is_kept_as_its_digest(name: str) -> None:
    assert bounded_name(name).startswith("blake2b:")
    assert bounded_name(name).isascii()


def test_a_function_that_returns_no_text_is_wrong() -> None:
    wrong: Any = lambda head: 17  # noqa: E731
    with pytest.raises(TypeError, match="int, not text or None"):
        HeadRule(wrong, None, 1).tenant(Head())
    nobody: TenantOf = lambda head: None  # noqa: E731
    assert HeadRule(nobody, None, 1).tenant(Head()) is None


@pytest.mark.parametrize(("found", "cost"), [(3, 3), (1, 1), (0, 1), (-7, 1), (8, 8), (9, 8), (10**9, 8)])
def test_a_cost_is_between_one_slot_and_all_of_its_class(found: int, cost: int) -> None:
    rule = entry(
        Mark("low", lambda head: found),
        limit=10,
        classes=[PriorityClass("high", reserved=2), PriorityClass("low")],
        default_class="low",
    ).head_rule
    assert rule is not None
    assert rule.cost(Head(), 1) == cost


@pytest.mark.parametrize("wrong", [1.0, True, None, "2"])
def test_a_cost_that_is_no_whole_number_is_wrong(wrong: Any) -> None:
    with pytest.raises(TypeError, match="no whole number"):
        HeadRule(None, lambda head: wrong, 8).cost(Head(), 1)


def test_only_what_needs_the_head_is_not_plain() -> None:
    assert entry().plain
    assert entry(Mark(cost=3)).plain
    assert not entry(tenant="X-Tenant").plain
    assert not entry(Mark(cost=lambda head: 3)).plain
    assert entry(Mark("exempt"), tenant="X-Tenant").plain
    assert entry(Mark("exempt", lambda head: 3)).plain


def test_each_function_of_one_template_has_its_entry() -> None:
    entries = RouteEntries(ServerPolicy())
    two: Callable[[Any], int] = lambda head: 2  # noqa: E731
    assert entries.get("/x", Mark(cost=two)) is entries.get("/x", Mark(cost=two))
    assert entries.get("/x", Mark(cost=two)) is not entries.get("/x", Mark(cost=lambda head: 3))
    assert entries.get("/x", Mark(cost=two)) is not entries.get("/x", Mark())


def test_another_policy_finds_its_own_tenants_and_costs() -> None:
    mark = Mark(cost=lambda head: 99)
    before = RouteEntries(ServerPolicy(tenant="X-One", limit=10))
    line = Head(("x-one", "one"), ("x-two", "two"))
    one = before.get("/x", mark)
    two = before.under(ServerPolicy(tenant="X-Two", limit=5)).get("/x", mark)
    none = before.under(ServerPolicy(limit=5)).get("/x", mark)
    again = before.under(ServerPolicy(tenant="X-One", limit=10)).get("/x", mark)
    found = [
        (each.head_rule.tenant(line), each.head_rule.cost(line, 1))
        for each in (one, two, none)
        if each.head_rule
    ]
    assert found == [("one", 10), ("two", 5), (None, 5)]
    assert again is one


async def later(head: object) -> str:
    return "acme"


@pytest.mark.parametrize("wrong", ["", "X Tenant", "X_Tenant", "X-Tenant:", "tênant", 3, later, ["X-Tenant"]])
def test_what_is_no_tenant_is_refused_when_the_policy_is_made(wrong: Any) -> None:
    with pytest.raises(ValueError, match="tenant="):
        ServerPolicy(tenant=wrong)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2", later])
def test_what_is_no_cost_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ValueError, match="cost="):
        RouteRule("/x", cost=wrong)
    with pytest.raises(ValueError, match="cost="):
        priority("normal", cost=wrong)


def test_a_function_stays_what_it_is() -> None:
    assert tenant_rule(None) is None
    own: TenantOf = lambda head: head.peer  # noqa: E731
    assert tenant_rule(own) is own
