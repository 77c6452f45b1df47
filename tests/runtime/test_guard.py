"""The guard: it decides under its lock and acts after it has let go."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import COMPLETED, ERROR, Waiter, WaiterState
from resilient_mw.core import ports
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.events import Cancelled, Event, GuardFailed, LateWork, Refused
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.guard import Guard, guard_of
from tests.runtime.virtual_time import Bench

# -- waking


def test_a_settled_waiter_is_woken_once() -> None:
    bench = Bench(limit=1)
    bench.admit()
    waiter = bench.queue()
    woken: list[int] = []
    bench.guard.attach(waiter, lambda: woken.append(1))
    assert woken == []
    bench.release()
    bench.guard.tick(100.0)
    bench.guard.leave(waiter)
    assert woken == [1]


def test_who_attaches_after_the_end_of_the_wait_is_woken_at_once() -> None:
    bench = Bench(limit=1)
    bench.admit()
    waiter = bench.queue()
    bench.release()
    woken: list[int] = []
    bench.guard.attach(waiter, lambda: woken.append(1))
    assert woken == [1]


def test_one_that_has_left_is_not_woken() -> None:
    bench = Bench(limit=1)
    bench.admit()
    waiter = bench.queue()
    bench.guard.attach(waiter, lambda: pytest.fail("it has left"))
    bench.guard.leave(waiter)
    bench.release()
    bench.guard.tick(100.0)


def _begin_too_late(bench: Bench, waiter: Waiter) -> None:
    bench.release()
    bench.clock.move_to(10.0)
    assert bench.guard.begin(waiter).reason is Reason.EXPIRED_IN_QUEUE


def _leave_after_the_grant(bench: Bench, waiter: Waiter) -> None:
    bench.release()
    bench.guard.leave(waiter)


def _arrive_when_the_first_is_dead(bench: Bench, _: Waiter) -> None:
    bench.clock.move_to(10.0)
    bench.queue()


VERBS: dict[str, tuple[Callable[[Bench, Waiter], object], list[str]]] = {
    "release": (lambda bench, _: bench.release(), ["first"]),
    "end": (lambda bench, _: bench.guard.end(bench.entry(), 1, COMPLETED, 0.1), ["first"]),
    "tick": (lambda bench, _: bench.guard.tick(10.0), ["first"]),
    "arrive": (_arrive_when_the_first_is_dead, ["first"]),
    "leave": (_leave_after_the_grant, ["first", "second"]),
    "begin": (_begin_too_late, ["first", "second"]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_wakes_whom_it_settled_after_it_has_let_go_of_the_lock(verb: str) -> None:
    """The wake-up uses the guard itself: under the lock it would wait for ever."""
    bench = Bench(limit=1, max_wait=100.0, wait_share=1.0)
    bench.admit()
    waiters = {"first": bench.queue(budget=10.0), "second": bench.queue(budget=60.0)}
    woken: list[str] = []

    def wake(name: str) -> None:
        bench.guard.snapshot()
        woken.append(name)

    for name, waiter in waiters.items():
        bench.guard.attach(waiter, partial(wake, name))
    call, expected = VERBS[verb]
    call(bench, waiters["first"])
    assert woken == expected


def test_a_tick_that_comes_early_counts_as_the_instant_it_was_meant_for() -> None:
    bench = Bench(limit=1, max_wait=2.0)
    bench.admit()
    waiter = bench.queue()
    bench.clock.move_to(1.99)
    bench.guard.tick(2.0)
    assert waiter.reason is Reason.QUEUE_TIMEOUT


def test_a_tick_that_comes_late_counts_as_now() -> None:
    bench = Bench(limit=1, max_wait=2.0)
    bench.admit()
    early, late = bench.queue(), bench.queue(budget=40.0)
    bench.clock.move_to(50.0)
    bench.guard.tick(2.0)
    assert (early.reason, late.reason) == (Reason.QUEUE_TIMEOUT, Reason.EXPIRED_IN_QUEUE)


# -- events


def _listening(*, fail: bool = False, **policy: object) -> tuple[Bench, list[Event]]:
    heard: list[Event] = []

    def listener(event: Event) -> None:
        heard.append(event)
        if fail:
            raise ValueError("a listener of the user's")

    return Bench(listeners=[listener, heard.append] if not fail else [listener], **policy), heard


def test_every_refusal_is_told_once_to_every_listener() -> None:
    bench, heard = _listening(limit=1, queue=2, max_wait=2.0)
    bench.admit()
    timed_out, pushed_out = bench.queue(), bench.queue()
    now = bench.clock.now()
    bench.guard.arrive(bench.entry(), now, now + 60.0)
    bench.clock.move_to(0.5)
    bench.queue("critical")
    bench.clock.move_to(2.0)
    bench.guard.tick(2.0)
    assert (timed_out.reason, pushed_out.reason) == (Reason.QUEUE_TIMEOUT, Reason.PUSHED_OUT)
    assert (
        heard[::2]
        == heard[1::2]
        == [
            Refused("/", "normal", Reason.QUEUE_FULL, 0.0),
            Refused("/", "normal", Reason.PUSHED_OUT, 0.5),
            Refused("/", "normal", Reason.QUEUE_TIMEOUT, 2.0),
        ]
    )


def test_a_refusal_after_the_grant_is_told_too() -> None:
    bench, heard = _listening(limit=1, max_wait=9.0, wait_share=1.0)
    bench.admit()
    waiter = bench.queue(budget=2.0)
    bench.release()
    bench.clock.move_to(2.0)
    assert bench.guard.begin(waiter).reason is Reason.EXPIRED_IN_QUEUE
    assert heard[::2] == [Refused("/", "normal", Reason.EXPIRED_IN_QUEUE, 2.0)]


def test_a_refusal_that_was_told_when_it_was_settled_is_not_told_again_when_its_owner_asks() -> None:
    bench, heard = _listening(limit=1, max_wait=2.0)
    bench.admit()
    waiter = bench.queue()
    bench.clock.move_to(2.0)
    bench.guard.tick(2.0)
    assert bench.guard.begin(waiter).reason is Reason.QUEUE_TIMEOUT
    assert len(heard[::2]) == 1


def test_events_of_running_requests() -> None:
    bench, heard = _listening(limit=1)
    bench.guard.cancelled(bench.entry(), CancelReason.DEADLINE, 1.5)
    bench.guard.late(bench.entry(), CancelReason.DEADLINE)
    assert heard[::2] == [
        Cancelled("/", "normal", CancelReason.DEADLINE, 1.5),
        LateWork("/", "normal", CancelReason.DEADLINE),
    ]
    assert bench.entry().late == 1


def test_a_listener_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bench, heard = _listening(fail=True, limit=1, max_wait=2.0)
    bench.admit()
    waiter, following = bench.queue(), bench.queue(budget=60.0)
    woken: list[str] = []
    bench.guard.attach(waiter, lambda: woken.append("waiter"))
    bench.guard.attach(following, lambda: woken.append("following"))
    with caplog.at_level(logging.ERROR, "resilient_mw"):
        bench.clock.move_to(2.0)
        bench.guard.tick(2.0)
    assert len(heard) == 2
    assert woken == ["waiter", "following"], (
        "both are woken although both refusals were told to a broken listener"
    )
    assert bench.guard.snapshot().guard_errors == 2
    assert len(caplog.records) == 1, "once a minute is enough"
    bench.release()
    assert bench.at_rest()


def test_what_passes_unguarded_is_counted_logged_once_a_minute_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench, heard = _listening(limit=1)
    error = ValueError("a route source of somebody's")
    with caplog.at_level(logging.ERROR, "resilient_mw"):
        for instant in (0.0, 30.0, 60.0):
            bench.clock.move_to(instant)
            bench.guard.listeners.failed("route look-up", error)
    assert heard[::2] == [GuardFailed("route look-up", error)] * 3
    assert bench.guard.snapshot().guard_errors == 3
    assert [record.getMessage() for record in caplog.records] == [
        "route look-up failed; what it was meant for went on without it"
    ] * 2


# -- figures


def test_a_snapshot_tells_everything() -> None:
    bench = Bench(limit=4, queue=6, name="shop", max_wait=60.0, wait_share=1.0)
    for priority in ("critical", "normal", "normal", "sheddable"):
        bench.admit(priority)
    bench.admit("exempt")
    bench.queue("normal")
    bench.guard.ignored(("grpc-timeout", "grpc-timeout", "priority"))
    bench.guard.drain()
    snapshot = bench.guard.snapshot()
    assert (snapshot.app, snapshot.limit, snapshot.queue, snapshot.draining) == ("shop", 4, 6, True)
    assert [(each.priority, each.slots, each.queued) for each in snapshot.classes] == [
        ("critical", 1, 0),
        ("normal", 2, 1),
        ("sheddable", 1, 0),
        ("exempt", 1, 0),
    ]
    assert snapshot.ignored_headers == {"grpc-timeout": 2, "priority": 1}
    assert {(each.priority, each.arrived, each.admitted) for each in snapshot.routes} == {
        ("critical", 1, 1),
        ("normal", 3, 2),
        ("sheddable", 1, 1),
        ("exempt", 1, 1),
    }
    assert snapshot.drain_rate is None


def test_routes_that_differ_in_cost_only_share_their_labels() -> None:
    bench = Bench(limit=4)
    for cost in (1, 2):
        now = bench.clock.now()
        bench.guard.arrive(bench.entry(cost=cost), now, now + 60)
        bench.guard.end(bench.entry(cost=cost), cost, COMPLETED if cost == 1 else ERROR, 0.5)
    (route,) = bench.guard.snapshot().routes
    assert (route.arrived, route.admitted, route.outcomes) == (2, 2, {"completed": 1, "error": 1})
    assert (sum(route.run.counts), route.run.total) == (1, 0.5)
    assert bench.at_rest()


@pytest.mark.parametrize("verb", ["arrive", "end"])
def test_what_every_request_comes_by_waits_for_the_lock(verb: str) -> None:
    """B37: it takes the lock by hand."""
    bench = Bench(limit=2)
    bench.admit()
    guard, entry, now = bench.guard, bench.entry(), bench.clock.now()

    def do() -> None:
        if verb == "arrive":
            guard.arrive(entry, now, now + 60)
        else:
            guard.end(entry, 1, COMPLETED, 0.5)

    thread = threading.Thread(target=do, daemon=True)
    with guard._lock:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert guard.controller.slots.in_use == 1
    thread.join(5)
    assert guard.controller.slots.in_use == (2 if verb == "arrive" else 0)


def test_a_run_that_ended_while_a_thread_keeps_its_slots() -> None:
    bench = Bench(limit=1)
    bench.admit()
    bench.guard.finish(bench.entry(), CancelReason.DEADLINE.value, 1.0)
    assert bench.guard.controller.slots.in_use == 1
    bench.release()
    assert bench.at_rest()
    assert bench.entry().outcomes == {"deadline": 1}


def test_a_draining_guard_refuses_new_work() -> None:
    bench = Bench(limit=1)
    bench.guard.drain()
    assert bench.guard.arrive(bench.entry(), 0.0, 60.0).reason is Reason.DRAINING


# -- one guard for one policy


def test_a_policy_has_one_guard_whoever_asks_first() -> None:
    policy, barrier = ServerPolicy(), threading.Barrier(16)
    guards: list[Guard] = []

    def ask() -> None:
        barrier.wait()
        guards.append(guard_of(policy))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(guards) == 16
    assert len(set(map(id, guards))) == 1


def test_equal_policies_have_guards_of_their_own() -> None:
    assert guard_of(ServerPolicy()) is not guard_of(ServerPolicy())


def test_a_policy_that_somebody_else_owns_is_an_error() -> None:
    policy = ServerPolicy(name="taken")
    policy.owner.append("somebody")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the policy 'taken' is owned by 'somebody'"):
        guard_of(policy)


def test_exporters_see_a_guard_for_as_long_as_its_policy_lives() -> None:
    policy = ServerPolicy(name="short-lived")
    gone = weakref.ref(guard_of(policy))
    assert "short-lived" in [snapshot.app for snapshot in ports.snapshots()]
    del policy
    gc.collect()
    assert gone() is None
    assert "short-lived" not in [snapshot.app for snapshot in ports.snapshots()]


def test_a_waiter_holds_no_reference_to_its_shell_once_it_is_settled() -> None:
    """The timetable may keep a settled waiter for a while; what its request holds must not be kept with it."""
    bench = Bench(limit=1)
    bench.admit()
    waiters: list[Waiter] = [bench.queue() for _ in range(3)]
    for waiter in waiters:
        bench.guard.attach(waiter, lambda: None)
    bench.guard.leave(waiters[0])
    bench.release()
    bench.guard.tick(100.0)
    assert [waiter.wake for waiter in waiters] == [None] * 3


def test_a_request_that_names_cost_and_tenant_is_counted_under_them() -> None:
    bench = Bench(limit=4)
    now = bench.clock.now()
    entry = bench.entry()
    assert bench.guard.arrive(entry, now, now + 60, cost=3, tenant="a").admitted
    assert bench.guard.controller.slots.in_use == 3
    assert bench.guard.arrive(entry, now, now + 60, cost=1, tenant="a").admitted
    first = bench.guard.arrive(entry, now, now + 60, tenant="a").waiter
    second = bench.guard.arrive(entry, now, now + 60, cost=2, tenant="b").waiter
    assert first is not None
    assert second is not None
    assert (first.cost, first.tenant, second.cost, second.tenant) == (1, "a", 2, "b")
    bench.guard.release(entry, 3, "a")
    assert second.state is WaiterState.GRANTED, "the tenant without a slot goes first"
    assert first.state is WaiterState.GRANTED
    for waiter in (second, first):
        assert bench.guard.begin(waiter).admitted
        bench.guard.end(entry, waiter.cost, COMPLETED, 0.1, waiter.tenant)
    bench.guard.end(entry, 1, COMPLETED, 0.1, "a")
    assert bench.at_rest()
    turns = bench.guard.controller.classes[1].tenants
    assert turns is not None
    assert len(turns) == 0
