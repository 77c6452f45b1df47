"""Policies as plain data: what a table and a text become, and how each wrong one is named."""

from __future__ import annotations

import datetime
import re
import tomllib
from dataclasses import fields
from typing import Any

import pytest

from resilient_mw import Band, OverloadPolicy, PriorityClass, RouteRule, ServerPolicy
from resilient_mw.admission.plain import (
    EXAMPLES,
    FIELDS,
    TABLES,
    from_plain,
    from_text,
    in_code_only,
    with_given,
)
from resilient_mw.core.marks import Mark

TABLE = """
limit = 20
queue = 5
max_wait = 2
shadow = ["quotas"]
trusted_peers = ["10.0.0.0/8"]
websocket_limit = "none"
tenant = "X-Tenant"
default_class = "rest"

[[classes]]
name = "pay"
weight = 8
reserved = 2

[[classes]]
name = "rest"
queue_length = 3
queue_order = "newest_first"

[[routes]]
path = "/reports/*"
methods = ["GET"]
priority = "rest"
cost = 4
deadline_default = 30
deadline_covers = "head"

[[quotas]]
rate = "100/minute"
by_cost = true

[overload]
memory = "none"
enter_overloaded = 0.9

[overload.queue]
healthy = 0.5
overloaded = 0.95
"""


def policy_of(text: str, base: ServerPolicy | None = None) -> ServerPolicy:
    return with_given(base or ServerPolicy(), from_plain(tomllib.loads(text), lambda _: "r.toml"))


def read(field: str, text: str) -> Any:
    return from_text(field, text, "V").value


def test_a_table_says_everything_that_is_no_function() -> None:
    policy = policy_of(TABLE)
    assert (policy.limit, policy.queue, policy.max_wait, policy.websocket_limit) == (20, 5, 2, None)
    assert policy.classes == (
        PriorityClass("pay", weight=8, reserved=2),
        PriorityClass("rest", queue_length=3, queue_order="newest_first"),
    )
    (rule,) = policy.routes
    assert (rule.path, rule.methods) == ("/reports/*", frozenset({"GET"}))
    same = RouteRule("/reports/*", priority="rest", cost=4, deadline_default=30, deadline_covers="head")
    assert rule.mark == same.mark != Mark()
    (quota,) = policy.quotas
    assert (quota.amount, quota.window, quota.by_cost) == (100, 60, True)
    assert policy.overload == OverloadPolicy(memory=None, queue=Band(0.5, 0.95), enter_overloaded=0.9)
    assert policy.shadowed == {"quotas"}


def test_none_stands_for_none_inside_of_tables_too() -> None:
    policy = policy_of(
        """
        tenant = "X-Tenant"
        classes = [{name = "normal", queue_length = "none"}]
        routes = [{path = "/a", needs = "none", priority = "None", max_body = "none", slot = "none"}]
        quotas = [{rate = "5/minute", path = "none"}]
        overload = {queue = "None"}
        """
    )
    assert policy.classes[0].queue_length is None
    assert policy.routes[0].mark == Mark()
    assert policy.quotas[0].path is None
    assert policy.overload is not None
    assert policy.overload.queue is None


def test_objects_of_the_policy_may_stand_among_plain_values() -> None:
    rule = RouteRule("/a", cost=2)
    given = from_plain(
        {"routes": [rule, {"path": "/b"}], "overload": None}, lambda field: f"settings {field}"
    )
    policy = with_given(ServerPolicy(), given)
    assert policy.routes[0] is rule
    assert policy.routes[1].path == "/b"
    assert policy.overload is None
    assert given["routes"].source == "settings routes"


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("limit", " 20 ", 20),
        ("limit", "auto", "auto"),
        ("queue", "none", None),
        ("websocket_limit", "None", None),
        ("max_wait", "0.5", 0.5),
        ("debug", "true", True),
        ("debug", "0", False),
        ("shadow", "1", True),
        ("shadow", "admission, quotas", ("admission", "quotas")),
        ("exempt_paths", "/a, /b,", ("/a", "/b")),
        ("exempt_paths", "none", ()),
        ("routes", "none", ()),
        ("overload", "none", None),
        ("name", "1", "1"),
        ("tenant", "none", None),
        ("trusted_peers", "10.0.0.0/8,::1", ("10.0.0.0/8", "::1")),
    ],
)
def test_text_becomes_what_the_field_takes(field: str, text: str, value: object) -> None:
    found = read(field, text)
    assert (type(found), found) == (type(value), value)
    with_given(ServerPolicy(), {field: from_text(field, text, "V")})


def test_text_says_tables_in_toml() -> None:
    (rule,) = read("routes", '[{path = "/reports/*", priority = "sheddable"}]')
    assert (rule.path, rule.mark.priority) == ("/reports/*", "sheddable")
    assert read("overload", "{stale_after = 5}") == OverloadPolicy(stale_after=5)


