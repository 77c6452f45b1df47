"""What is done by hand, and told to listeners, goes for the circuits of route groups as well."""

from __future__ import annotations

import pytest

from resilient_mw.calls.attempt import Facts
from resilient_mw.calls.breaker_policy import BreakerPolicy
from resilient_mw.calls.call import Call
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Failure, Phase, Refuse, Start
from resilient_mw.calls.groups import Group
from resilient_mw.core.snapshot import Transition
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw.testing import ManualClock

GROUPS = [None, Group("search", keyed=False), Group("a", keyed=True), Group("b", keyed=True)]


def _owner(told: list[tuple[str, str]] | None = None) -> DependencyOwner:
    def listen(name: str, change: Transition) -> None:
        if told is not None:
            told.append((name, change.after))

    breaker = BreakerPolicy(consecutive_failures=1, listeners=[listen])
    groups = {"search": "/search/*"}
    return owner_of(
        Dependency("prices", "http://p/*", retry=None, breaker=breaker, groups=groups, group_key="host")
    )


def _passes(owner: DependencyOwner, group: Group | None, *, fails: bool = False) -> bool:
    call = Call(owner.state, "GET", facts=Facts(group))
    (action,) = owner.begin(call)
    assert isinstance(action, Start | Refuse)
    if fails:
        owner.tell(call, 1, Failure(Phase.HEAD))
    owner.cancel(call)
    return isinstance(action, Start)


@pytest.mark.parametrize("group", GROUPS)
def test_each_group_obeys_the_hand_also_one_that_comes_later(group: Group | None) -> None:
    owner = _owner()
    assert _passes(owner, Group("a", keyed=True))
    owner.by_hand("open")
    assert not _passes(owner, group)
    assert not _passes(owner, Group("later", keyed=True))
    owner.by_hand("close")
    assert _passes(owner, group, fails=True)
    assert _passes(owner, group)
    assert _passes(owner, Group("still later", keyed=True), fails=True)
    assert _passes(owner, Group("still later", keyed=True))
    owner.by_hand("reset")
    assert _passes(owner, group, fails=True)
    assert not _passes(owner, group)


@pytest.mark.parametrize("group", GROUPS)
def test_listeners_hear_of_each_group(group: Group | None) -> None:
    told: list[tuple[str, str]] = []
    owner = _owner(told)
    _passes(owner, group, fails=True)
    assert told == [("prices", "open")]
    owner.by_hand("reset")
    assert told == [("prices", "open"), ("prices", "closed")]


def test_a_group_that_begins_held_is_no_change() -> None:
    told: list[tuple[str, str]] = []
    owner = _owner(told)
    owner.by_hand("open")
    opened = len(told)
    assert opened == 3  # The dependency itself, the named group, and the one that keys share.
    _passes(owner, Group("later", keyed=True))
    assert len(told) == opened


def test_a_snapshot_sees_calls_of_a_group_that_hang() -> None:
    clock = ManualClock()
    breaker = BreakerPolicy(slow_after=1.0, slow_ratio=1.0, minimum_calls=1)
    dependency = Dependency(
        "prices", "http://p/*", retry=None, breaker=breaker, groups={"search": "/search/*"}, timeout=30.0
    )
    owner = DependencyOwner(dependency, clock)
    call = Call(owner.state, "GET", facts=Facts(GROUPS[1]))
    owner.begin(call)
    assert owner.snapshot().groups["search"].breaker == "closed"
    clock.advance(1.5)
    assert owner.snapshot().groups["search"].breaker == "open"
    owner.cancel(call)
