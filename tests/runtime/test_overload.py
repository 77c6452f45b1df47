"""The guard measures overload: who looks, what is published and told, and that a crowd that has gone is seen to go."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest

from resilient_mw import Band, OverloadPolicy, ServerPolicy
from resilient_mw.admission.entry import COMPLETED
from resilient_mw.admission.overload_policy import Signal
from resilient_mw.core.events import Event, GuardFailed, OverloadChanged
from resilient_mw.runtime.gc_share import GcShare
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.loop_lag import WINDOW
from resilient_mw.runtime.overload import LOOK_EVERY, LoopWatch
from resilient_mw.runtime.pressure import MemoryPressure
from resilient_mw.runtime.process_readings import EVERY, ProcessReadings
from tests.runtime.virtual_time import Bench, VirtualClock

QUICK = OverloadPolicy(rise=0.1, fall=0.1, dwell=0.0)


def looked(bench: Bench, seconds: float) -> None:
    """Let time pass with a look at every tick."""
    end = bench.clock.now() + seconds
    while bench.clock.now() < end:
        bench.clock.move_to(min(end, bench.clock.now() + LOOK_EVERY))
        bench.guard.look()


def test_a_full_service_is_overloaded_and_sheds_and_recovers() -> None:
    bench = Bench(limit=1, queue=2, overload=QUICK, max_wait=60.0, wait_share=1.0)
    bench.admit()
    waiters = [bench.queue(), bench.queue()]
    looked(bench, 1.0)
    overload = bench.guard.overload
    assert (overload.state.value, bench.guard.controller.overloaded) == ("overloaded", True)
    assert overload.level > 0.9
    for waiter in waiters:
        bench.guard.leave(waiter)
    bench.release()
    looked(bench, 1.0)
    assert (overload.state.value, bench.guard.controller.overloaded) == ("normal", False)
    assert overload.level < 0.1


def test_a_change_of_the_state_is_told_once_and_outside_the_lock() -> None:
    heard: list[Event] = []

    def listener(event: Event) -> None:
        bench.guard.snapshot()  # under the lock it would wait for ever
        heard.append(event)

    bench = Bench(limit=1, queue=1, overload=QUICK, listeners=[listener], max_wait=60.0, wait_share=1.0)
    bench.admit()
    bench.queue()
    looked(bench, 1.0)
    changes = [each for each in heard if isinstance(each, OverloadChanged)]
    assert [(each.before, each.after) for each in changes] == [
        ("normal", "elevated"),
        ("elevated", "overloaded"),
    ]
    assert all(each.signal == "queue" for each in changes)
    assert 0.5 <= changes[0].level < 0.8 <= changes[1].level


@pytest.mark.parametrize("verb", ["end", "release"])
def test_a_crowd_that_goes_between_two_looks_is_seen_to_go(verb: str) -> None:
    """WSGI: nobody looks while nothing happens, and the last reading must not go on to say "full"."""
    bench = Bench(limit=10, queue=0, overload=QUICK)
    for _ in range(10):
        bench.admit()
    bench.guard.look()
    bench.clock.move_to(0.01)
    for _ in range(10):
        if verb == "release":
            bench.release()
        else:
            bench.guard.end(bench.entry(), 1, COMPLETED, 0.01)
    assert not bench.guard.overload.crowded
    bench.clock.move_to(5.0)
    bench.guard.look()
    assert bench.guard.overload.level < 0.1


def test_a_crowd_of_waiters_that_leave_is_seen_to_go() -> None:
    bench = Bench(limit=1, queue=2, overload=OverloadPolicy(slots=None, rise=0.1, fall=0.1, dwell=0.0))
    bench.admit()
    waiter = bench.queue()
    bench.guard.look()
    bench.guard.release(bench.entry(), 1)  # the slot is the waiter's now
    bench.guard.leave(waiter)
    assert not bench.guard.overload.crowded


def test_while_there_is_no_crowd_an_end_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(limit=10, queue=0, overload=QUICK)
    bench.admit()
    bench.guard.look()
    looks: list[None] = []
    monkeypatch.setattr(type(bench.guard.overload), "look", lambda *_: looks.append(None))
    bench.release()
    assert looks == []


def test_without_a_policy_nothing_is_measured() -> None:
    bench = Bench(limit=1, queue=0, overload=None)
    bench.admit()
    overload = bench.guard.overload
    bench.guard.look()
    bench.guard.report(Signal.POOL_WAIT, 9.0, "db")
    assert (overload.level, overload.state.value, overload.look_at) == (0.0, "normal", math.inf)
    assert bench.guard.snapshot().overload is None
    assert bench.guard.readiness().ready


def test_a_look_that_fails_is_counted_and_hurts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Event] = []
    bench = Bench(limit=1, overload=QUICK, listeners=[heard.append])

    def broken(*_: object) -> None:
        raise LookupError("a file")

    monkeypatch.setattr("resilient_mw.runtime.overload.admission_readings", broken)
    bench.guard.look()
    assert [type(each) for each in heard] == [GuardFailed]
    bench.admit()


def test_what_others_report_counts_and_is_forgotten() -> None:
    policy = OverloadPolicy(rise=0.1, fall=0.1, dwell=0.0, stale_after=2.0)
    bench = Bench(overload=policy)
    bench.guard.report(Signal.POOL_WAIT, 5.0, "db")
    looked(bench, 1.0)
    assert bench.guard.readiness().signal == "pool_wait"
    assert bench.guard.overload.level > 0.9
    looked(bench, 3.0)
    assert bench.guard.readiness().signal is None
    assert bench.guard.overload.level < 0.1


def test_a_report_that_changes_the_state_is_told() -> None:
    heard: list[Event] = []
    bench = Bench(overload=QUICK, listeners=[heard.append])
    bench.guard.report(Signal.POOL_WAIT, 5.0, "db")
    bench.clock.move_to(1.0)
    bench.guard.report(Signal.POOL_WAIT, 5.0, "db")
    assert [type(each) for each in heard] == [OverloadChanged]
    assert bench.guard.controller.overloaded


# -- the port of the policy


def _owned(**fields: Any) -> tuple[ServerPolicy, VirtualClock]:
    policy, clock = ServerPolicy(**fields), VirtualClock()
    policy.owner.append(Guard(policy, clock, process=None))
    return policy, clock


def test_the_policy_takes_reports_of_what_only_others_can_measure() -> None:
    policy, clock = _owned(overload=QUICK)
    for signal in ("pool_wait", "dependency_latency", "dependency_errors"):
        policy.report(signal, 0.9, "db")
    policy.report("pool_wait", None, "db")
    clock.move_to(1.0)
    signals = policy.snapshot().overload
    assert signals is not None
    assert signals.signals["pool_wait"] == 1.0
    assert signals.signals["dependency_errors"] == 0.6
    assert signals.transitions == {("normal", "overloaded"): 1}
    assert [each.after for each in signals.recent_transitions] == ["overloaded"]


@pytest.mark.parametrize("signal", ["slots", "memory", "loop_lag", "", "Pool_wait"])
def test_what_the_middleware_measures_itself_cannot_be_reported(signal: str) -> None:
    policy, _ = _owned()
    with pytest.raises(ValueError, match="dependency_errors.*pool_wait"):
        policy.report(signal, 1.0)


def test_a_policy_without_a_middleware_has_no_readiness() -> None:
    with pytest.raises(RuntimeError, match="no middleware"):
        ServerPolicy().readiness()
    with pytest.raises(RuntimeError, match="no middleware"):
        ServerPolicy().report("pool_wait", 0.1)


# -- readiness


def _overloaded(falls: bool) -> ServerPolicy:
    overload = OverloadPolicy(rise=0.1, fall=0.1, dwell=0.0, readiness_falls_on_overload=falls)
    policy, clock = _owned(overload=overload)
    policy.report("pool_wait", 5.0, "db")
    clock.move_to(1.0)
    return policy


def test_readiness_tells_overload_and_does_not_fall() -> None:
    readiness = _overloaded(falls=False).readiness()
    assert (readiness.ready, readiness.reasons) == (True, ())
    assert (readiness.state, readiness.signal) == ("overloaded", "pool_wait")
    assert readiness.level > 0.9


def test_readiness_falls_on_overload_where_the_policy_says_so() -> None:
    readiness = _overloaded(falls=True).readiness()
    assert (readiness.ready, readiness.reasons) == (False, ("overloaded",))


@pytest.mark.parametrize("falls", [False, True])
def test_readiness_falls_while_draining(falls: bool) -> None:
    policy = _overloaded(falls)
    policy.drain()
    readiness = policy.readiness()
    assert (readiness.ready, readiness.reasons[0]) == (False, "draining")


# -- the loop


def test_a_loop_that_is_late_at_every_tick_is_seen_and_forgotten_when_nothing_is_in_flight() -> None:
    bench = Bench(overload=QUICK)
    watch = LoopWatch(bench.guard.overload)
    for _ in range(10):
        now = bench.clock.now() + 0.35
        bench.clock.move_to(now)
        watch.tick(now - 0.3, now)
    assert bench.guard.readiness().signal == "loop_lag"
    assert bench.guard.overload.state.value == "overloaded"
    watch.rest()
    bench.clock.move_to(bench.clock.now() + WINDOW + 2.0)
    watch.begin()
    assert bench.guard.overload.state.value == "normal"


def test_two_loops_are_told_apart() -> None:
    bench = Bench(overload=QUICK)
    late, quick = LoopWatch(bench.guard.overload), LoopWatch(bench.guard.overload)
    late.tick(0.0, 0.5)
    quick.tick(0.5, 0.5)
    assert bench.guard.readiness().signal == "loop_lag"


# -- the process


class Memory(MemoryPressure):
    """Memory that says what it is told, and counts who asks."""

    def __init__(self) -> None:
        self.asked = 0

    def memory(self) -> float | None:
        self.asked += 1
        return 0.99

    def pressure(self) -> float | None:
        return None


def test_the_process_is_read_once_a_second_for_all_guards() -> None:
    clock, memory = VirtualClock(), Memory()
    process = ProcessReadings(clock, memory)
    guards = [Guard(ServerPolicy(overload=QUICK), clock, process=process) for _ in range(3)]
    for tick in range(40):
        clock.move_to(tick * 0.05)
        for guard in guards:
            guard.look()
    assert memory.asked == 2
    assert [guard.readiness().signal for guard in guards] == ["memory"] * 3
    assert all(guard.overload.state.value == "overloaded" for guard in guards)


def test_what_no_policy_wants_is_not_read() -> None:
    clock, memory = VirtualClock(), Memory()
    process = ProcessReadings(clock, memory)
    before = list(gc.callbacks)
    policies = (None, OverloadPolicy(memory=None, memory_pressure=None, gc=None))
    guards = [Guard(ServerPolicy(overload=policy), clock, process=process) for policy in policies]
    for guard in guards:
        guard.look()
    assert memory.asked == 0
    assert gc.callbacks == before


def test_collections_are_measured_while_somebody_wants_it() -> None:
    gc.collect()  # guards of other tests
    before = len(gc.callbacks)
    clock = VirtualClock()
    process = ProcessReadings(clock, Memory(), GcShare(clock))
    guards = [Guard(ServerPolicy(), clock, process=process) for _ in range(2)]
    assert len(gc.callbacks) == before + 1
    del guards[0]
    gc.collect()
    assert len(gc.callbacks) == before + 1
    guards.clear()
    gc.collect()
    assert len(gc.callbacks) == before


def test_a_moment_of_collecting_is_not_taken_for_the_share_of_all_time() -> None:
    clock = VirtualClock()
    share = GcShare(clock)
    process = ProcessReadings(clock, Memory(), share)
    guard = Guard(ServerPolicy(overload=OverloadPolicy(memory=None)), clock, process=process)
    share._collection("start", {})
    clock.move_to(0.1)
    share._collection("stop", {})
    assert process.read([Signal.GC]) == {Signal.GC: None}
    clock.move_to(EVERY)
    assert process.read([Signal.GC]) == {Signal.GC: pytest.approx(0.1)}
    assert guard.overload.level == 0.0


def test_a_forked_child_reads_anew() -> None:
    clock, memory = VirtualClock(), Memory()
    process = ProcessReadings(clock, memory)
    process.read([Signal.MEMORY])
    process._lock.acquire()  # a thread of the parent held it
    process.restart()
    assert process.read([Signal.MEMORY]) == {Signal.MEMORY: 0.99}
    assert memory.asked == 2


def test_bands_of_the_policy_decide() -> None:
    clock = VirtualClock()
    process = ProcessReadings(clock, Memory())
    relaxed = OverloadPolicy(memory=Band(0.995, 0.999), rise=0.1)
    guard = Guard(ServerPolicy(overload=relaxed), clock, process=process)
    guard.look()
    clock.move_to(5.0)
    assert guard.readiness().level == 0.0
