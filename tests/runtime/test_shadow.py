"""Shadow mode in the guard: the model says what would have been, everybody runs, and the books always balance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from resilient_mw import PriorityClass, ServerPolicy
from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import COMPLETED
from resilient_mw.core.events import Event, Refused, Shadowed
from resilient_mw.core.marks import Mark
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import AppSnapshot, ShadowRoute, ShadowSnapshot
from resilient_mw.runtime.guard import Guard, guard_of
from resilient_mw.runtime.needed import refused_for_need
from resilient_mw.runtime.shadow import ShadowGuard, Ticket, ticket_of
from resilient_mw.testing import ManualClock, use_clock
from tests.runtime.downed import Downed


class World:
    def __init__(self, **fields: Any) -> None:
        self.clock = ManualClock()
        self.heard: list[Event] = []
        made: dict[str, Any] = {"limit": 2, "queue": 2, "shadow": ["admission"], "overload": None}
        self.policy = ServerPolicy(**(made | {"listeners": [self.heard.append]} | fields))
        use_clock(self.policy, self.clock)
        guard = guard_of(self.policy)
        assert isinstance(guard, ShadowGuard)
        self.guard = guard

    def decide(self, priority: str = "normal", budget: float = 10.0, **more: Any) -> Decision:
        now = self.clock.now()
        return self.guard.arrive(self.guard.entries.get("/", Mark(priority)), now, now + budget, **more)

    def run(self, priority: str = "normal", budget: float = 10.0, **more: Any) -> Ticket:
        """Arrive, and expect to run at once."""
        decision = self.decide(priority, budget, **more)
        assert decision.admitted, decision
        ticket = ticket_of(decision)
        assert ticket is not None
        return ticket

    def end(self, ticket: Ticket) -> None:
        self.guard.over(ticket, COMPLETED, 0.1)

    def figures(self) -> AppSnapshot:
        return self.guard.snapshot()

    def shadow(self) -> ShadowSnapshot:
        shadow = self.figures().shadow
        assert shadow is not None
        return shadow

    def would(self, priority: str = "normal") -> ShadowRoute:
        (route,) = [each for each in self.shadow().routes if each.priority == priority]
        return route

    def slots(self) -> tuple[int, int]:
        """Slots in use and places taken in the model."""
        classes = self.figures().classes
        return sum(each.slots for each in classes), sum(each.queued for each in classes)

    def at_rest(self) -> bool:
        figures = self.figures()
        routes = figures.routes
        return (
            self.slots() == (0, 0)
            and self.shadow().outside == 0
            and all(each.arrived == each.admitted + sum(each.refused.values()) for each in routes)
            and all(each.admitted == sum(each.outcomes.values()) for each in routes)
        )


def test_without_shadow_there_is_no_model_and_no_figure() -> None:
    policy = ServerPolicy(shadow=False)
    assert type(guard_of(policy)) is Guard
    assert policy.snapshot().shadow is None
    assert ServerPolicy(shadow=True).shadowed == {"admission", "deadlines", "quotas"}
    assert ServerPolicy(shadow=["quotas"]).shadowed == {"quotas"}


@pytest.mark.parametrize("value", ["admission", ["load"], ["admission", "load"], None, 1])
def test_a_wrong_value_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match="is not allowed: it must be True, False, or some of"):
        ServerPolicy(shadow=value)


def test_whatever_would_have_been_decided_everybody_runs() -> None:
    world = World()
    tickets = [world.run() for _ in range(6)]
    assert world.slots() == (2, 2)  # never more than there are
    route = world.would()
    assert (route.queued, dict(route.refused), route.cancelled) == (2, {"queue_full": 2}, 0)
    assert world.shadow().outside == 4
    (real,) = world.figures().routes
    assert (real.arrived, real.admitted, real.left, dict(real.refused), sum(real.wait.counts)) == (
        6,
        6,
        0,
        {},
        0,
    )
    for ticket in tickets:
        world.end(ticket)
    assert world.at_rest()


def test_who_waits_in_the_model_gets_the_slot_that_comes_free_and_gives_it_back() -> None:
    world = World(max_wait=5.0)
    first, second, third = (world.run() for _ in range(3))
    world.clock.advance(0.3)
    world.end(first)
    assert world.slots() == (2, 0)
    assert world.shadow().outside == 0
    assert world.would().wait.total == pytest.approx(0.3)
    world.end(third)
    world.end(second)
    assert world.at_rest()


def test_who_is_done_before_his_turn_leaves_his_place() -> None:
    world = World()
    held = [world.run() for _ in range(2)]
    waits = world.run()
    world.end(waits)
    assert world.slots() == (2, 0)
    assert (dict(world.would().refused), world.would().queued) == ({}, 1)
    for ticket in held:
        world.end(ticket)
    assert world.at_rest()


def test_who_would_have_waited_too_long_is_counted_and_runs_on_without_a_slot() -> None:
    world = World(max_wait=1.0, wait_share=1.0)
    first, second, third = (world.run() for _ in range(3))
    world.clock.advance(1.5)
    assert dict(world.would().refused) == {"queue_timeout": 1}
    world.end(first)
    assert world.slots() == (1, 0)  # nobody was given the slot
    assert world.shadow().outside == 1
    world.end(third)
    world.end(second)
    assert world.at_rest()


def test_classes_and_their_order_are_what_they_would_be() -> None:
    world = World(
        limit=1, queue=2, classes=[PriorityClass("critical", weight=8), PriorityClass("normal", weight=1)]
    )
    running, waits, pushed = world.run(), world.run(), world.run()
    urgent = world.run("critical")
    assert dict(world.would("normal").refused) == {"pushed_out": 1}
    assert (world.would("critical").queued, dict(world.would("critical").refused)) == (1, {})
    world.end(running)
    assert urgent.waiter is not None
    assert waits.waiter is not None
    assert (urgent.waiter.state.value, waits.waiter.state.value) == ("running", "waiting")
    for ticket in (waits, pushed, urgent):
        world.end(ticket)
    assert world.at_rest()


def test_draining_and_the_bound_of_exempt_requests_only_count() -> None:
    world = World(exempt_limit=1)
    exempt = [world.run("exempt") for _ in range(2)]
    world.guard.drain()
    normal = world.run()
    assert dict(world.would("exempt").refused) == {"exempt_limit": 1}
    assert dict(world.would().refused) == {"draining": 1}
    for ticket in (*exempt, normal):
        world.end(ticket)
    assert world.at_rest()


def test_events_tell_of_what_was_not_done() -> None:
    world = World()
    for _ in range(5):
        world.run()
    assert world.heard == [
        Shadowed("/", "normal", "admission", "queue", None),
        Shadowed("/", "normal", "admission", "queue", None),
        Shadowed("/", "normal", "admission", "refuse", Reason.QUEUE_FULL),
    ]


def test_a_deadline_that_has_passed_is_a_real_refusal_unless_deadlines_are_in_shadow() -> None:
    world = World()
    assert world.decide(budget=0.0).reason is Reason.EXPIRED_ON_ARRIVAL
    assert world.decide(budget=0.001).reason is Reason.INSUFFICIENT_BUDGET
    assert world.shadow().routes == ()
    assert dict(world.figures().routes[0].refused) == {"expired_on_arrival": 1, "insufficient_budget": 1}
    assert [type(each) for each in world.heard] == [Refused, Refused]
    assert world.at_rest()


@pytest.mark.parametrize("defences", [["deadlines"], ["deadlines", "admission"]])
def test_with_deadlines_in_shadow_a_budget_that_is_too_small_only_counts(defences: Sequence[str]) -> None:
    world = World(shadow=defences)
    tickets = [world.run(budget=0.0), world.run(budget=0.001)]
    assert dict(world.would().refused) == {"expired_on_arrival": 1, "insufficient_budget": 1}
    assert dict(world.figures().routes[0].refused) == {}
    for ticket in tickets:
        assert world.guard.due_at(ticket, 0.0, 0.0) == float("inf")  # counted once
        world.end(ticket)
    assert world.at_rest()


def test_with_deadlines_alone_in_shadow_admission_is_real_and_knows_no_deadline() -> None:
    world = World(shadow=["deadlines"], max_wait=5.0, wait_share=1.0)
    held = [world.run() for _ in range(2)]
    waiters = [world.decide(budget=0.5).waiter for _ in range(2)]
    assert world.decide().reason is Reason.QUEUE_FULL
    assert dict(world.figures().routes[0].refused) == {"queue_full": 1}
    world.clock.advance(1.0)
    world.guard.tick(1.0)
    assert world.slots() == (2, 2)  # the deadline is no bound of the wait
    for ticket in held:
        world.end(ticket)
    for waiter in waiters:
        assert waiter is not None
        begun = ticket_of(world.guard.begin(waiter))
        assert begun is not None
        assert world.guard.due_at(begun, 0.5, 1.0) == float("inf")
        world.end(begun)
    assert dict(world.would().refused) == {"expired_in_queue": 2}
    assert world.slots() == (0, 0)


def test_who_would_not_have_run_is_not_cancelled_as_well() -> None:
    world = World(limit=1, queue=1, shadow=True)
    tickets = [world.run() for _ in range(3)]
    for ticket in tickets:
        world.guard.would_cancel(ticket)
    assert (world.would().cancelled, dict(world.would().refused)) == (1, {"queue_full": 1})


def test_a_check_on_arrival_may_ask_whether_it_is_in_shadow() -> None:
    world = World(shadow=["quotas"])
    entry = world.guard.entries.get("/", Mark())
    assert world.guard.would_refuse("quotas", entry, Reason.OVERLOADED)
    assert not world.guard.would_refuse("admission", entry, Reason.OVERLOADED)
    assert dict(world.would().refused) == {"overloaded": 1}
    assert world.heard == [Shadowed("/", "normal", "quotas", "refuse", Reason.OVERLOADED)]


def test_a_dependency_that_is_away_only_counts() -> None:
    downed = Downed("away-in-shadow")
    downed.open()
    world = World()
    entry = world.guard.entries.get("/", Mark(needs="away-in-shadow"))
    passed = refused_for_need(world.guard, entry, "away-in-shadow", 0.0, world.guard)
    assert passed is not None
    assert passed.admitted
    assert dict(world.would().refused) == {"dependency_unavailable": 1}
    ticket = ticket_of(passed)
    assert ticket is not None
    assert (world.slots(), world.shadow().outside) == ((0, 0), 1)
    world.end(ticket)
    assert world.at_rest()


def test_who_is_refused_on_arrival_is_refused_once_and_takes_no_slot_of_the_model() -> None:
    world = World(limit=1, queue=0, shadow=True)
    late = [world.run(budget=0.0) for _ in range(2)]
    assert (world.slots(), world.shadow().outside) == ((0, 0), 2)
    running = world.run()
    world.clock.advance(20.0)
    late.append(world.run(budget=0.0))
    assert dict(world.would().refused) == {"expired_on_arrival": 3}
    for ticket in (*late, running):
        world.end(ticket)
    assert world.at_rest()


def test_a_server_that_refuses_early_refuses_nothing() -> None:
    world = World()
    tickets = [world.run() for _ in range(4)]
    assert not world.guard.may_refuse()
    assert world.guard.refuse_surely(tickets[0].entry, 0.0) is None
    real = World(shadow=["deadlines"])
    for _ in range(4):
        real.decide()
    assert real.guard.may_refuse()
    assert real.guard.refuse_surely(tickets[0].entry, 0.0) is not None


@pytest.mark.parametrize("seed", range(20))
def test_the_books_balance_whatever_comes_and_goes(seed: int) -> None:
    luck = random.Random(seed)
    world = World(limit=3, queue=4, max_wait=0.5, shadow=luck.choice([True, ["admission"]]), exempt_limit=2)
    running: list[Ticket] = []
    arrived = 0
    for _ in range(400):
        step = luck.random()
        if step < 0.5:
            kind = luck.choice(["critical", "normal", "sheddable", "exempt"])
            running.append(
                world.run(kind, luck.choice([0.2, 1.0, 10.0]), tenant=luck.choice([None, "a", "b"]))
            )
            arrived += 1
        elif step < 0.9 and running:
            world.end(running.pop(luck.randrange(len(running))))
        else:
            world.clock.advance(luck.uniform(0.0, 0.4))
        in_use, queued = world.slots()
        assert in_use <= 3 + 2
        assert queued <= 4
        assert in_use + world.shadow().outside == len(running)
    assert sum(each.arrived for each in world.figures().routes) == arrived
    for ticket in running:
        world.end(ticket)
    assert world.at_rest()
    assert world.guard.listeners.errors == 0
