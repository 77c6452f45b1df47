"""Equal events give equal actions with several attempts in flight: threads and tasks race the same attempts in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty
from random import Random
from typing import Any

import pytest

from resilient_mw.calls import HedgePolicy
from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Actions, Deliver, Failure, Head, Phase, Start
from resilient_mw.core.call_snapshot import HedgeSnapshot
from resilient_mw.runtime import drive_async, drive_sync, race_async, race_sync
from resilient_mw.runtime.dependency_owner import DependencyOwner
from tests.runtime.virtual_time import VirtualClock, VirtualLoop

SEEDS, CALLS = 80, 12
OUTCOMES: list[Head | Failure] = [
    Head(200), Head(200), Head(503), Head(500), Head(409), Head(429, 0.5), Failure(Phase.HEAD), Failure(Phase.CONNECT),
]  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """One call: its method, what the caller has, and after how many seconds each attempt has which outcome."""

    method: str
    keyed: bool
    budget: float
    attempts: tuple[tuple[float, Head | Failure], ...]


def _planned(seed: int) -> list[Planned]:
    random = Random(f"hedged/{seed}")
    return [
        Planned(
            random.choice(["GET", "GET", "PUT", "POST"]),
            random.random() < 0.3,
            random.choice([0.3, 1.5, 20.0]),
            tuple(
                (random.choice([0.05, 0.15, 0.4, 1.1]) + 0.01 * random.random(), random.choice(OUTCOMES))
                for _ in range(8)
            ),
        )
        for _ in range(CALLS)
    ]


def _dependency(seed: int) -> Dependency:
    random = Random(f"dependency/{seed}")
    retry = RetryPolicy(
        attempts=random.choice([2, 3, 4]),
        backoff_base=random.choice([0.0, 0.3]),
        budget_per_second=random.choice([0.2, 5.0]),
    )
    delay = random.choice([None, 0.1, 0.1, 0.2])
    return Dependency(
        "prices",
        "http://prices/*",
        timeout=1.0,
        retry=retry,
        breaker=BreakerPolicy(window=10, minimum_calls=5, open_for=1.0),
        bulkhead=random.choice([2, 4, None]),
        hedge=HedgePolicy(quantile=0.5, minimum_samples=2, delay=delay, hedges=random.choice([1, 2, 3])),
    )


class Recording(DependencyOwner):
    """Writes down what was said to the machine, when, and what it answered."""

    def __init__(self, dependency: Dependency, clock: VirtualClock, seed: int) -> None:
        super().__init__(dependency, clock, Random(seed))
        self.lines: list[tuple[object, ...]] = []

    def _note(self, what: str, actions: Actions) -> Actions:
        if what != "wake" or actions:
            self.lines.append((what, round(self.clock.now(), 5), tuple(_name(action) for action in actions)))
        return actions

    def begin(self, call: Call) -> Actions:
        return self._note("begin", super().begin(call))

    def resume(self, call: Call, at: float) -> Actions:
        return self._note("resume", super().resume(call, at))

    def tell(self, call: Call, number: int, outcome: Head | Failure) -> Actions:
        return self._note(f"tell {number} {outcome}", super().tell(call, number, outcome))

    def wake(self, call: Call) -> Actions:
        return self._note("wake", super().wake(call))


def _name(action: object) -> str:
    number = getattr(action, "number", "")
    return f"{type(action).__name__} {number}"


def _call(owner: DependencyOwner, planned: Planned) -> Call:
    call = Call(
        owner.state, planned.method, deadline_at=owner.clock.now() + planned.budget, keyed=planned.keyed
    )
    call.allow_hedges(planned.method, keyed=planned.keyed)
    return call


def _ends(planned: Planned, start: Start) -> tuple[float, Head | Failure]:
    seconds, outcome = planned.attempts[start.number - 1]
    return (
        (seconds, outcome)
        if seconds < start.timeout
        else (start.timeout, Failure(Phase.HEAD, timed_out=True))
    )


# -- threads


class Script:
    """Stands in for the queue of landed attempts: the clock moves to the next one, or to the end of the wait."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.flying: list[tuple[float, int, Any]] = []

    def put(self, flight: Any) -> None:
        raise AssertionError("nobody lands by himself here")

    def get(self, timeout: float | None) -> Any:
        until = math.inf if timeout is None else self.clock.now() + timeout
        self.flying = [each for each in self.flying if not each[2].gone]
        at, _, flight = min(self.flying, key=lambda each: each[:2], default=(math.inf, 0, None))
        if flight is None or at > until:
            self.clock.move_to(until)
            raise Empty
        self.clock.move_to(at)
        flight.gone = True
        return flight


