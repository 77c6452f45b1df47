"""The owner of a dependency's state: many threads and loops, one machine, and no lock over an attempt."""

from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import DELIVER, Action, Deliver, Expire, Failure, Head, Phase, Refuse, Start
from resilient_mw.core import ports
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import Transition
from resilient_mw.runtime import drive_async, drive_sync
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw.testing import ManualClock

CROWD, TRIALS = 200, 3


@pytest.fixture(autouse=True)
def threads_change_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def _dependency(**fields: Any) -> Dependency:
    breaker = BreakerPolicy(window=4, minimum_calls=4, open_for=5.0, open_jitter=0.0, trials=TRIALS)
    retry = RetryPolicy(attempts=3, backoff_base=0.0, budget_ratio=None)
    return Dependency("prices", "http://prices/*", **{"breaker": breaker, "retry": retry, **fields})


def _open(owner: DependencyOwner) -> None:
    for _ in range(4):
        call = Call(owner.state, "POST")
        owner.begin(call)
        owner.tell(call, call.attempts, Failure(Phase.HEAD))
    assert owner.snapshot().breaker == "open"


class Upstream:
    """Counts what reaches it, and answers when it is let to."""

    def __init__(self, outcome: Head | Failure) -> None:
        self.outcome = outcome
        self.received = 0
        self.most = 0
        self.inside = 0
        self.answers = threading.Event()
        self._lock = threading.Lock()

    def attempt(self, start: Start) -> Head | Failure:
        with self._lock:
            self.received += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.answers.wait(30)
        with self._lock:
            self.inside -= 1
        return self.outcome

    def discard(self, number: int) -> None:
        pass

    def sleep(self, until: float, waiter: object = None) -> None:
        pass


class AsyncUpstream:
    """The same for coroutines, on threads of its own."""

    def __init__(self, upstream: Upstream, pool: ThreadPoolExecutor) -> None:
        self._upstream = upstream
        self._pool = pool

    async def attempt(self, start: Start) -> Head | Failure:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._upstream.attempt, start)

    async def discard(self, number: int) -> None:
        pass

    async def sleep(self, until: float, waiter: object = None) -> None:
        pass


