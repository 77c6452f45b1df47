"""Measured timeouts and route groups in the call machine: what an attempt is given, and what its end teaches whom."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_mw.calls.attempt import Facts
from resilient_mw.calls.call import Call
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Failure, Head, Phase, Refuse, Start
from resilient_mw.calls.figures import dependency_snapshot
from resilient_mw.calls.groups import GroupState
from resilient_mw.calls.match import target
from resilient_mw.calls.timeout import TimeoutPolicy
from resilient_mw.core.rejection import Reason
from tests.calls.desk import EDGY, Desk

QUICK = TimeoutPolicy(false_timeouts=0.05, factor=2.0, floor=0.01)
GROUPS = {"heavy": "POST /heavy", "light": "GET /light"}


def _call(desk: Desk, method: str = "GET", path: str = "/", host: str = "prices", **request: Any) -> Call:
    grouping = desk.dependency.grouping
    group = None if grouping is None else grouping.group(method, target("http", host, None, path))
    return desk.call(method, facts=Facts(group), **request)


def _start(call: Call, now: float) -> Start:
    action = call.begin(now)[-1]
    assert isinstance(action, Start), action
    return action


def _answer(desk: Desk, now: float, seconds: float, status: int = 200, **request: Any) -> None:
    call = _call(desk, **request)
    _start(call, now)
    call.head(now + seconds, 1, Head(status))
    call.end(now + seconds, None)


def _fail(call: Call, now: float) -> None:
    _start(call, now)
    call.failed(now, 1, Failure(Phase.HEAD))


def _seen(state: GroupState) -> tuple[int, int, int]:
    """Return what a model has counted: attempts that ended, that were cut off, that hung."""
    assert state.timeout is not None
    pane = state.timeout.model._now
    return sum(pane.ended), sum(pane.cut), pane.hung


def test_an_attempt_may_take_what_nearly_all_take_times_the_factor() -> None:
    desk = Desk(adaptive_timeout=QUICK)
    assert _start(_call(desk), 0.0).timeout == 2.0
    for _ in range(40):
        _answer(desk, 1.0, 0.1)
    assert 0.2 <= _start(_call(desk), 2.0).timeout <= 0.22
    assert _start(_call(desk, deadline_at=2.15), 2.0).timeout == pytest.approx(0.15)
    assert Desk().state.group.timeout is None


def test_its_own_timeout_blames_the_dependency_and_the_budget_does_not() -> None:
    desk = Desk(adaptive_timeout=QUICK, breaker=EDGY)
    for _ in range(40):
        _answer(desk, 1.0, 0.1)
    call = _call(desk)
    timeout = _start(call, 2.0).timeout
    call.failed(2.0 + timeout, 1, Failure(Phase.HEAD, timed_out=True))
    assert desk.state.bad == 1
    assert not desk.state.expiries
    call = _call(desk, deadline_at=3.1)
    _start(call, 3.0)
    call.failed(3.1, 1, Failure(Phase.HEAD, timed_out=True))
    assert desk.state.bad == 1
    assert desk.state.expiries == {Phase.HEAD: 1}
    call = _call(desk, deadline_at=4.0 + 0.95 * timeout)
    _start(call, 4.0)
    call.failed(4.0 + 0.95 * timeout, 1, Failure(Phase.HEAD, timed_out=True))
    assert desk.state.bad == 2  # It had nearly all the time that attempts are given.


@pytest.mark.parametrize(
    ("failure", "at", "seen"),
    [
        (Failure(Phase.HEAD, timed_out=True), 2.0, (0, 0, 1)),
        (Failure(Phase.HEAD, timed_out=True), 0.5, (0, 1, 0)),  # a timeout of the client's own
        (Failure(Phase.CONNECT, timed_out=True), 0.5, (0, 0, 0)),
        (Failure(Phase.CONNECT, timed_out=True), 2.0, (0, 0, 1)),
        (Failure(Phase.POOL, timed_out=True, ours=True), 0.5, (0, 0, 0)),
        (Failure(Phase.HEAD), 0.5, (0, 0, 0)),
        (Failure(Phase.CONNECT), 0.001, (0, 0, 0)),
    ],
)
def test_what_a_failure_teaches(failure: Failure, at: float, seen: tuple[int, int, int]) -> None:
    desk = Desk(adaptive_timeout=QUICK)
    call = _call(desk)
    _start(call, 0.0)
    call.failed(at, 1, failure)
    assert _seen(desk.state.group) == seen


def test_what_other_ends_teach() -> None:
    desk = Desk(adaptive_timeout=QUICK)
    _answer(desk, 0.0, 0.1, 404)
    assert _seen(desk.state.group) == (1, 0, 0)
    for status in (500, 503, 429):
        _answer(desk, 0.0, 0.1, status)
    assert _seen(desk.state.group) == (1, 0, 0)
    call = _call(desk)
    _start(call, 0.0)
    call.cancel(0.3)
    assert _seen(desk.state.group) == (1, 1, 0)
    call = _call(desk, deadline_at=1.0)
    _start(call, 0.0)
    call.head(0.2, 1, Head(200))
    call.end(1.0, Failure(Phase.BODY, timed_out=True))
    assert _seen(desk.state.group) == (1, 2, 0)
    call = _call(desk)
    _start(call, 0.0)
    call.head(0.2, 1, Head(200))
    call.end(1.0, Failure(Phase.BODY))
    assert _seen(desk.state.group) == (1, 2, 0)


def test_b70_failures_of_heavy_do_not_open_light() -> None:
    desk = Desk(breaker=EDGY, groups=GROUPS)
    for _ in range(2):
        _fail(_call(desk, "POST", "/heavy"), 0.0)
    refused = _call(desk, "POST", "/heavy").begin(1.0)[-1]
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.CIRCUIT_OPEN
    for method, path in (("GET", "/light"), ("GET", "/heavy"), ("GET", "/")):
        _start(_call(desk, method, path), 1.0)
    snapshot = dependency_snapshot("prices", desk.state, 1.0)
    assert {name: group.breaker for name, group in snapshot.groups.items()} == {
        "heavy": "open",
        "light": "closed",
        "others": "closed",
    }
    assert snapshot.groups["light"].under_way == 1
    assert snapshot.groups["heavy"].timeout == 2.0
    assert snapshot.breaker == "closed"


def test_a_retry_asks_the_circuit_of_its_group() -> None:
    from tests.calls.desk import AT_ONCE

    desk = Desk(breaker=EDGY, groups=GROUPS, retry=AT_ONCE)
    call = _call(desk, "GET", "/light")
    _start(call, 0.0)
    assert isinstance(call.failed(0.0, 1, Failure(Phase.CONNECT))[-1], Start)
    call.failed(0.0, 2, Failure(Phase.CONNECT))  # It opens the circuit of `light`.
    assert call.attempts == 2
    assert desk.state.retry_refusals
    assert not desk.state.in_use


def test_each_group_has_its_own_timeout() -> None:
    desk = Desk(groups=GROUPS, adaptive_timeout=QUICK)
    for _ in range(40):
        _answer(desk, 1.0, 0.02, method="GET", path="/light")
        _answer(desk, 1.0, 0.5, method="POST", path="/heavy")
    assert _start(_call(desk, "GET", "/light"), 2.0).timeout < 0.05
    assert 1.0 <= _start(_call(desk, "POST", "/heavy"), 2.0).timeout < 1.1
    assert _start(_call(desk, "GET", "/"), 2.0).timeout == 2.0
    timeouts = dependency_snapshot("prices", desk.state, 2.0).groups
    assert timeouts["light"].timeout == _start(_call(desk, "GET", "/light"), 2.0).timeout


def test_b74_hosts_have_circuits_of_their_own_and_bounded_states() -> None:
    desk = Desk(breaker=EDGY, group_key="host")
    for _ in range(2):
        _fail(_call(desk, host="Dead.Example."), 0.0)
    held = _call(desk, host="held.example")
    _start(held, 0.0)
    groups = desk.state.groups
    assert groups is not None
    for number in range(3000):
        _answer(desk, 1.0, 0.1, host=f"x{number}.example")
    assert isinstance(_call(desk, host="dead.example").begin(2.0)[-1], Refuse)
    assert _call(desk, host="held.example").begin(2.0)
    keyed = dependency_snapshot("prices", desk.state, 2.0).keyed
    assert keyed is not None
    assert (keyed.states, keyed.open, keyed.shared) == (1000, 1, 0)
    held.cancel(3.0)
    assert held.group.under_way == 1  # The second call to that host has the same state.


@pytest.mark.parametrize(
    "fields",
    [
        {"adaptive_timeout": 1.0},
        {"groups": {"others": "/x"}},
        {"groups": {"x": "nowhere"}},
        {"group_key": "path"},
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="adaptive_timeout|group"):
        Dependency("prices", "http://prices/*", **fields)


def test_no_groups_no_lookup() -> None:
    desk = Desk(groups={})
    assert desk.dependency.grouping is None
    assert desk.state.groups is None
    assert desk.call().group is desk.state.group
    assert dependency_snapshot("prices", desk.state, 0.0).groups == {}
