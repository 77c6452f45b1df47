"""The policy: every wrong value is an error when the policy is made, with the field, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overload_policy import OverloadPolicy
from resilient_mw.admission.policy_numbers import AUTO_LIMIT
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.marks import Mark
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.routes import RouteRule
from resilient_mw_integrations.limits import MemoryQuotas

NAN, INF = float("nan"), float("inf")

# Per field: wrong values, and what the error says is allowed.
WRONG: dict[str, tuple[list[Any], str]] = {
    "limit": ([0, -1, 1.5, True, "10", "", None, NAN, [1]], "whole number of at least 1"),
    "queue": ([-1, 1.5, True, "10", NAN], "a whole number of at least 0"),
    "threads": ([0, -1, 1.5, True, "10", NAN], "a whole number of at least 1"),
    "spare_threads": ([-1, 1.5, True, "10", None, NAN], "a whole number of at least 0"),
    "fit_queue": ([None, 0, 1, "yes"], "True or False"),
    "max_wait": ([-0.1, 3601, NAN, INF, True, "1", None], "a number from 0 to 3600"),
    "wait_share": ([-0.1, 1.1, NAN, True, "1", None], "a number from 0 to 1"),
    "classes": ([None, 5, "normal", ["normal"], [None]], "PriorityClass"),
    "default_class": (
        ["vip", "", "exempt", None, 1, ["normal"]],
        "one of ['critical', 'normal', 'sheddable']",
    ),
    "exempt_limit": ([0, -1, 1.5, True, "1", None], "a whole number of at least 1"),
    "websocket_limit": ([0, -1, 1.5, True, "1", NAN], "a whole number of at least 1"),
    "stream_limit": ([0, -1, 1.5, True, "1", None, NAN], "a whole number of at least 1"),
    "exempt_paths": (["/health", ["health"], [""], [b"/health"], [None], None, 5], "it must"),
    "deadline_default": ([0, -1, NAN, INF, 86_401, True, "1", None], "a number from 0.001 to 86400"),
    "deadline_minimum": ([-1, NAN, INF, 86_401, True, "1", None], "a number from 0 to 86400"),
    "deadline_maximum": ([0, -1, NAN, INF, 86_401, True, "1", None], "a number from 0.001 to 86400"),
    "smallest_budget": ([-1, 61, NAN, INF, True, "1", None], "a number from 0 to 60"),
    "trusted_peers": (["10.0.0.0/8", ["10.0.0.0/99"], ["x"], [5], None, 5], "a network"),
    "trusted_hops": ([-1, 17, 1.0, True, "1", None], "a whole number from 0 to 16"),
    "max_body": ([-1, 1.5, True, "10", NAN], "a whole number of at least 0"),
    "deadline_response_header": (["", "Content-Length", "X-a b", "X-a\r\nB: c", 1, True], "'X-', then ASCII"),
    "shadow": (
        ["admission", ["load"], ["admission", 1], [[]], None, 1],
        "True, False, or some of ['admission', 'deadlines', 'quotas']",
    ),
    "routes": ([["/a"], [None], None, 5, "/a", {}], "RouteRule"),
    "tenant_labels": (["acme", None, 5, [5], [""], ["other"], ["a" * 129], ["a\n"], [None]], "name"),
    "quotas": (["100/minute", ["100/minute"], None, 5, [None], {}], "Quota"),
    "quota_store": ([5, "memory", {}, MemoryQuotas], "a QuotaStore"),
    "quota_store_away": (["", "shut", None, 1, True], "['local', 'open', 'closed']"),
    "tenant": (["", "a b", 3, True], "a header"),
    "overload": ([0, True, "auto", {}, OverloadPolicy], "an OverloadPolicy or None"),
    "listeners": ([[None], [5], None, 5, "print", print], "function"),
    "name": (["", "a b", "ä", None, 1], "ASCII letters, digits"),
    "cors_origins": (
        [
            "https://a",
            "",
            b"*",
            None,
            5,
            [5],
            [None],
            [""],
            ["a"],
            ["https://a/"],
            ["HTTPS://a"],
            ["https://A"],
            ["null"],
            ["https://a:443"],
            ["http://a:80"],
            ["https://*.a"],
            ["https://a b"],
            ["https://u@a"],
            ["https://a\n"],
        ],
        "origin",
    ),
    "cors_credentials": ([None, 0, 1, "yes"], "True or False"),
    "refusal_page": (["page.html", 1, True, {}], "a function of a RefusedRequest"),
    "debug": ([None, 0, 1, "yes"], "True or False"),
    "ramp": ([-1, 3601, NAN, INF, True, "1", None], "a number from 0 to 3600"),
    "drain_delay": ([-1, 3601, NAN, INF, True, "1", None], "a number from 0 to 3600"),
    "drain_timeout": ([-1, 86_401, NAN, INF, True, "1", None], "a number from 0 to 86400"),
    "blocked_after": ([0, 0.09, 3601, NAN, True, "1", None], "a number from 0.1 to 3600"),
}


def test_every_field_is_in_the_table() -> None:
    fields = {field.name for field in dataclasses.fields(ServerPolicy) if field.init}
    assert fields == set(WRONG)


CASES = [(field, value, allowed) for field, (values, allowed) in WRONG.items() for value in values]


@pytest.mark.parametrize(
    ("field", "value", "allowed"), CASES, ids=[f"{field}={value!r}" for field, value, _ in CASES]
)
def test_a_wrong_value_is_an_error_with_field_value_and_range(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match="is not allowed: it must") as caught:
        ServerPolicy(**{field: value})
    message = str(caught.value)
    culprit = (
        value[0] if isinstance(value, list) and field not in {"limit", "default_class", "shadow"} else value
    )
    assert message.startswith(f"{field}={culprit!r} "), message
    if field != "trusted_peers":
        assert allowed in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"deadline_default": 70.0},
            r"^deadline_default=70.0 is not allowed: it must be at most deadline_maximum, 60",
        ),
        ({"deadline_minimum": 70.0}, r"^deadline_minimum=70.0 is not allowed: it must be at most .*60"),
        (
            {"deadline_maximum": 5.0},
            r"^deadline_default=10.0 is not allowed: it must be at most deadline_maximum, 5.0",
        ),
        (
            {"smallest_budget": 11.0},
            r"^smallest_budget=11.0 is not allowed: it must be at most deadline_default, 10.0",
        ),
        (
            {"classes": [PriorityClass("a"), PriorityClass("a")]},
            r"^classes=\['a', 'a'\] is not allowed: .* once",
        ),
        ({"classes": []}, r"^classes=\[\] is not allowed: it must hold at least one PriorityClass"),
        ({"default_class": "gold"}, r"^default_class='gold' is not allowed: it must be one of"),
        (
            {
                "limit": 5,
                "classes": [PriorityClass("a", reserved=5), PriorityClass("normal")],
            },
            r"^classes reserve 5 of 5 slots against 'normal', which could never run: reserve less or raise the limit",
        ),
        (
            {"routes": [RouteRule("/a", priority="vip")]},
            r"RouteRule\('/a'\) names the priority class 'vip', .* one of",
        ),
        ({"limit": 3, "routes": [RouteRule("/a", cost=4)]}, r"RouteRule\('/a'\) has cost=4, .* at most 3"),
        (
            {
                "limit": 5,
                "classes": [PriorityClass("a", reserved=2), PriorityClass("normal")],
                "routes": [RouteRule("/a", cost=4)],
            },
            r"RouteRule\('/a'\) has cost=4, .* at most 3, the slots that its class can ever have",
        ),
    ],
)
def test_values_that_do_not_go_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerPolicy(**changes)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("name", "", "ASCII letters"),
        ("name", "exempt", "mark routes as exempt instead"),
        ("weight", 0, "from 0.001 to 1000"),
        ("weight", -1, "from 0.001 to 1000"),
        ("weight", 1001, "from 0.001 to 1000"),
        ("weight", NAN, "from 0.001 to 1000"),
        ("weight", "1", "from 0.001 to 1000"),
        ("reserved", -1, "of at least 0"),
        ("reserved", 1.5, "of at least 0"),
        ("queue_length", -1, "of at least 0"),
        ("queue_length", True, "of at least 0"),
        ("queue_order", "lifo", "one of ('fifo', 'newest_first')"),
    ],
)
def test_a_wrong_class_is_an_error(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=re.escape(allowed)) as caught:
        PriorityClass(**{"name": "gold", field: value})
    assert f"{field}={value!r}" in str(caught.value)


def test_what_the_words_of_the_defaults_mean() -> None:
    policy = ServerPolicy()
    assert policy.slots == AUTO_LIMIT == 40
    assert policy.queue_length == 40
    assert policy.deadline == DeadlineRule(10.0, 0.0, 60.0)
    assert ServerPolicy(limit=3).queue_length == 3
    assert ServerPolicy(limit=3, queue=0).queue_length == 0


def test_edges_of_the_ranges_are_allowed() -> None:
    ServerPolicy(
        limit=1, queue=0, max_wait=0, wait_share=0, exempt_limit=1, exempt_paths=(), smallest_budget=0,
        deadline_default=0.001, deadline_minimum=0, deadline_maximum=0.001,
    )  # fmt: skip
    ServerPolicy(
        max_wait=3600, wait_share=1, deadline_maximum=86_400, smallest_budget=10, trusted_peers=lambda _: True
    )


def test_hops_need_proxies_that_are_trusted() -> None:
    with pytest.raises(ValueError, match=r"^trusted_hops=1 is not allowed without trusted_peers"):
        ServerPolicy(trusted_hops=1)
    assert ServerPolicy(trusted_hops=1, trusted_peers=["10.0.0.0/8"]).trusted_hops == 1


def test_a_policy_cannot_be_changed_and_takes_names_only() -> None:
    policy = ServerPolicy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.limit = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        ServerPolicy(5)  # type: ignore[call-arg]


def test_equal_policies_are_two_and_own_their_state() -> None:
    one, two = ServerPolicy(), ServerPolicy()
    assert one != two
    assert one.owner is not two.owner


def test_changes_make_a_new_policy_that_is_checked_and_owns_its_own_state() -> None:
    policy = ServerPolicy(limit=5)
    policy.owner.append("somebody")  # type: ignore[arg-type]
    changed = policy.with_changes({"queue": 3})
    assert (changed.limit, changed.queue, changed.owner) == (5, 3, [])
    assert policy.with_changes({}) is policy
    with pytest.raises(ValueError, match="^queue=-1 "):
        policy.with_changes({"queue": -1})
    with pytest.raises(TypeError, match="quue"):
        policy.with_changes({"quue": 3})


def test_the_most_that_a_request_of_a_class_can_cost() -> None:
    classes = [PriorityClass("a", reserved=2), PriorityClass("b", reserved=1), PriorityClass("c")]
    policy = ServerPolicy(limit=10, classes=classes, default_class="c")
    assert [policy.most_cost(name) for name in "abc"] == [9, 8, 7]
    policy.check_mark(Mark("exempt", 99), "an exempt route")
    policy.check_mark(Mark("a", 9), "a")
    with pytest.raises(ValueError, match="^the mark has cost=8, which is not allowed: it must be at most 7"):
        policy.check_mark(Mark(cost=8), "the mark")
