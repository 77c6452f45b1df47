"""The admission controller under any order of verbs, checked by an independent account.

Time passes without the controller being told, threads read the clock before they get the lock, timers are late: what
holds then holds for every shell.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.decision import NOBODY, Settled
from resilient_mw.admission.entry import COMPLETED, ERROR, RouteEntry, WaiterState
from resilient_mw.admission.queue import Timetable
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.core.marks import Mark
from resilient_mw.core.priority import DEFAULT_CLASSES, PriorityClass
from resilient_mw.core.rejection import Reason
from tests.admission.ledger import Ledger, Request

TICK = 1 / 64  # every instant is a multiple: sums are exact

EVEN = (PriorityClass("a"), PriorityClass("b"))
RESERVING = (PriorityClass("a", weight=2, reserved=2), PriorityClass("b", reserved=1), PriorityClass("c"))
BOUNDED = (
    PriorityClass("a", queue_length=1),
    PriorityClass("b", queue_length=3),
    PriorityClass("c", queue_length=0),
)

NEWEST = (
    PriorityClass("a", weight=2, reserved=1, queue_order="newest_first"),
    PriorityClass("b", queue_order="newest_first"),
    PriorityClass("c"),
)


def _policy(
    limit: int,
    queue: int,
    classes: tuple[PriorityClass, ...],
    max_wait: float,
    share: float,
    *,
    smallest_budget: float = 2 * TICK,
) -> ServerPolicy:
    return ServerPolicy(
        limit=limit, queue=queue, classes=classes, default_class=classes[-1].name, max_wait=max_wait,
        wait_share=share, exempt_limit=2, smallest_budget=smallest_budget,
    )  # fmt: skip


POLICIES = (
    _policy(1, 2, EVEN, 1.0, 1.0),
    _policy(2, 4, EVEN, 60.0, 1.0),
    _policy(2, 4, EVEN, 0.5, 0.25, smallest_budget=0.0),
    _policy(2, 1, EVEN, 60.0, 1.0),
    _policy(3, 13, DEFAULT_CLASSES, 1.0, 0.5),
    _policy(5, 6, DEFAULT_CLASSES, 60.0, 1.0),
    _policy(5, 5, RESERVING, 1.0, 1.0),
    _policy(6, 8, RESERVING, 60.0, 0.5),
    _policy(4, 0, EVEN, 1.0, 1.0),
    _policy(2, 6, BOUNDED, 60.0, 1.0),
    _policy(3, 3, (PriorityClass("only"),), 0.25, 1.0),
    _policy(2, 3, EVEN, 0.0, 1.0),
    _policy(2, 9, NEWEST, 60.0, 1.0),
    _policy(3, 6, NEWEST, 2.0, 1.0),
)

# (class, cost, budget in ticks, how far behind the clock of its thread is)
ARRIVALS = st.sampled_from(
    [
        (rank, cost, budget, behind)
        for cost, budget, behind in (
            (1, 640, 0), (1, 640, 0), (1, 64, 0), (1, 16, 0), (1, 3, 0), (2, 640, 0), (2, 16, 0), (2, 3, 0), (5, 640, 0),
            (5, 16, 0), (9, 640, 0), (1, 640, 1), (1, 4, 1), (1, 1, 0), (1, 0, 0),
        )
        for rank in (0, 1, 2)
    ]
)  # fmt: skip
PAUSES = st.sampled_from([1, 1, 2, 4, 16, 64, 640])
PICKS = st.integers(0, 7)
COUNTS = st.integers(2, 5)
TENANTS = st.sampled_from([None, None, "ant", "ant", "ant", "bee", "cow"])
NAMED = st.sampled_from([False, False, True])


class ControllerMachine(RuleBasedStateMachine):
    """Arrivals, releases, departures, late timers and late grants, in any order."""

    @initialize(policy=st.sampled_from(POLICIES), seed=st.integers(0, 3), named=NAMED)
    def start(self, policy: ServerPolicy, seed: int, *, named: bool) -> None:
        self.policy = policy
        self.named = named
        self.now = 0.0
        self.controller = AdmissionController(policy, Random(seed))
        self.ledger = Ledger(policy)
        entries = RouteEntries(policy)
        self.routes = [entries.get("/", Mark(each.name)) for each in policy.classes]
        self.health = entries.get("/health", Mark("exempt"))
        self.exempt = 0
        self.learned = False
        self.in_one_step = False

    # -- verbs

    @rule(what=ARRIVALS, tenant=TENANTS)
    def arrive(self, what: tuple[int, int, int, int], tenant: str | None) -> None:
        rank, cost, budget, behind = what
        tenant = tenant if self.named else None
        rank %= len(self.policy.classes)
        cost = min(cost, self.ledger.most_cost[rank])
        now = max(0.0, self.now - behind * TICK)
        deadline_at = now + budget * TICK
        decision = self.controller.arrive(now, self.routes[rank], cost, deadline_at, tenant)
        useless = budget == 0 or budget * TICK < self.policy.smallest_budget
        assert (decision.reason in {Reason.EXPIRED_ON_ARRIVAL, Reason.INSUFFICIENT_BUDGET}) is useless
        assert decision.settled == NOBODY or not useless
        assert decision.reason is not Reason.PREDICTED_LATE or self.learned
        self.ledger.arrived(now, rank, cost, deadline_at, decision, tenant)
        if not useless:
            self.ledger.check_nobody_is_dead(now)
        if decision.waiter is not None:
            share = min(self.policy.max_wait, self.policy.wait_share * (deadline_at - now))
            assert decision.waiter.give_up_at == now + share
        self._check()

    @rule(what=ARRIVALS, count=COUNTS, tenant=TENANTS)
    def arrive_together(self, what: tuple[int, int, int, int], count: int, tenant: str | None) -> None:
        for _ in range(count):
            self.arrive(what, tenant)

    @precondition(lambda self: self.ledger.running)
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        self._release(self.ledger.running[pick % len(self.ledger.running)])

    @precondition(lambda self: len(self.ledger.running) > 1)
    @rule()
    def release_all(self) -> None:
        for request in tuple(self.ledger.running):
            self._release(request)

    @precondition(lambda self: self.ledger.waiting and self.ledger.running)
    @rule(what=ARRIVALS, count=COUNTS, tenant=TENANTS)
    def work_off(self, what: tuple[int, int, int, int], count: int, tenant: str | None) -> None:
        """The oldest ends, whoever got its slots begins, another arrives."""
        for _ in range(count):
            if self.ledger.running:
                self._release(self.ledger.running[0])
            for request in tuple(self.ledger.granted):
                self._begin(request)
            self.arrive(what, tenant)

    @rule(ticks=PAUSES)
    def pause(self, ticks: int) -> None:
        """Time passes, and the controller is not told."""
        self.now += ticks * TICK

    @precondition(lambda self: self.ledger.waiting)
    @rule(late=st.sampled_from([0, 1, 64]))
    def timer_is_late(self, late: int) -> None:
        """A waiter's time comes, and its timer does not."""
        self.now = max(self.now, self._next_give_up() + late * TICK)

    @precondition(lambda self: self.ledger.waiting)
    @rule()
    def timer_fires(self) -> None:
        self.now = max(self.now, self._next_give_up())
        self._tick()

    @rule()
    def tick(self) -> None:
        self._tick()

    @precondition(lambda self: self.ledger.granted)
    @rule(pick=PICKS)
    def begin(self, pick: int) -> None:
        self._begin(self.ledger.granted[pick % len(self.ledger.granted)])

    @precondition(lambda self: self.ledger.waiting)
    @rule(pick=PICKS)
    def leave(self, pick: int) -> None:
        waiting = [request for queue in self.ledger.queues for request in queue]
        self._leave(waiting[pick % len(waiting)])

    @precondition(lambda self: self.ledger.granted)
    @rule(pick=PICKS)
    def leave_before_begin(self, pick: int) -> None:
        self._leave(self.ledger.granted[pick % len(self.ledger.granted)])

    @rule(leaves=st.booleans())
    def exempt_request(self, leaves: bool) -> None:
        if leaves and self.exempt:
            self.exempt -= 1
            assert self._give_back(self.health, 1, None) == NOBODY
        else:
            decision = self.controller.arrive(self.now, self.health, 1, self.now + 60)
            assert decision.admitted is (self.exempt < 2)
            self.exempt += decision.admitted
        self._check()

    @rule()
    def overload(self) -> None:
        """The service becomes overloaded, or recovers."""
        self.ledger.overloaded = self.controller.overloaded = not self.controller.overloaded

    @rule(ticks=PAUSES)
    def learn(self, ticks: int) -> None:
        self.learned = True
        for route in self.routes:
            for _ in range(10):
                self.controller.finish(route, COMPLETED, ticks * TICK)

    def teardown(self) -> None:
        """Whatever the state is, it comes to rest: new ones refused, waiters served, nothing left behind."""
        if not hasattr(self, "controller"):
            return  # the example ended before it began
        ledger = self.ledger
        self.controller.drain()
        decision = self.controller.arrive(self.now, self.routes[0], 1, self.now + 60)
        assert decision.reason is Reason.DRAINING
        ledger.arrived(self.now, 0, 1, self.now + 60, decision)
        ledger.check_nobody_is_dead(self.now)
        while ledger.running or ledger.granted:
            for request in tuple(ledger.granted):
                self._begin(request)
            for request in tuple(ledger.running):
                self._release(request)
        assert self.controller.waiting == 0, "somebody waits and nobody runs: a wedge"
        assert self.controller.slots.in_use == 0
        assert not any(each.tenants for each in self.controller.classes), (
            "a tenant that is gone is remembered"
        )
        assert ledger.counts == {
            "arrived": sum(route.arrived for route in self.routes),
            "admitted": sum(route.admitted for route in self.routes),
            "refused": sum(sum(route.refused.values()) for route in self.routes),
            "left": sum(route.left for route in self.routes),
        }

    # -- parts

    def _release(self, request: Request) -> None:
        waited = self.ledger.waiting
        route = self.routes[request.rank]
        settled = self._give_back(route, request.cost, request.tenant)
        self.ledger.released(self.now, request, settled)
        if waited:
            self.ledger.check_nobody_is_dead(self.now)
        self._check()

    def _give_back(self, route: RouteEntry, cost: int, tenant: str | None) -> Settled:
        """Give slots back: by themselves, and together with the count of the run, by turns."""
        self.in_one_step = not self.in_one_step
        if self.in_one_step:
            return self.controller.end(self.now, route, cost, ERROR, TICK, tenant)
        return self.controller.release(self.now, route, cost, tenant)

    def _tick(self) -> None:
        self.ledger.ticked(self.now, self.controller.tick(self.now))
        self.ledger.check_nobody_is_dead(self.now)
        self._check()

    def _begin(self, request: Request) -> None:
        assert request.waiter is not None
        decision = self.controller.begin(self.now, request.waiter)
        self.ledger.begun(self.now, request, decision)
        if decision.reason is not None:
            self.ledger.check_nobody_is_dead(self.now)
        self._check()

    def _leave(self, request: Request) -> None:
        assert request.waiter is not None
        self.ledger.left(self.now, request, self.controller.leave(self.now, request.waiter))
        assert request.waiter.state is WaiterState.LEFT
        assert self.controller.leave(self.now, request.waiter) == NOBODY
        self.ledger.check_nobody_is_dead(self.now)
        self._check()

    def _next_give_up(self) -> float:
        return min(
            request.waiter.give_up_at
            for queue in self.ledger.queues
            for request in queue
            if request.waiter is not None
        )

    def _check(self) -> None:
        ledger, controller = self.ledger, self.controller
        for state in controller.classes:
            if ledger.both_ends[state.rank]:
                first = state.first() if state.queue else None
                ledger.told_first(state.rank, first, kept=state.kept is not None)
        ledger.check()
        assert controller.waiting == ledger.waiting
        assert controller.slots.in_use == sum(ledger.held)
        for state, held, queue in zip(controller.classes, ledger.held, ledger.queues, strict=True):
            assert state.slots == held
            assert list(state.queue) == [request.waiter for request in queue]
            assert state.queued_cost == sum(request.cost for request in queue)
            if state.tenants is not None:
                assert len(state.tenants) == len(ledger.tenants(state.rank))
            assert (state.tenants is not None) is ledger.aware[state.rank]
        assert controller.next_wakeup() == (self._next_give_up() if ledger.waiting else None)
        assert len(controller._timetable) <= 2 * ledger.queue_length + Timetable.SLACK + 1
        assert controller.exempt == self.exempt <= 2


PROFILE = settings.get_current_profile_name()


@pytest.mark.timeout(0 if PROFILE == "long" else 300)
def test_any_order_of_verbs_keeps_what_admission_promises() -> None:
    chosen = (
        settings() if PROFILE in {"long", "faults"} else settings(max_examples=2_000, stateful_step_count=30)
    )
    run_state_machine_as_test(ControllerMachine, settings=settings(chosen, deadline=None))