class ScriptedFlight:
    def __init__(self, number: int, outcome: Head | Failure) -> None:
        self.number, self.outcome, self.gone = number, outcome, False

    def leave(self, ended: Callable[[], None]) -> None:
        self.gone = True
        ended()


class SyncPlayed:
    """Attempts of a thread."""

    def __init__(self, clock: VirtualClock, planned: Planned, script: Script) -> None:
        self.clock, self.planned, self.script = clock, planned, script

    def attempt(self, start: Start) -> Head | Failure:
        seconds, outcome = _ends(self.planned, start)
        self.clock.move_to(self.clock.now() + seconds)
        return outcome

    def discard(self, number: int) -> None:
        pass

    def sleep(self, until: float, waiter: Waiter | None = None) -> None:
        self.clock.move_to(max(until, self.clock.now()))

    def launch(self, start: Start, land: object) -> Any:
        seconds, outcome = _ends(self.planned, start)
        flight = ScriptedFlight(start.number, outcome)
        self.script.flying.append((self.clock.now() + seconds, start.number, flight))
        return flight

    def landed(self, flight: Any) -> Head | Failure:
        outcome: Head | Failure = flight.outcome
        return outcome

    def drop(self) -> None:
        pass


def _by_threads(seed: int, monkeypatch: pytest.MonkeyPatch) -> Recording:
    clock = VirtualClock()
    owner = Recording(_dependency(seed), clock, seed)
    for planned in _planned(seed):
        script = Script(clock)
        monkeypatch.setattr(race_sync, "SimpleQueue", lambda script=script: script)
        call, played = _call(owner, planned), SyncPlayed(clock, planned, script)
        action = drive_sync.drive(owner, call, played, played)
        owner.lines.append((_name(action),))
        if isinstance(action, Deliver):
            owner.end(call, None)
        clock.move_to(clock.now() + 0.05)
    return owner


# -- tasks


class AsyncPlayed:
    """Attempts of a coroutine."""

    def __init__(self, clock: VirtualClock, planned: Planned) -> None:
        self.clock, self.planned = clock, planned

    async def attempt(self, start: Start) -> Head | Failure:
        seconds, outcome = _ends(self.planned, start)
        await asyncio.sleep(seconds)
        return outcome

    async def discard(self, number: int) -> None:
        pass

    async def sleep(self, until: float, waiter: Waiter | None = None) -> None:
        await asyncio.sleep(max(0.0, until - self.clock.now()))

    def launch(self, start: Start) -> race_async.Flight:
        return race_async.Flight(asyncio.ensure_future(self.attempt(start)), math.inf, None)

    def landed(self, flight: race_async.Flight) -> Head | Failure:
        outcome: Head | Failure = flight.task.result()
        return outcome

    def drop(self) -> None:
        pass

    def leave(self, flight: race_async.Flight, ended: Callable[[], None]) -> None:
        flight.task.cancel()
        flight.task.add_done_callback(lambda _: ended())


def _by_tasks(seed: int) -> Recording:
    clock = VirtualClock()
    owner = Recording(_dependency(seed), clock, seed)

    async def main() -> None:
        for planned in _planned(seed):
            call, played = _call(owner, planned), AsyncPlayed(clock, planned)
            action = await drive_async.drive(owner, call, played, played)
            owner.lines.append((_name(action),))
            if isinstance(action, Deliver):
                owner.end(call, None)
            await asyncio.sleep(0.05)

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        runner.run(main())
    return owner


@pytest.mark.parametrize("seed", range(SEEDS))
def test_equal_events_give_equal_actions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, tasks = _by_threads(seed, monkeypatch), _by_tasks(seed)
    assert threads.lines == tasks.lines
    assert _hedges(threads) == _hedges(tasks)
    assert threads.snapshot().attempts == tasks.snapshot().attempts
    assert threads.state.in_use == tasks.state.in_use == 0


def _hedges(owner: DependencyOwner) -> HedgeSnapshot:
    hedges = owner.snapshot().hedges
    assert hedges is not None
    return hedges


def test_the_traces_show_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        owner = _by_threads(seed, monkeypatch)
        for line in owner.lines:
            seen.update(name.split()[0] for name in line[-1]) if len(line) > 1 else None  # type: ignore[attr-defined]
        seen.update(f"refused: {reason}" for reason in _hedges(owner).refused)
        seen["won"] += _hedges(owner).won
        seen["lost"] += owner.snapshot().attempts.get("lost", 0)
        seen["several"] += sum(line[0] == "wake" for line in owner.lines)
    expected = {"Start", "Cancel", "Discard", "Deliver", "Fail", "Wait", "Expire", "won", "lost", "several",
                "refused: unsafe", "refused: samples", "refused: budget"}  # fmt: skip
    assert min(seen[each] for each in expected) >= 3, seen
