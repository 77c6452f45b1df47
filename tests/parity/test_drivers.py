"""Equal events give equal actions: the bare machine, the async driver and the sync driver play the same traces.

A trace is a handful of calls to one dependency that get in each other's way: they share its breaker, its bulkhead, its
retry budget and its luck. Time is virtual on all three ways. Instants differ by more than a float can get wrong, so that
the order of events is the same; they are compared to a microsecond.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import pytest

from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Action, Actions, Deliver, Discard, Failure, Head, Phase, Start, Wait
from resilient_mw.calls.state import DependencyState
from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.runtime import drive_async, drive_sync
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.simulation import Engine
from tests.parity.stage import Stage
from tests.runtime.virtual_time import VirtualClock, VirtualLoop

CALLS, SEEDS = 24, 60

OUTCOMES: list[Head | Failure] = [
    Head(200), Head(200), Head(200), Head(503), Head(500), Head(503, 2.0), Head(429), Head(429, 1.0), Head(404),
    Head(503, 1.0, refused=True), Failure(Phase.CONNECT), Failure(Phase.HEAD), Failure(Phase.TLS),
    Failure(Phase.POOL, timed_out=True, ours=True),
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What becomes of one attempt: after so many seconds this, then a body that takes so long, and may be cut off."""

    seconds: float
    outcome: Head | Failure
    body: float
    cut: bool

    def ends(self, start: Start) -> tuple[float, Head | Failure]:
        """Return after how many seconds an attempt has an outcome, and which."""
        if self.seconds < start.timeout:
            return self.seconds, self.outcome
        return start.timeout, Failure(Phase.HEAD, timed_out=True)

    def body_ends(self, left: float) -> tuple[float, Failure | None]:
        """Return after how many seconds a body ends, and how it was cut off."""
        if self.body >= left:
            return left, Failure(Phase.BODY, timed_out=True)
        return self.body, Failure(Phase.BODY) if self.cut else None


@dataclass(frozen=True)
class Planned:
    """One call of a trace."""

    at: float
    method: str
    budget: float
    hangs_up_at: float
    steps: tuple[Step, ...]

    def machine(self, state: DependencyState) -> Call:
        return Call(state, self.method, deadline_at=self.at + self.budget)


class HangUp(BaseException):
    """The caller gives up."""


