"""One trace through the bare controller, the asyncio gate and the thread gate: equal verdicts at equal instants.

All instants of the trace are sums of distinct powers of two, so that no two things happen at once and the order is
never a matter of luck; they differ by more than a loop's slack of a nanosecond. Time is virtual on all three ways.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.runtime.async_gate import AsyncWait
from resilient_mw.runtime.thread_gate import wait_in_thread
from tests.runtime.virtual_time import Bench

CALLS, SEEDS = 14, 16


def _policy(seed: int) -> dict[str, Any]:
    return {"limit": 3, "queue": 4, "max_wait": 128.0, "wait_share": 1.0 if seed % 2 else 0.5}


@dataclass(frozen=True)
class Call:
    """One request of the trace: when it comes, what it is, how long it runs, and when its caller gives up."""

    number: int
    at: float
    priority: str
    cost: int
    budget: float
    runs: float
    leaves_at: float


@dataclass
class Record:
    """What happened to each request: its number, the verdict, and the instant at which it was known."""

    verdicts: dict[int, tuple[str, float]] = field(default_factory=dict)

    def note(self, call: Call, decision: Decision | None, now: float) -> None:
        verdict = "left" if decision is None else decision.reason.value if decision.reason else "admitted"
        assert call.number not in self.verdicts
        self.verdicts[call.number] = (verdict, now)


def _trace(seed: int) -> list[Call]:
    """Return calls that each have a bit of their own in every instant.

    The waits are so long that no timer of a real thread fires while the trace runs.
    """
    random = Random(seed)
    calls = []
    for number in range(CALLS):
        own = 2.0 ** -(2 + number)
        at = number * 8.0 + own
        calls.append(
            Call(
                number,
                at,
                random.choice(["critical", "normal", "normal", "sheddable"]),
                random.choice([1, 1, 1, 3]),
                random.choice([64.0, 128.0, 512.0]) + own,
                random.choice([16.0, 32.0, 96.0, 192.0]) + 2.0**-18,
                at + random.choice([24.0, 5000.0, 5000.0, 5000.0]) + 2.0**-19,
            )
        )
    return calls


class _Controller:
    """Drives the controller alone, from one event to the next."""

    def __init__(self, policy: dict[str, Any]) -> None:
        self.bench = Bench(**policy)
        self.record = Record()
        self._controller = self.bench.guard.controller
        self._events: list[tuple[float, int, str, Call]] = []
        self._waiting: dict[Waiter, Call] = {}

    def run(self, calls: list[Call]) -> Record:
        self._events = [(call.at, call.number, "arrives", call) for call in calls]
        heapq.heapify(self._events)
        while self._events or self._controller.next_wakeup() is not None:
            wakeup = self._controller.next_wakeup()
            if wakeup is not None and (not self._events or wakeup < self._events[0][0]):
                self._settle(wakeup, self._controller.tick(wakeup))
            else:
                now, _, what, call = heapq.heappop(self._events)
                self._happen(now, what, call)
        assert self.bench.at_rest()
        return self.record

    def _happen(self, now: float, what: str, call: Call) -> None:
        controller, entry = self._controller, self.bench.entry(call.priority, call.cost)
        if what == "arrives":
            decision = controller.arrive(now, entry, call.cost, call.at + call.budget)
            if decision.waiter is None:
                self._begin(now, call, decision)
                return
            self._waiting[decision.waiter] = call
            heapq.heappush(self._events, (call.leaves_at, call.number, "leaves", call))
            self._settle(now, decision.settled)
        elif what == "ends":
            self._settle(now, controller.release(now, entry, call.cost))
        else:
            for waiter in [waiter for waiter, owner in self._waiting.items() if owner is call]:
                del self._waiting[waiter]
                self.record.note(call, None, now)
                self._settle(now, controller.leave(now, waiter))

    def _settle(self, now: float, settled: tuple[Waiter, ...]) -> None:
        for waiter in settled:
            self._begin(now, self._waiting.pop(waiter), self._controller.begin(now, waiter))

    def _begin(self, now: float, call: Call, decision: Decision) -> None:
        self.record.note(call, decision, now)
        if decision.admitted:
            heapq.heappush(self._events, (now + call.runs, call.number, "ends", call))
        self._settle(now, decision.settled)


def _by_asyncio(calls: list[Call], policy: dict[str, Any]) -> Record:
    """Drive the asyncio gate on a loop in virtual time."""
    bench = Bench(**policy)
    record = Record()

    async def request(call: Call) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(call.at - loop.time())
        entry = bench.entry(call.priority, call.cost)
        decision: Decision | None = bench.guard.arrive(entry, loop.time(), call.at + call.budget)
        if decision is not None and decision.waiter is not None:
            wait = AsyncWait(bench.guard, decision.waiter, loop)
            leaving = loop.call_later(call.leaves_at - loop.time(), wait.abandon)
            decision = await wait.wait()
            leaving.cancel()
        record.note(call, decision, loop.time())
        if decision is not None and decision.admitted:
            await asyncio.sleep(call.runs)
            bench.guard.release(entry, call.cost)

    async def main() -> None:
        await asyncio.gather(*map(request, calls))

    bench.run(main)
    assert bench.at_rest()
    return record


class _Threads:
    """Drives the thread gate: a thread for each request that waits, and a clock that moves when all have settled."""

    def __init__(self, policy: dict[str, Any]) -> None:
        self.bench = Bench(**policy)
        self.record = Record()
        self.events: list[tuple[float, int, str, Call]] = []
        self._waiting: dict[Waiter, tuple[Call, threading.Thread]] = {}

    def run(self, calls: list[Call]) -> Record:
        guard = self.bench.guard
        self.events = [(call.at, call.number, "arrives", call) for call in calls]
        heapq.heapify(self.events)
        while self.events or guard.controller.next_wakeup() is not None:
            wakeup = guard.controller.next_wakeup()
            if wakeup is not None and (not self.events or wakeup < self.events[0][0]):
                self.bench.clock.move_to(wakeup)
                guard.tick(wakeup)  # in place of the timer of its thread, which sleeps in real time
            else:
                now, _, what, call = heapq.heappop(self.events)
                self.bench.clock.move_to(now)
                self._happen(what, call)
            self._let_the_settled_run()
        assert self.bench.at_rest()
        return self.record

    def _happen(self, what: str, call: Call) -> None:
        guard, now = self.bench.guard, self.bench.clock.now()
        entry = self.bench.entry(call.priority, call.cost)
        if what == "arrives":
            decision = guard.arrive(entry, now, call.at + call.budget)
            if decision.waiter is None:
                self._began(call, decision)
                return
            heapq.heappush(self.events, (call.leaves_at, call.number, "leaves", call))
            thread = threading.Thread(target=self._wait, args=(call, decision.waiter), daemon=True)
            self._waiting[decision.waiter] = (call, thread)
            thread.start()
        elif what == "ends":
            guard.release(entry, call.cost)
        else:
            for waiter in [waiter for waiter, (owner, _) in self._waiting.items() if owner is call]:
                self.record.note(call, None, now)
                guard.leave(waiter)

    def _wait(self, call: Call, waiter: Waiter) -> None:
        try:
            self._began(call, wait_in_thread(self.bench.guard, waiter))
        except RuntimeError:
            assert (
                waiter.state is WaiterState.LEFT
            )  # nobody leaves from a thread; the trace does it from outside

    def _began(self, call: Call, decision: Decision) -> None:
        now = self.bench.clock.now()
        self.record.note(call, decision, now)
        if decision.admitted:
            heapq.heappush(self.events, (now + call.runs, call.number, "ends", call))

    def _let_the_settled_run(self) -> None:
        while settled := list(self._settled()):
            for waiter in settled:
                _, thread = self._waiting.pop(waiter)
                if waiter.state is not WaiterState.LEFT:
                    thread.join(20)
                    assert not thread.is_alive(), "a settled waiter was not woken"

    def _settled(self) -> Iterator[Waiter]:
        return (waiter for waiter in self._waiting if waiter.state is not WaiterState.WAITING)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_equal_verdicts_at_equal_instants(seed: int) -> None:
    calls, policy = _trace(seed), _policy(seed)
    expected = _Controller(policy).run(calls).verdicts
    assert len(expected) == len(calls)
    assert _by_asyncio(calls, policy).verdicts == expected
    assert _Threads(policy).run(calls).verdicts == expected


def test_the_traces_show_every_verdict() -> None:
    seen: dict[str, int] = {}
    for seed in range(SEEDS):
        for verdict, _ in _Controller(_policy(seed)).run(_trace(seed)).verdicts.values():
            seen[verdict] = seen.get(verdict, 0) + 1
    assert set(seen) == {"admitted", "queue_full", "pushed_out", "queue_timeout", "expired_in_queue", "left"}
    assert min(seen.values()) >= 3, seen
