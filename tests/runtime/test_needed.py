"""What a route cannot do without: refused while its circuit is open, and tried again."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.admission.needs import MOST_RETRY_AFTER
from resilient_mw.core.marks import Mark
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime import needed
from resilient_mw.runtime.guard import Guard, guard_of
from resilient_mw.runtime.needed import missing_for, refused_for_need, unknown_names
from resilient_mw.runtime.thread_context import ThreadContext
from resilient_mw.testing import ManualClock, use_clock
from tests.runtime.downed import OPEN_FOR, TRIALS, Downed


class World:
    def __init__(self, name: str, **fields: Any) -> None:
        self.downed = Downed(name, **fields)
        self.clock = ManualClock()
        policy = ServerPolicy()
        use_clock(policy, self.clock)
        self.guard: Guard = guard_of(policy)
        self.entry = self.guard.entries.get("/", Mark(needs=name))

    def arrive(self) -> tuple[Reason | None, int | None]:
        decision = refused_for_need(self.guard, self.entry, str(self.entry.needs), self.clock.now())
        return (None, None) if decision is None else (decision.reason, decision.retry_after)


def test_it_is_refused_while_the_circuit_is_open_and_told_when_it_is_tried_again() -> None:
    world = World("needed-while-open")
    assert world.arrive() == (None, None)
    world.downed.open()
    waits = {world.arrive() for _ in range(200)}
    assert {reason for reason, _ in waits} == {Reason.DEPENDENCY_UNAVAILABLE}
    seconds = {wait for _, wait in waits if wait is not None}
    assert len(seconds) > 1  # not all together
    assert min(seconds) >= OPEN_FOR
    assert max(seconds) <= OPEN_FOR * 1.4 + 1
    assert world.guard.snapshot().routes[0].refused == {"dependency_unavailable": 200}


def test_a_trial_is_possible_and_closes_the_circuit() -> None:
    world = World("needed-by-a-trial")
    world.downed.open()
    world.downed.clock.advance(OPEN_FOR)
    assert world.arrive() == (None, None)
    trials = [world.downed.begin() for _ in range(TRIALS)]
    # As many as may be are under way: whatever else would call it would be refused there.
    assert world.arrive()[0] is Reason.DEPENDENCY_UNAVAILABLE
    for trial in trials:
        world.downed.tell(trial, failed=False)
    assert world.downed.owner.snapshot().breaker == "closed"
    assert world.arrive() == (None, None)


def test_trials_that_are_never_told_of_do_not_refuse_for_ever() -> None:
    world = World("needed-by-lost-trials")
    world.downed.open()
    world.downed.clock.advance(OPEN_FOR)
    for _ in range(TRIALS):
        world.downed.begin()
    assert world.arrive()[0] is Reason.DEPENDENCY_UNAVAILABLE
    world.downed.clock.advance(31.0)
    assert world.arrive() == (None, None)


def test_nobody_is_sent_away_for_longer_than_a_minute() -> None:
    world = World("needed-for-long")
    world.downed.open()
    object.__setattr__(world.downed.owner.state.breaker, "_open_until", 3600.0)
    assert world.arrive() == (Reason.DEPENDENCY_UNAVAILABLE, MOST_RETRY_AFTER)


def test_who_can_do_with_less_passes() -> None:
    world = World("needed-or-not")
    world.downed.open()
    world.entry = world.guard.entries.get("/", Mark(needs="needed-or-not", degradable=True))
    assert world.arrive() == (None, None)
    assert not world.entry.plain


def test_while_draining_that_is_the_reason() -> None:
    world = World("needed-at-the-end")
    world.downed.open()
    world.guard.drain(delay=5.0)
    assert world.arrive()[0] is Reason.DEPENDENCY_UNAVAILABLE, "until then it is not the reason"
    world.guard.drain(delay=0.0)
    assert world.arrive() == (None, None)


def test_what_is_exempt_needs_nothing() -> None:
    entry = guard_of(ServerPolicy()).entries.get("/", Mark(priority="exempt", needs="anything"))
    assert (entry.needs, entry.plain) == (None, True)


def test_a_name_that_nobody_has_refuses_nothing_and_is_known_as_such() -> None:
    downed = Downed("somebody")
    assert missing_for("nobody-of-that-name") is None
    assert unknown_names({"somebody", "nobody-of-that-name"}) == ["nobody-of-that-name"]
    assert downed.dependency.name == "somebody"


def test_of_two_of_the_same_name_one_is_enough() -> None:
    first, second = Downed("twins"), Downed("twins")
    first.open()
    assert missing_for("twins") is None
    second.open()
    second.clock.advance(2.0)
    assert missing_for("twins") == OPEN_FOR - 2.0


def test_one_without_a_breaker_is_never_missing() -> None:
    downed = Downed("unbroken", breaker=None)
    downed.attempt(failed=True)
    assert missing_for("unbroken") is None


def test_if_the_look_up_breaks_requests_pass_and_it_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: str) -> float | None:
        raise LookupError("no figures")

    world = World("broken-look-up")
    world.downed.open()
    monkeypatch.setattr(needed, "missing_for", broken)
    with caplog.at_level(logging.ERROR, "resilient_mw"):
        for _ in range(121):
            assert world.arrive() == (None, None)
            world.clock.advance(1.0)
    assert world.guard.listeners.errors == 121
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3


def test_a_section_knows_what_its_request_needs() -> None:
    context = ThreadContext(100.0, ManualClock())
    assert context.needs() is None
    context.entry = guard_of(ServerPolicy()).entries.get("/", Mark(needs="prices"))
    with context.within(1.0) as inner, inner.shield() as section:
        assert (inner.needs(), section.needs()) == ("prices", "prices")