class Record:
    """What one way of playing a trace shows of one call."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def note(self, now: float, action: object) -> None:
        self.lines.append((round(now, 6), _rounded(action)))


def _rounded(action: object) -> object:
    match action:
        case Start(number, timeout, connect_timeout):
            return Start(number, round(timeout, 6), round(connect_timeout, 6))
        case Wait(until):
            return Wait(round(until, 6))
    return action


def _dependency(seed: int) -> Dependency:
    random = Random(seed)
    return Dependency(
        "prices",
        "http://prices/*",
        timeout=random.choice([1.0, 3.0]),
        retry=RetryPolicy(
            attempts=random.choice([2, 3, 4]),
            backoff_base=random.choice([0.0, 0.25, 1.0]),
            budget_ratio=random.choice([None, 0.1, 0.1, 0.3]),
            budget_per_second=random.choice([0.0, 0.1]),
        ),
        breaker=BreakerPolicy(
            window=8, minimum_calls=random.choice([2, 4, 8]), open_for=1.5, trials=random.choice([1, 2])
        ),
        bulkhead=random.choice([2, 4, None]),
    )


def _trace(seed: int) -> list[Planned]:
    random = Random(f"trace/{seed}")
    planned = []
    for number in range(CALLS):
        wellness = 0.7 if number > CALLS // 2 else 0.2
        own = 0.001 * (number + 1) + 0.000_01 * random.random()
        at = number * random.choice([0.2, 0.5, 1.0]) + own
        steps = tuple(
            Step(
                random.choice([0.05, 0.3, 0.9, 5.0]) + 0.0001 * random.random(),
                Head(200) if random.random() < wellness else random.choice(OUTCOMES),
                random.choice([0.0, 0.2, 4.0]) + 0.0001 * random.random(),
                random.random() < 0.2,
            )
            for _ in range(4)
        )
        hangs_up_at = at + random.choice([0.4, 1.5, 1e5, 1e5, 1e5, 1e5]) + 0.0001 * random.random()
        method = random.choice(["GET", "GET", "GET", "POST"])
        planned.append(Planned(at, method, random.choice([0.001, 0.8, 2.5, 20.0]) + own, hangs_up_at, steps))
    return planned


Result = tuple[list[list[tuple[object, ...]]], DependencySnapshot]


# -- the bare machine


class Bare:
    """Plays one call on the machine alone, from one event to the next."""

    def __init__(self, engine: Engine, state: DependencyState, planned: Planned, record: Record) -> None:
        self.engine, self.planned, self.record = engine, planned, record
        self.call = planned.machine(state)
        self.number = 0
        self.over = False
        self.step = planned.steps[0]
        self.started_at = 0.0
        self.timeout = 0.0
        engine.at(planned.at, lambda: self.obey(self.call.begin(engine.now)))
        engine.at(planned.hangs_up_at, self.hang_up)

    def obey(self, actions: Actions) -> None:
        engine = self.engine
        for action in actions:
            self.record.note(engine.now, action)
            match action:
                case Start():
                    self.step = self.planned.steps[self.number]
                    self.number += 1
                    self.started_at, self.timeout = engine.now, action.timeout
                    seconds, outcome = self.step.ends(action)
                    engine.after(seconds, partial(self.told, action.number, outcome))
                case Wait(until):
                    engine.at(until, self.resume)
                case Deliver():
                    left = self.timeout - (engine.now - self.started_at)
                    seconds, failure = self.step.body_ends(left)
                    engine.after(seconds, partial(self.end, failure))
                case Discard():
                    pass
                case _:
                    self.over = True

    def told(self, number: int, outcome: Head | Failure) -> None:
        if not self.over:
            now, call = self.engine.now, self.call
            told = (
                call.head(now, number, outcome)
                if isinstance(outcome, Head)
                else call.failed(now, number, outcome)
            )
            self.obey(told)

    def resume(self) -> None:
        if not self.over:
            self.obey(self.call.resume(self.engine.now))

    def end(self, failure: Failure | None) -> None:
        if not self.over:
            self.over = True
            self.record.note(self.engine.now, self.call.end(self.engine.now, failure))

    def hang_up(self) -> None:
        if not self.over:
            self.over = True
            self.call.cancel(self.engine.now)
            self.record.note(self.engine.now, "hung up")


def _bare(seed: int) -> Result:
    engine = Engine()
    owner = DependencyOwner(_dependency(seed), _EngineClock(engine), Random(seed))
    records = [Record() for _ in range(CALLS)]
    for planned, record in zip(_trace(seed), records, strict=True):
        Bare(engine, owner.state, planned, record)
    engine.run()
    return [record.lines for record in records], owner.snapshot()


class _EngineClock:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def now(self) -> float:
        return self._engine.now


# -- the drivers


class Played:
    """What both drivers' attempts have in common."""

    def __init__(self, clock: Any, planned: Planned, record: Record) -> None:
        self.clock, self.planned, self.record = clock, planned, record
        self.number = 0
        self.until = 0.0
        self.interrupted = False

    def next(self, start: Start) -> tuple[float, Head | Failure]:
        """Return until when the attempt goes on, and what becomes of it."""
        self.record.note(self.clock.now(), start)
        self.step = self.planned.steps[self.number]
        self.number += 1
        self.until = self.clock.now() + start.timeout
        seconds, outcome = self.step.ends(start)
        return self.clock.now() + seconds, outcome

    def discarded(self, number: int) -> None:
        if not self.interrupted:
            self.record.note(self.clock.now(), Discard(number))

    def delivered(self, action: Action) -> tuple[float, Failure | None]:
        """Return until when the body goes on, and how it is cut off."""
        seconds, failure = self.step.body_ends(self.until - self.clock.now())
        return self.clock.now() + seconds, failure


class SyncPlayed(Played):
    """Attempts of a thread."""

    def __init__(self, stage: Stage, planned: Planned, record: Record) -> None:
        super().__init__(stage.clock, planned, record)
        self.stage = stage

    def attempt(self, start: Start) -> Head | Failure:
        until, outcome = self.next(start)
        self.wait(until)
        return outcome

    def discard(self, number: int) -> None:
        self.discarded(number)

    def sleep(self, until: float, waiter: object = None) -> None:
        self.record.note(self.clock.now(), Wait(until))
        self.wait(until)

    def wait(self, until: float) -> None:
        # A thread cannot be interrupted from outside; what it waits for ends when its caller gives up.
        self.stage.wait_until(min(until, self.planned.hangs_up_at))
        if until > self.planned.hangs_up_at:
            self.interrupted = True
            raise HangUp


