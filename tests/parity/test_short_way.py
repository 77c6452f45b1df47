"""The short way of a call and the machine's are one: equal events give equal actions, figures and states.

Two owners of equal dependencies hear of the same calls, with the same luck. One of them has no short way.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import pytest

from resilient_mw.calls.attempt import ShortAttempt
from resilient_mw.calls.budget import WINDOW
from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import (
    DELIVER,
    Action,
    Actions,
    Deliver,
    Failure,
    Head,
    Phase,
    Queue,
    Start,
    Wait,
)
from resilient_mw.calls.throttle import ThrottlePolicy
from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.core.snapshot import Histogram
from resilient_mw.runtime.dependency_owner import DependencyOwner
from tests.runtime.virtual_time import VirtualClock

SEEDS, EVENTS = 120, 400

GOOD = [Head(200), Head(200, whole=True), Head(204, whole=True), Head(301), Head(200), Head(200, whole=True)]
BAD: list[Head | Failure] = [
    Head(404, whole=True), Head(503), Head(503, 1.0, refused=True), Head(503, refused=True), Head(429, 1.0), Head(500),
    Failure(Phase.CONNECT), Failure(Phase.HEAD), Failure(Phase.POOL, ours=True), Failure(Phase.HEAD, timed_out=True),
]  # fmt: skip


def _dependency(seed: int) -> Dependency:
    random = Random(seed)
    return Dependency(
        "prices",
        "http://prices/*",
        timeout=random.choice([0.8, 2.0, 9.0]),
        total_timeout=random.choice([None, 10.0, 10.0]),
        retry=random.choice([None, RetryPolicy(attempts=3, backoff_base=0.2, budget_per_second=0.1)]),
        breaker=random.choice(
            [
                None,
                BreakerPolicy(window=8, minimum_calls=4, open_for=1.0, trials=2, listeners=[lambda *_: None]),
                BreakerPolicy(window_seconds=5.0, minimum_calls=4, open_for=1.0, ramp=2.0),
                BreakerPolicy(window=8, minimum_calls=4, open_for=1.0, slow_after=0.7, slow_ratio=0.6),
                BreakerPolicy(window_seconds=5.0, minimum_calls=4, open_for=1.0, slow_after=0.7, shadow=True),
            ]
        ),
        bulkhead=random.choice([None, 4, BulkheadPolicy(limit=4, max_wait=0.5), 50]),
        throttle=random.choice([None, ThrottlePolicy(per_second=0.5), ThrottlePolicy(sent_per_accept=1.2)]),
    )


class LongCall:
    """A call that the machine makes from its beginning."""

    def __init__(self, owner: DependencyOwner, deadline_at: float | None) -> None:
        self.owner = owner
        self.deadline_at = deadline_at
        self.total = owner.dependency.total_timeout or math.inf
        self.call: Call | None = None
        self.attempt = ShortAttempt()

    def machine(self) -> Call:
        if self.call is None:
            begun = self.attempt.deadline_at
            if begun is None:
                begun = self.owner.clock.now() + self.total if self.deadline_at is None else self.deadline_at
            self.call = Call(self.owner.state, "GET", deadline_at=begun)
            if self.attempt.deadline_at is not None:
                self.call.take_over(self.attempt)
        return self.call

    def begin(self) -> Actions:
        return self.owner.begin(self.machine())

    def tell(self, number: int, outcome: Head | Failure) -> Actions:
        return self.owner.tell(self.machine(), number, outcome)

    def resume(self, until: float) -> Actions:
        return self.owner.resume(self.machine(), until)

    def queued(self) -> Actions:
        return self.owner.queued(self.machine())

    def end(self, failure: Failure | None) -> Actions:
        return self.owner.end(self.machine(), failure)

    def cancel(self, *, collected: bool) -> None:
        self.owner.abandon(self.machine()) if collected else self.owner.cancel(self.machine())


class ShortCall(LongCall):
    """A call that goes the short way as far as it leads."""

    shorts: ClassVar[Counter[str]] = Counter()

    def begin(self) -> Actions:
        timeout = self.owner.begin_short(self.attempt, self.total, self.deadline_at)
        if not timeout:
            self.shorts["not begun"] += 1
            return super().begin()
        self.shorts["begun"] += 1
        return (Start(1, timeout, min(timeout, self.owner.dependency.connect_timeout or math.inf)),)

    def tell(self, number: int, outcome: Head | Failure) -> Actions:
        if self.call is not None or not isinstance(outcome, Head) or outcome.status >= 400:
            return super().tell(number, outcome)
        self.shorts["good"] += 1
        if outcome.whole:
            self.owner.end_short(self.attempt.way, self.attempt, outcome.status)
        else:
            self.owner.head_short(self.attempt.way, self.attempt, outcome.status)
        return (DELIVER,)

    def end(self, failure: Failure | None) -> Actions:
        if self.call is not None or failure is not None:
            return super().end(failure)
        self.owner.end_short(self.attempt.way, self.attempt)
        return ()


class World:
    """One of the two: an owner, and the calls that it hears of."""

    def __init__(self, seed: int, kind: type[LongCall]) -> None:
        self.clock = VirtualClock()
        self.owner = DependencyOwner(_dependency(seed), self.clock, Random(seed))
        self.kind = kind
        if kind is LongCall:
            self.owner.short = None
        self.calls: dict[int, LongCall] = {}
        self.at: dict[int, Action | str] = {}
        self.seen: list[object] = []

    def play(self, number: int, what: float, outcome: Head | Failure, deadline_at: float | None) -> None:
        """Let the next thing happen to a call, whatever that is where it stands."""
        call, at = self.calls.get(number), self.at.get(number)
        if call is None:
            call = self.calls[number] = self.kind(self.owner, deadline_at)
            self._go_on(number, call.begin())
        elif at == "over":
            return
        elif what < 0.05:
            call.cancel(collected=what < 0.02)
            self.at[number] = "over"
        elif isinstance(at, Start):
            self._go_on(number, call.tell(at.number, outcome))
        elif isinstance(at, Wait):
            self._go_on(number, call.resume(at.until))
        elif isinstance(at, Queue):
            self._go_on(number, call.queued())
        else:
            failure = Failure(Phase.BODY, timed_out=what < 0.1) if what < 0.15 else None
            self.seen.append(call.end(failure))
            self.at[number] = "over"

    def _go_on(self, number: int, actions: Actions) -> None:
        last = actions[-1]
        self.seen += [_rounded(action) for action in actions]
        self.at[number] = last
        if not isinstance(last, Start | Wait | Queue | Deliver):
            self.at[number] = "over"

    def figures(self) -> dict[str, Any]:
        state, snapshot = self.owner.state, self.owner.snapshot()
        breaker, throttle = state.breaker, state.throttle
        oldest = self.clock.now() - WINDOW
        return {
            "snapshot": plain(snapshot),
            "budget": None if state.budget is None else [at for at in state.budget._calls if at > oldest],
            "throttle": None
            if throttle is None
            else (throttle.window(), [*throttle._open], [*throttle._seen]),
            "typical": state.typical(),
            "judged": (state.good, state.bad),
            "under way": state.group.under_way,
            "slow": None if breaker is None else sorted(breaker.recent.running.values()),
            "outcomes": None if breaker is None else sorted(breaker._outcomes),
        }


def _rounded(action: Action) -> object:
    if isinstance(action, Start):
        return action.number, round(action.timeout, 6), round(action.connect_timeout, 6)
    if isinstance(action, Queue):
        return "queue", round(action.until, 6)
    return Wait(round(action.until, 6)) if isinstance(action, Wait) else action


def plain(snapshot: DependencySnapshot) -> object:
    """Return the figures of a snapshot in a form that can be compared."""

    def of(histogram: Histogram) -> object:
        return tuple(histogram.counts), round(histogram.total, 6)

    return replace(snapshot, seconds=None, budgets=None), of(snapshot.seconds), of(snapshot.budgets)  # type: ignore[arg-type]


def _play(seed: int) -> None:
    random = Random(f"short/{seed}")
    short, long = World(seed, ShortCall), World(seed, LongCall)
    now, illness = 1.0, 0.0
    for event in range(EVENTS):
        now += random.choice([0.0, 0.001, 0.02, 0.3, 0.9 if random.random() < 0.2 else 0.05])
        if random.random() < 0.02:
            illness = random.choice([0.0, 0.0, 0.1, 0.7])
        outcome = random.choice(BAD) if random.random() < illness else random.choice(GOOD)
        what, number = random.random(), event // 4 - random.choice([0, 0, 0, 1, 2, 5])
        deadline_at = random.choice([None, None, None, now + 0.005, now + 0.5, now + 30.0])
        hand = random.choice(["open", "close", "reset"]) if random.random() < 0.01 else None
        look = random.random() < 0.05
        for world in (short, long):
            world.clock.move_to(now)
            world.play(number, what, outcome, deadline_at)
            if hand is not None and world.owner.state.breaker is not None:
                world.owner.by_hand(hand)  # type: ignore[arg-type]
        assert short.seen == long.seen
        if look:
            assert short.figures() == long.figures()
    for number in list(short.calls):
        for world in (short, long):
            if world.at[number] != "over":
                world.calls[number].cancel(collected=False)
    assert short.figures() == long.figures()
    assert short.owner.state.in_use == long.owner.state.in_use == 0


@pytest.mark.filterwarnings(
    "ignore::resilient_mw.core.errors.ResilienceWarning"
)  # Odd dependencies are of interest.
@pytest.mark.parametrize("part", range(4))
def test_equal_events_give_equal_actions_and_figures(part: int) -> None:
    ShortCall.shorts.clear()
    for seed in range(part, SEEDS, 4):
        _play(seed)
    assert ShortCall.shorts["good"] > 500, "the short way was gone"
    assert ShortCall.shorts["not begun"] > 50, "and left"
