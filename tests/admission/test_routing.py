"""How a request is treated: exempt path, rule, mark, default; labels stay bounded; what has no effect is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.routing import RouteEntries, RouteTable, unreached
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.marks import Mark
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.routes import UNMATCHED, Route, RouteRule


class _Resolver:
    """Knows routes by their exact path."""

    def __init__(self, *routes: Route) -> None:
        self._routes = {route.template: route for route in routes}

    def resolve(self, path: str, scope: Mapping[str, Any]) -> Route | None:
        return self._routes.get(path)

    def routes(self) -> Iterable[Route]:
        return self._routes.values()


def _table(*routes: Route, **policy: Any) -> RouteTable:
    made = ServerPolicy(**policy)
    table = RouteTable(made, RouteEntries(made))
    if routes:
        table.bind(_Resolver(*routes))
    return table


def _seen(table: RouteTable, path: str, method: str = "GET") -> tuple[str, str, int]:
    entry = table.entry(path, method, {})
    return entry.template, entry.priority, entry.cost


def test_an_unmarked_route_is_normal_and_costs_one() -> None:
    assert _seen(_table(Route("/a")), "/a") == ("/a", "normal", 1)


def test_a_path_that_no_route_serves_has_one_label_whatever_it_is() -> None:
    table = _table(Route("/a"))
    assert {_seen(table, f"/wp-{number}.php") for number in range(100)} == {(UNMATCHED, "normal", 1)}
    assert table.entry("/x", "GET", {}) is table.default


def test_a_mark_counts_where_no_rule_says_otherwise() -> None:
    marked = Route("/a", Mark("sheddable", 2, DeadlineRule(maximum=5.0)))
    table = _table(marked)
    assert _seen(table, "/a") == ("/a", "sheddable", 2)
    assert table.entry("/a", "GET", {}).deadline == DeadlineRule(10.0, 0.0, 5.0)


def test_a_rule_goes_before_a_mark_and_leaves_what_it_does_not_say() -> None:
    marked = Route("/a", Mark("sheddable", 2))
    assert _seen(_table(marked, routes=[RouteRule("/a", priority="critical")]), "/a") == ("/a", "critical", 2)


def test_a_rule_may_take_larger_or_smaller_bodies_than_the_policy() -> None:
    rules = [RouteRule("/upload", max_body=1_000), RouteRule("/b", max_body=0), RouteRule("/c", cost=2)]
    table = _table(*(Route(path) for path in ("/upload", "/b", "/c")), routes=rules, max_body=10)
    bodies = [table.entry(path, "POST", {}).max_body for path in ("/upload", "/b", "/c", "/d", "/healthz")]
    assert bodies == [1_000, 0, 10, 10, 10]
    assert _table(routes=rules[1:]).entry("/c", "POST", {}).max_body is None
    methods = [RouteRule("/a", methods=["POST"], max_body=9), RouteRule("/a", max_body=5)]
    table = _table(Route("/a"), routes=methods)
    assert [table.entry("/a", method, {}).max_body for method in ("POST", "PUT")] == [9, 5]
    for wrong in (-1, 1.5, True, "10"):
        with pytest.raises(ValueError, match=r"RouteRule.max_body=.* must be a whole number of at least 0"):
            RouteRule("/a", max_body=wrong)  # type: ignore[arg-type]


def test_the_first_rule_that_matches_path_and_method_decides_alone() -> None:
    rules = [
        RouteRule("/a", methods=["POST"], priority="critical"),
        RouteRule("/a", cost=3),
        RouteRule("/a", priority="sheddable"),
    ]
    table = _table(routes=rules)
    assert _seen(table, "/a", "POST") == ("/a", "critical", 1)
    assert _seen(table, "/a", "GET") == ("/a", "normal", 3)


def test_health_paths_are_exempt_for_reading_only_and_before_every_rule() -> None:
    table = _table(routes=[RouteRule("/*", priority="sheddable")])
    for path in ("/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics"):
        assert _seen(table, path) == (path, "exempt", 1)
        assert _seen(table, path, "HEAD") == (path, "exempt", 1)
        assert _seen(table, path, "POST")[1] == "sheddable"


@pytest.mark.parametrize(
    "path",
    [
        "/healthz-admin",
        "/health/../admin",
        "//health",
        "/HEALTH",
        "/health%2f",
        "/health/",
        "/x/health",
        "health",
    ],
)
def test_no_path_trick_is_exempt(path: str) -> None:
    """B10."""
    assert _seen(_table(), path) == (UNMATCHED, "normal", 1)


def test_the_same_treatment_of_the_same_template_is_one_entry() -> None:
    policy = ServerPolicy(routes=[RouteRule("/items/{id}", cost=2)])
    entries = RouteEntries(policy)
    one, two = RouteTable(policy, entries), RouteTable(policy, entries)
    assert one.entry("/items/1", "GET", {}) is two.entry("/items/2", "POST", {})
    assert len(entries.all()) == len(policy.exempt_paths) + 2


def test_a_mark_and_a_rule_that_do_not_fit_together_are_an_error() -> None:
    """Each is fine for itself; together they ask for more slots than the class can ever have."""
    classes = [PriorityClass("high", reserved=3), PriorityClass("normal", reserved=1)]
    table = _table(
        Route("/a", Mark("high", 9)), limit=10, classes=classes, routes=[RouteRule("/a", priority="normal")]
    )
    with pytest.raises(ValueError, match=r"RouteRule\('/a'\).*'/a'.* has cost=9, .* at most 7"):
        table.entry("/a", "GET", {})


def test_binding_refuses_a_mark_of_an_unknown_class() -> None:
    with pytest.raises(ValueError, match="the mark of route '/a' names the priority class 'vip'"):
        _table(Route("/a", Mark("vip")))


def test_binding_refuses_a_cost_that_can_never_fit() -> None:
    with pytest.raises(ValueError, match="the mark of route '/a' has cost=4"):
        _table(Route("/a", Mark(cost=4)), limit=3)


def test_a_route_added_after_the_start_is_checked_when_it_is_met() -> None:
    resolver = _Resolver(Route("/a"))
    table = _table()
    assert table.bind(resolver) == []
    resolver._routes["/late"] = Route("/late", Mark("vip"))
    with pytest.raises(ValueError, match="the mark of route '/late'"):
        table.entry("/late", "GET", {})


def test_a_rule_that_matches_no_route_is_named() -> None:
    policy = ServerPolicy(routes=[RouteRule("/a"), RouteRule("/b", methods=["GET"]), RouteRule("/c/*")])
    table = RouteTable(policy, RouteEntries(policy))
    complaints = table.bind(_Resolver(Route("/a"), Route("/c/{id}")))
    assert complaints == [
        "RouteRule('/b', methods=['GET']) matches no route of the application: correct its path or remove it"
    ]
    assert table.bind(None) == [], "nothing is known of an application without a route source"


def test_what_was_found_before_binding_is_looked_up_again() -> None:
    table = _table()
    assert _seen(table, "/a") == (UNMATCHED, "normal", 1)
    table.bind(_Resolver(Route("/a", Mark("critical"))))
    assert _seen(table, "/a") == ("/a", "critical", 1)


def test_marks_are_unreached_only_if_no_application_leads_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from resilient_mw.core import marks

    monkeypatch.setattr(marks, "_marked", [])

    @marks.priority("critical")
    def one() -> None: ...

    @marks.priority("critical")
    def two() -> None: ...

    first, second = _table(Route("/one", targets=[one])), _table(Route("/two", targets=[two]))
    assert [name.rpartition(".")[2] for name in unreached([first])] == ["two"]
    assert unreached([first, second]) == []