def _by_threads(seed: int) -> Result:
    stage = Stage()
    owner = DependencyOwner(_dependency(seed), stage.clock, Random(seed))
    records = [Record() for _ in range(CALLS)]

    def play(planned: Planned, record: Record) -> None:
        played, call = SyncPlayed(stage, planned, record), planned.machine(owner.state)
        try:
            action = drive_sync.drive(owner, call, played)
            record.note(stage.clock.now(), action)
            if isinstance(action, Deliver):
                until, failure = played.delivered(action)
                played.wait(until)
                record.note(stage.clock.now(), owner.end(call, failure))
        except HangUp:
            owner.cancel(call)
            record.note(stage.clock.now(), "hung up")

    trace = _trace(seed)
    stage.run(
        (planned.at, partial(play, planned, record)) for planned, record in zip(trace, records, strict=True)
    )
    return [record.lines for record in records], owner.snapshot()


class AsyncPlayed(Played):
    """Attempts of a coroutine."""

    async def attempt(self, start: Start) -> Head | Failure:
        until, outcome = self.next(start)
        await self.wait(until)
        return outcome

    async def discard(self, number: int) -> None:
        self.discarded(number)

    async def sleep(self, until: float, waiter: object = None) -> None:
        self.record.note(self.clock.now(), Wait(until))
        await self.wait(until)

    async def wait(self, until: float) -> None:
        try:
            await asyncio.sleep(until - self.clock.now())
        except asyncio.CancelledError:
            self.interrupted = True
            raise


def _by_tasks(seed: int) -> Result:
    clock = VirtualClock()
    owner = DependencyOwner(_dependency(seed), clock, Random(seed))
    records = [Record() for _ in range(CALLS)]

    async def play(planned: Planned, record: Record) -> None:
        played, call = AsyncPlayed(clock, planned, record), planned.machine(owner.state)
        await asyncio.sleep(planned.at - clock.now())
        task = asyncio.current_task()
        assert task is not None
        hang_up = asyncio.get_running_loop().call_at(planned.hangs_up_at, task.cancel)
        try:
            action = await drive_async.drive(owner, call, played)
            record.note(clock.now(), action)
            if isinstance(action, Deliver):
                until, failure = played.delivered(action)
                await played.wait(until)
                record.note(clock.now(), owner.end(call, failure))
        except asyncio.CancelledError:
            owner.cancel(call)
            record.note(clock.now(), "hung up")
        finally:
            hang_up.cancel()

    async def main() -> None:
        await asyncio.gather(*map(play, _trace(seed), records))

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        runner.run(main())
    return [record.lines for record in records], owner.snapshot()


WAYS: dict[str, Callable[[int], Result]] = {"sync": _by_threads, "async": _by_tasks}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_equal_events_give_equal_actions(way: str, seed: int) -> None:
    expected, expected_snapshot = _bare(seed)
    lines, snapshot = WAYS[way](seed)
    assert lines == expected
    for field in (
        "calls",
        "attempts",
        "retries",
        "refused",
        "retries_refused",
        "expired",
        "breaker",
        "transitions",
    ):
        assert getattr(snapshot, field) == getattr(expected_snapshot, field)
    assert snapshot.in_use == expected_snapshot.in_use == 0


def test_the_traces_show_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        lines, snapshot = _bare(seed)
        seen.update(type(action).__name__ for call in lines for _, action in call)
        seen.update(f"refused: {reason}" for reason in snapshot.refused)
        seen.update(f"retry refused: {reason}" for reason in snapshot.retries_refused)
        seen.update(f"expired: {phase}" for phase in snapshot.expired)
        seen.update(f"{before} to {after}" for before, after in snapshot.transitions)
    expected = {
        "Start", "Wait", "Discard", "Deliver", "Fail", "Expire", "Refuse", "str", "tuple",
        "refused: circuit_open", "refused: bulkhead_full", "refused: insufficient_budget",
        "retry refused: attempts", "retry refused: unsafe", "retry refused: deadline", "retry refused: budget",
        "retry refused: circuit_open", "expired: head", "expired: body", "closed to open", "open to half_open",
        "half_open to closed", "half_open to open",
    }  # fmt: skip
    assert expected <= set(seen), expected - set(seen)
    assert min(seen[each] for each in expected) >= 3, seen