@pytest.mark.parametrize("field", [*TABLES, "overload"])
def test_the_example_in_an_error_is_allowed_itself(field: str) -> None:
    with_given(ServerPolicy(tenant="X-Tenant"), {field: from_text(field, EXAMPLES[field], "V")})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limti = 20", "r.toml: 'limti' is no setting: did you mean 'limit'?"),
        ("wombat = 20", "r.toml: 'wombat' is no setting: there are "),
        ("limit = 0", "r.toml: limit=0 is not allowed: it must be a whole number of at least 1"),
        ("debug = 1", "r.toml: debug=1 is not allowed: it must be True or False"),
        ("queue = 1979-05-27", "r.toml: queue=datetime.date(1979, 5, 27) is not allowed"),
        ("listeners = []", "r.toml: listeners can be given in code only"),
        ("routes = 5", "r.toml: routes=5 is not allowed: it must be a list of tables"),
        ("routes = [5]", "r.toml: routes=5 is not allowed: it must be a RouteRule"),
        ("[[routes]]\ncost = 1", "r.toml: routes[0]: the key 'path' is missing"),
        ("[[routes]]\npath = '/a'\nprioritty = 'x'", "r.toml: routes[0]: 'prioritty' is no key: did you mean 'priority'?"),
        ("[[routes]]\npath = 'a'", "r.toml: routes[0]: RouteRule.path='a' is not allowed"),
        ("[[routes]]\npath = '/a'\npriority = 'gold'", "r.toml: RouteRule('/a') names the priority class 'gold'"),
        ("[[classes]]\nname = 'a'\nweight = 0", "r.toml: classes[0]: PriorityClass('a').weight=0 is not allowed"),
        ("[[quotas]]\nrate = 'often'", "r.toml: quotas[0]: Quota.rate='often' is not allowed"),
        ("[overload]\nmemroy = 1", "r.toml: overload: 'memroy' is no key: did you mean 'memory'?"),
        ("[overload.queue]\nhealthy = 1", "r.toml: overload.queue: the key 'overloaded' is missing"),
        ("[overload]\nrise = -1", "r.toml: overload: OverloadPolicy.rise=-1 is not allowed"),
        ("overload = 3", "r.toml: overload=3 is not allowed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_source(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        policy_of(text)


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("limit", "x", "V: limit='x' is not allowed: it must be 'auto' or a whole number of at least 1"),
        ("queue", "1.5", "V: queue='1.5' is not allowed: it must be a whole number"),
        ("max_wait", "nan", "V: max_wait=nan is not allowed: it must be a number from 0 to 3600"),
        ("debug", "perhaps", "V: debug='perhaps' is not allowed: it must be True or False"),
        (
            "routes",
            "/reports",
            "V: routes='/reports' is not allowed: it must be TOML, for instance [{path = ",
        ),
        ("routes", "[]\nx = 1", "V: routes='[]\\nx = 1' is not allowed: it must be one TOML value"),
        ("quota_store", "redis://x", "V: quota_store can be given in code only"),
    ],
)
def test_wrong_text_is_named_with_its_source(field: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        with_given(ServerPolicy(), {field: from_text(field, text, "V")})


def test_an_error_about_two_fields_names_both_sources() -> None:
    given = {
        **from_plain({"deadline_maximum": 5}, lambda _: "r.toml"),
        "queue": from_text("queue", "3", "OTHER"),
        "deadline_default": from_text("deadline_default", "30", "VARIABLE"),
    }
    with pytest.raises(ValueError, match=r"^r\.toml, VARIABLE: deadline_default=30\.0 is not allowed"):
        with_given(ServerPolicy(), given)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "value", [5, -1, 1.5, "x", "", True, [], [5], {}, {"x": 1}, [{}], [[]], datetime.time(1)]
)  # fmt: skip
def test_no_plain_value_gets_past_the_checks_or_fails_in_another_way(field: str, value: Any) -> None:
    said = ""
    try:
        with_given(ServerPolicy(), from_plain({field: value}, lambda _: "r.toml"))
    except ValueError as error:
        said = str(error)
    assert not said or (said.startswith("r.toml: ") and field in said)


def test_every_field_is_known_and_functions_are_for_code() -> None:
    assert set(FIELDS) == {each.name for each in fields(ServerPolicy) if each.init}
    assert {field for field in FIELDS if in_code_only(field)} >= {"listeners", "quota_store"}
    assert set(TABLES) <= set(FIELDS)
    for field in ("limit", "trusted_peers", "tenant", "classes", "shadow", "overload", "debug"):
        assert not in_code_only(field)
