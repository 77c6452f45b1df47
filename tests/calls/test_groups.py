"""Route groups: which one a request belongs to, and how many states there may be."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest

from resilient_mw.calls.breaker import Breaker
from resilient_mw.calls.config import BreakerPolicy
from resilient_mw.calls.groups import IDLE, LONGEST_KEY, Group, GroupRules, GroupState, GroupStates
from resilient_mw.calls.match import target

GROUPS: dict[str, Any] = {"search": "GET /search/*", "heavy": ("POST /heavy", "PUT /heavy/*"), "any": "/any"}


def _make() -> GroupState:
    policy = BreakerPolicy(window=1, minimum_calls=1, open_for=5.0, open_jitter=0.0, trials=1)
    return GroupState(Breaker(policy, Random(1)), None)


def _fail(state: GroupState, now: float) -> None:
    assert state.breaker is not None
    permit = state.breaker.ask(now)
    assert permit is not None
    state.breaker.record(now, permit, failed=True)


def _key(name: str) -> Group:
    return Group(name, keyed=True)


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/search/a", "search"),
        ("POST", "/search/a", None),
        ("GET", "/search", None),
        ("POST", "/heavy", "heavy"),
        ("GET", "/heavy", None),
        ("PUT", "/heavy/1", "heavy"),
        ("DELETE", "/any", "any"),
        ("GET", "/any/1", None),
    ],
)
def test_named_groups(method: str, path: str, name: str | None) -> None:
    group = GroupRules(GROUPS, None).group(method, target("http", "prices", None, path))
    assert (group.name if group else None) == name


def test_the_first_pattern_that_matches_is_the_one() -> None:
    rules = GroupRules({"one": "/a/b", "all": "/a/*"}, lambda method, _: method)
    place = target("http", "prices", None, "/a/b")
    assert rules.group("GET", place) == Group("one", keyed=False)
    assert rules.group("GET", target("http", "prices", None, "/a/c")) == Group("all", keyed=False)
    assert rules.group("GET", target("http", "prices", None, "/b")) == Group("GET", keyed=True)


@pytest.mark.parametrize(
    ("groups", "key"),
    [
        (["/a"], None),
        ({"": "/a"}, None),
        ({"others": "/a"}, None),
        ({"keyed": "/a"}, None),
        ({"a b": "/a"}, None),
        ({"a": ()}, None),
        ({"a": "search/*"}, None),
        ({"a": "get /search"}, None),
        ({"a": " /search"}, None),
        ({"a": "GET  /search"}, None),
        ({"a": "/a*"}, None),
        ({"a": "/a/*/b"}, None),
        ({"a": "/a?b"}, None),
        ({"a": 3}, None),
        ({"a": [3]}, None),
        (None, "path"),
        (None, 3),
    ],
)
def test_bad_groups_are_named(groups: Any, key: Any) -> None:
    with pytest.raises(ValueError, match="group"):
        GroupRules(groups, key)


def test_a_key_must_be_text() -> None:
    place = target("http", "prices", None, "/")
    assert GroupRules(None, lambda *_: None).group("GET", place) is None
    with pytest.raises(TypeError, match="must return text"):
        GroupRules(None, lambda *_: 7).group("GET", place)  # type: ignore[arg-type]
    long = GroupRules(None, lambda *_: "x" * 10_000).group("GET", place)
    assert long is not None
    assert len(long.name) == LONGEST_KEY


def test_b70_failures_of_one_group_do_not_open_another() -> None:
    states = GroupStates(("heavy", "light"), _make)
    _fail(states.at(0.0, Group("heavy", keyed=False)), 0.0)
    heavy, light = states.named["heavy"].breaker, states.named["light"].breaker
    assert heavy is not None
    assert light is not None
    assert heavy.ask(1.0) is None
    assert light.ask(1.0) is not None


@pytest.mark.parametrize(
    ("scheme", "spellings"),
    [
        ("https", [("x1.example", None), ("X1.Example", 443), ("x1.example.", None), ("X1.EXAMPLE.", 443)]),
        (
            "http",
            [("b\u00fccher.example", None), ("xn--bcher-kva.example", 80), ("B\u00dcCHER.example.", 80)],
        ),
        ("http", [("[::1]", 80), ("0:0:0:0:0:0:0:1", None)]),
    ],
)
def test_b74_one_host_is_one_key(scheme: str, spellings: list[tuple[str, int | None]]) -> None:
    rules = GroupRules(None, "host")
    keys = {rules.group("GET", target(scheme, host, port, "/")) for host, port in spellings}
    assert len(keys) == 1
    assert rules.group("GET", target(scheme, spellings[0][0], 8443, "/")) not in keys


def test_b74_200_000_hosts_need_bounded_memory() -> None:
    rules = GroupRules(None, "host")
    states = GroupStates((), _make, most=500)
    opened = []
    for number in range(200_000):
        group = rules.group("GET", target("https", f"x{number}.example", None, "/"))
        assert group is not None
        state = states.at(number * 0.001, group)
        if number % 5_000 == 0:
            _fail(state, number * 0.001)
            opened.append((group, state))
        assert len(states) <= 500
    assert states.evicted == 200_000 - 500
    assert states.shared == 0
    assert sys.getsizeof(states._keyed) < 200_000
    # Those that are open are all kept: 200 s are less than the idle time.
    assert all(states.at(200.0, group) is state for group, state in opened)


def test_b74_states_in_use_are_not_recreated() -> None:
    states = GroupStates((), _make, most=4)
    held = states.at(0.0, _key("held"))
    held.under_way = 1
    for number in range(1000):
        states.at(float(number), _key(f"x{number}"))
    assert states.at(1000.0, _key("held")) is held
    held.under_way = 0
    for number in range(1000):
        states.at(1000.0, _key(f"y{number}"))
    assert states.at(1000.0, _key("held")) is not held


def test_keys_without_a_place_share_one_state() -> None:
    states = GroupStates((), _make, most=20)
    for number in range(20):
        _fail(states.at(0.0, _key(f"dead{number}")), 0.0)
    first, second = states.at(1.0, _key("new")), states.at(1.0, _key("newer"))
    assert first is second is states.overflow
    assert len(states) == 20
    assert states.shared == 2


def test_circuits_that_opened_long_ago_do_not_fill_the_table_for_good() -> None:
    states = GroupStates((), _make, most=20)
    for number in range(20):
        _fail(states.at(0.0, _key(f"dead{number}")), 0.0)
    assert states.at(IDLE - 1.0, _key("new")) is states.overflow
    assert states.at(IDLE, _key("new")) is not states.overflow


def test_idle_states_go_where_there_is_place() -> None:
    states = GroupStates((), _make, most=1000)
    for number in range(100):
        states.at(0.0, _key(f"old{number}"))
    for number in range(100):
        states.at(IDLE, _key(f"new{number}"))
    assert len(states) == 100
    assert {state.used for state in states.keyed()} == {IDLE}


def test_the_one_used_longest_ago_goes_first() -> None:
    states = GroupStates((), _make, most=2)
    one = states.at(0.0, _key("one"))
    states.at(1.0, _key("two"))
    assert states.at(2.0, _key("one")) is one
    states.at(3.0, _key("three"))
    assert states.at(4.0, _key("one")) is one