def _crowd(owner: DependencyOwner, upstream: Upstream, threads: int) -> list[Action]:
    """Let a crowd call at one instant; the upstream answers once everybody else has been refused."""
    actions: list[Action] = []
    gate = threading.Barrier(threads)

    def call() -> None:
        machine = Call(owner.state, "GET")
        gate.wait(30)
        action = drive_sync.drive(owner, machine, upstream)
        if isinstance(action, Deliver):
            owner.end(machine, None)
        actions.append(action)
        if len(actions) >= threads - TRIALS:
            upstream.answers.set()

    crowd = [threading.Thread(target=call, daemon=True) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(60)
        assert not thread.is_alive()
    return actions


@pytest.mark.parametrize(
    ("outcome", "state"), [(Head(200), "closed"), (Head(503), "open"), (Failure(Phase.HEAD), "open")]
)
def test_b67_a_crowd_of_threads_at_the_end_of_the_open_time(outcome: Head | Failure, state: str) -> None:
    clock = ManualClock()
    owner = DependencyOwner(_dependency(), clock, Random(1))
    _open(owner)
    clock.advance(5.0)
    upstream = Upstream(outcome)
    actions = _crowd(owner, upstream, CROWD)
    assert upstream.received == TRIALS, "retries of a trial are no trials of their own"
    refused = [action for action in actions if isinstance(action, Refuse)]
    assert len(refused) == CROWD - TRIALS
    assert {action.reason for action in refused} == {Reason.CIRCUIT_OPEN}
    assert all(action.retry_in >= 0 for action in refused)
    snapshot = owner.snapshot()
    assert (snapshot.breaker, snapshot.in_use) == (state, 0)


async def test_b67_a_crowd_of_tasks_at_the_end_of_the_open_time() -> None:
    clock = ManualClock()
    owner = DependencyOwner(_dependency(), clock, Random(1))
    _open(owner)
    clock.advance(5.0)
    received = 0
    refused = 0
    answers = asyncio.Event()

    class Tasks:
        async def attempt(self, start: Start) -> Head | Failure:
            nonlocal received
            received += 1
            await answers.wait()
            return Head(200)

        async def discard(self, number: int) -> None: ...

        async def sleep(self, until: float, waiter: object = None) -> None: ...

    async def call() -> None:
        nonlocal refused
        machine = Call(owner.state, "GET")
        action = await drive_async.drive(owner, machine, Tasks())
        refused += isinstance(action, Refuse)
        owner.end(machine, None)
        if refused == CROWD - TRIALS:
            answers.set()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for _ in range(CROWD):
            group.create_task(call())
    assert (received, refused) == (TRIALS, CROWD - TRIALS)
    assert owner.snapshot().breaker == "closed"


def test_b67_one_dependency_knows_nothing_of_another() -> None:
    clock = ManualClock()
    owners = [DependencyOwner(_dependency(), clock, Random(1)) for _ in range(2)]
    _open(owners[0])
    assert owners[1].snapshot().breaker == "closed"
    assert isinstance(owners[1].begin(Call(owners[1].state, "GET"))[0], Start)
    _open(owners[1])
    clock.advance(5.0)
    assert isinstance(owners[0].begin(Call(owners[0].state, "GET"))[0], Start)
    assert owners[1].snapshot().breaker == "open"


def test_b68_the_lock_is_held_over_no_attempt_and_no_body() -> None:
    """25 threads and 25 tasks on one dependency are all inside their attempts, and then inside their bodies, at once."""
    crowd = 50
    owner = DependencyOwner(_dependency(), MONOTONIC)
    inside = threading.Barrier(crowd)
    reading = threading.Barrier(crowd)

    class Meeting(Upstream):
        def attempt(self, start: Start) -> Head | Failure:
            inside.wait(30)
            return Head(200)

    upstream = Meeting(Head(200))

    def by_thread() -> None:
        call = Call(owner.state, "GET")
        assert drive_sync.drive(owner, call, upstream) == DELIVER
        reading.wait(30)
        owner.end(call, None)

    async def by_task(pool: ThreadPoolExecutor) -> None:
        call = Call(owner.state, "GET")
        assert await drive_async.drive(owner, call, AsyncUpstream(upstream, pool)) == DELIVER
        await asyncio.get_running_loop().run_in_executor(pool, reading.wait, 30)
        owner.end(call, None)

    async def tasks() -> None:
        with ThreadPoolExecutor(crowd // 2) as pool:
            async with asyncio.TaskGroup() as group:
                for _ in range(crowd // 2):
                    group.create_task(by_task(pool))

    threads = [threading.Thread(target=by_thread, daemon=True) for _ in range(crowd // 2)]
    for thread in threads:
        thread.start()
    asyncio.run(tasks())
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    snapshot = owner.snapshot()
    assert (snapshot.attempts, snapshot.in_use) == ({"2xx": crowd}, 0)


def test_b68_calls_through_one_breaker_take_as_long_as_one_of_them() -> None:
    owner = DependencyOwner(_dependency(), MONOTONIC)

    class Slow(Upstream):
        def attempt(self, start: Start) -> Head | Failure:
            time.sleep(0.2)
            return Head(200)

    def call() -> None:
        machine = Call(owner.state, "GET")
        drive_sync.drive(owner, machine, Slow(Head(200)))
        owner.end(machine, None)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(50)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert time.monotonic() - began < 5.0, "one after the other would be 10 s"


def test_counts_and_slots_are_right_under_many_threads() -> None:
    owner = DependencyOwner(_dependency(bulkhead=8, breaker=None), MONOTONIC)
    outcomes: list[Head | Failure] = [Head(200), Head(503), Failure(Phase.HEAD), Failure(Phase.CONNECT)]

    class Quick(Upstream):
        def __init__(self, random: Random) -> None:
            super().__init__(Head(200))
            self.random = random

        def attempt(self, start: Start) -> Head | Failure:
            if self.random.random() < 0.1:
                raise KeyboardInterrupt
            return self.random.choice(outcomes)

    done = []

    def worker(seed: int) -> None:
        upstream = Quick(Random(seed))
        for _ in range(300):
            call = Call(owner.state, "GET")
            try:
                drive_sync.drive(owner, call, upstream)
            except KeyboardInterrupt:
                continue
            owner.end(call, None if upstream.random.random() < 0.5 else Failure(Phase.BODY))
        done.append(seed)

    threads = [threading.Thread(target=worker, args=(seed,), daemon=True) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 8
    snapshot = owner.snapshot()
    assert snapshot.in_use == 0
    assert snapshot.calls == 8 * 300
    refused = sum(snapshot.refused.values())
    assert sum(
        snapshot.attempts.values()
    ) == snapshot.calls + snapshot.retries - refused + snapshot.retries_refused.get("bulkhead_full", 0)


# -- bodies that nobody closed


def test_an_abandoned_call_gives_its_slot_back_at_once() -> None:
    owner = DependencyOwner(_dependency(bulkhead=1), ManualClock())
    call = Call(owner.state, "GET")
    owner.begin(call)
    owner.tell(call, call.attempts, Head(200))
    owner.abandon(call)
    assert owner.state.in_use == 0
    owner.abandon(call)
    assert isinstance(owner.begin(Call(owner.state, "GET"))[0], Start)


def test_a_finalizer_that_runs_while_its_own_thread_holds_the_lock_does_not_hang() -> None:
    clock = ManualClock()
    owner = DependencyOwner(_dependency(bulkhead=1), clock)

    class Forgotten:
        def __init__(self) -> None:
            self.call = Call(owner.state, "GET")
            self.me = self  # only the collector can free it
            owner.begin(self.call)

        def __del__(self) -> None:
            owner.abandon(self.call)

    class Collecting:
        """A clock that is read under the lock, and collects garbage there."""

        def now(self) -> float:
            gc.collect()
            return clock.now()

    Forgotten()
    owner.clock = Collecting()
    late = Call(owner.state, "GET")
    assert owner.begin(late) == (Refuse(Reason.BULKHEAD_FULL),), "its slot comes back before the next step"
    assert isinstance(owner.begin(Call(owner.state, "GET"))[0], Start)


def test_a_call_that_was_abandoned_while_others_held_the_lock_is_cleared_up_by_the_next() -> None:
    for step in ("begin", "resume", "snapshot"):
        owner = DependencyOwner(_dependency(retry=RetryPolicy(budget_ratio=None)), ManualClock())
        waiting, lost = Call(owner.state, "GET"), Call(owner.state, "GET")
        for call in (waiting, lost):
            owner.begin(call)
        owner.tell(waiting, waiting.attempts, Failure(Phase.HEAD))
        with owner._lock:
            owner.abandon(lost)
            assert owner.state.in_use == 1
        if step == "begin":
            owner.begin(Call(owner.state, "GET"))
        elif step == "resume":
            owner.resume(waiting, 5.0)
        else:
            assert owner.snapshot().in_use == 0
        assert owner.state.attempts["cancelled"] == 1


# -- the one owner


def test_everybody_gets_the_same_owner_even_at_the_first_instant() -> None:
    for _ in range(20):
        dependency, gate = _dependency(), threading.Barrier(8)

        def ask(
            _: int, dependency: Dependency = dependency, gate: threading.Barrier = gate
        ) -> DependencyOwner:
            gate.wait(30)
            return owner_of(dependency)

        with ThreadPoolExecutor(8) as pool:
            owners = list(pool.map(ask, range(8)))
        assert len(set(map(id, owners))) == 1


def test_a_foreign_owner_is_an_error() -> None:
    dependency = _dependency()
    dependency.owner.append("somebody")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'prices' is owned by 'somebody'"):
        owner_of(dependency)


def test_exporters_see_an_owner_as_long_as_its_dependency_lives() -> None:
    dependency = Dependency("seen-by-exporters", "http://seen/*")
    owner_of(dependency)
    assert "seen-by-exporters" in [each.dependency for each in ports.dependency_snapshots()]
    del dependency
    gc.collect()
    assert "seen-by-exporters" not in [each.dependency for each in ports.dependency_snapshots()]


def test_early_timers_and_the_clock() -> None:
    clock = ManualClock()
    owner = DependencyOwner(
        _dependency(retry=RetryPolicy(backoff_base=8.0, backoff_cap=8.0, budget_ratio=None)), clock, Random(1)
    )
    call = Call(owner.state, "GET", deadline_at=100.0)
    owner.begin(call)
    owner.tell(call, call.attempts, Failure(Phase.HEAD))
    assert owner.resume(call, 4.0) == (Start(2, 2.0, 0.5),)
    assert owner.budget(call) == pytest.approx(6.0)
    clock.advance(6.0)
    assert owner.budget(call) == 0.0
    assert owner.tell(call, call.attempts, Failure(Phase.HEAD, timed_out=True))[0] != Expire(Phase.HEAD)


def _first_jitter(dependency: Dependency, results: Any) -> None:
    breaker = owner_of(dependency).state.breaker
    assert breaker is not None
    breaker._change(0.0, BreakerState.OPEN)
    results.put(breaker.retry_in(0.0))


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_b67_processes_that_were_forked_after_the_first_call_have_jitter_of_their_own() -> None:
    dependency = Dependency("prices", "http://prices/*")
    owner_of(dependency)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    processes = [context.Process(target=_first_jitter, args=(dependency, results)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert len({results.get() for _ in processes}) == 3


def test_no_deadline_is_no_bound() -> None:
    owner = DependencyOwner(_dependency(timeout=None, breaker=None), ManualClock())
    call = Call(owner.state, "GET")
    assert owner.begin(call) == (Start(1, math.inf, 0.5),)
    assert owner.budget(call) == math.inf


def test_a_dependency_tells_its_figures() -> None:
    dependency = Dependency("prices", "http://prices/*", breaker=BreakerPolicy(window=2, minimum_calls=1))
    with pytest.raises(RuntimeError, match=r"Dependency\('prices'\) has no figures yet: make a transport"):
        dependency.snapshot()
    breaker = owner_of(dependency).state.breaker
    assert breaker is not None
    permit = breaker.ask(1.5)
    assert permit is not None
    breaker.record(1.5, permit, failed=True)
    snapshot = dependency.snapshot()
    assert (snapshot.dependency, snapshot.breaker, snapshot.calls) == ("prices", "open", 0)
    assert snapshot.recent_transitions == (Transition(1.5, "closed", "open"),)
