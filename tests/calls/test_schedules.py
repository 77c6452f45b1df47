"""Random schedules: the real call machine against a simulated dependency that fails in every way, in virtual time.

Each schedule draws a dependency, its policies, how it fares over time, who calls it when and with what budget, who hangs
up, and which timers are late. Afterwards nothing may be held, nobody may have been given more than was left, and a
dependency that is well again must be called again.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from resilient_mw.calls.adaptive import AdaptivePolicy
from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.budget import WINDOW
from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Action, Deliver, Expire, Failure, Head, Refuse, Start
from resilient_mw.calls.hedge import HedgePolicy, HedgeRefusal
from resilient_mw.calls.refusals import RetryRefusal
from resilient_mw.calls.state import DependencyState
from resilient_mw.calls.throttle import ThrottlePolicy
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.simulation import (
    Bimodal,
    Caller,
    Condition,
    Constant,
    Duration,
    Engine,
    Exchange,
    Exponential,
    OutgoingCall,
    RemoteService,
    Workers,
)
from tests.calls.desk import PROFILE

SCHEDULES = {"long": 20_000, "faults": 300}.get(PROFILE, 1_000)

HEDGES = [
    HedgePolicy(delay=0.1),
    HedgePolicy(delay=0.05, hedges=3),
    HedgePolicy(quantile=0.5, minimum_samples=2, hedges=2),
    HedgePolicy(quantile=0.9, minimum_samples=10),
]
CALLS_FOR, HEALED_AT, ENDS_AT = 30.0, 40.0, 80.0
"""Instants: calls are made up to the first; from the second on the dependency is well; by the third all is over."""

WELL = Condition(service=Constant(0.02))
SOMETIMES_SLOW = Bimodal(usual=Constant(0.05), rare=Constant(5.0), share=0.2)


class Watched(RemoteService):
    """Remembers the heads that attempts got, by the attempt, with their instants."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.attempts = 0
        self.most_at_once = 0
        self.heads: dict[int, tuple[float, Head]] = {}

    def attempt(self, start: Start, told: Callable[[Head | Failure], None]) -> Exchange:
        def remember(outcome: Head | Failure) -> None:
            if isinstance(outcome, Head):
                self.heads[id(start)] = (self.engine.now, outcome)
            told(outcome)

        self.attempts += 1
        exchange = super().attempt(start, remember)
        self.most_at_once = max(self.most_at_once, len(self.open))
        return exchange


class Schedule:
    """One run, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.engine = Engine()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResilienceWarning)  # Of hedges that lack room or a budget.
            self.dependency = _dependency(random)
        self.state = DependencyState(self.dependency, Random(seed + 1))
        plant = Workers(random.choice([2, 4, 16]), stoppable=random.random() < 0.7).build(self.engine, random)
        self.remote = Watched(self.engine, plant, _conditions(random), random)
        late = random.choice([0.0, 0.0, 0.001, 0.5])
        self.caller = Caller(self.engine, self.state, self.remote, late=lambda: late * random.random())
        self.calls: list[tuple[OutgoingCall, float]] = []

    def run(self) -> Counter[str]:
        """Run to the end, look at everything, and return what was seen."""
        random, at, rate = self.random, 0.0, self.random.choice([0.5, 2.0, 5.0])
        while (at := at + random.expovariate(rate)) < CALLS_FOR:
            for _ in range(random.choice([1, 1, 1, 1, 6])):
                self.engine.at(at, self._call)
        for instant in range(int(ENDS_AT)):
            self.engine.at(instant + 0.5, self._look)
        self.engine.run(ENDS_AT)
        self._check_books()
        for call, deadline_at in self.calls:
            self._check_call(call, deadline_at)
        self._check_retries()
        seen = self._seen()
        self._check_no_wedge()
        return seen

    def _call(self) -> None:
        random, now = self.random, self.engine.now
        budget = random.choice([math.inf, 10.0, 2.0, 1.0, 0.3, 0.02, 0.0])
        call = self.caller.call(
            random.choice(["GET", "GET", "GET", "PUT", "POST"]),
            budget=budget,
            replayable=random.random() < 0.8,
            keyed=random.random() < 0.3,
            owned=random.random() < 0.1,
        )
        self.calls.append((call, now + budget))
        if random.random() < 0.15:
            self.engine.after(random.expovariate(2.0), call.hang_up)

    def _look(self) -> None:
        assert self.state.in_use == len(self.remote.open), "a slot for each attempt under way, and no other"

    # -- afterwards

    def _check_books(self) -> None:
        state = self.state
        assert not self.remote.open, "a response was never closed"
        assert state.in_use == 0, "a slot was lost"
        assert state.line is None or state.line.waiting == 0, "somebody still waits"
        assert state.bulkhead is None or self.remote.most_at_once <= state.bulkhead
        assert state.breaker is None or not state.breaker._trials, "a trial was lost"
        assert state.throttle is None or not any(state.throttle._open), (
            "an attempt is open in the books for ever"
        )
        assert sum(state.attempts.values()) == self.remote.attempts
        assert state.calls == len(self.calls)

    def _check_call(self, call: OutgoingCall, deadline_at: float) -> None:
        policy, reserve = self.dependency.retry, self.dependency.reserve
        hedges = 0 if self.dependency.hedge is None else self.dependency.hedge.hedges
        assert call.over, "a call never ended"
        assert call.machine._flying == (), "an attempt never ended"
        assert len(call.starts) <= (1 if policy is None else policy.attempts) + hedges
        assert [start.number for _, start in call.starts] == list(range(1, len(call.starts) + 1))
        timeouts = [start.timeout for _, start in call.starts]
        assert timeouts == sorted(timeouts, reverse=True), "the budget grew"
        for at, start in call.starts:
            assert 0 < start.timeout <= deadline_at - at - reserve
            assert start.connect_timeout <= start.timeout
        for (_, start), (again_at, _) in pairwise(call.starts):
            if hedges:
                continue  # An attempt need not follow from the one before.
            at, head = self.remote.heads.get(id(start), (0.0, None))
            if head is not None and head.retry_after is not None:
                assert again_at >= at + head.retry_after, "Retry-After was shortened"

    def _check_retries(self) -> None:
        policy = self.dependency.retry
        if policy is None and self.dependency.hedge is not None:
            policy = RetryPolicy()  # Whose budget hedges without retries get.
        if policy is None or policy.budget_ratio is None:
            return
        begun = [at for call, _ in self.calls for at, start in call.starts if start.number > 1]
        late = [at for call, _ in self.calls for at in call.late]
        for end in set(begun) - set(late):
            inside = _within(end, begun) - _within(end, late)
            calls = _within(end, [call.starts[0][0] for call, _ in self.calls if call.starts])
            assert inside <= policy.budget_ratio * calls + policy.budget_per_second * WINDOW
        assert self.state.budget is not None
        kept = self.state.budget._retries
        assert len(set(kept)) <= len(begun), "a place in the retry budget was lost"

    def _seen(self) -> Counter[str]:
        seen = Counter("hung up" if call.outcome is None else _name(call.outcome) for call, _ in self.calls)
        for reason, count in self.state.retry_refusals.items():
            seen[f"retry refused: {reason.value}"] += count
        if self.state.breaker is not None:
            seen.update(
                {f"{before} to {after}": n for (before, after), n in self.state.breaker.counts.items()}
            )
        if self.state.hedging is not None:
            seen.update({f"hedge refused: {reason}": n for reason, n in self.state.hedging.refused.items()})
            seen["hedges"] += self.state.hedging.made
            seen["hedges won"] += self.state.hedging.won
            seen["lost"] += self.state.attempts.get("lost", 0)
        seen["retries"] += self.state.retries
        seen["late retries"] += sum(len(call.late) for call, _ in self.calls)
        return seen

    def _check_no_wedge(self) -> None:
        for _ in range(4):
            call = self.caller.call()
            assert call.starts, "a dependency that is well is not called"
            self.engine.run(self.engine.now + 1.0)
            assert isinstance(call.outcome, Deliver)
        assert self.state.breaker is None or self.state.breaker.state is BreakerState.CLOSED


def _within(end: float, instants: list[float]) -> int:
    return sum(end - WINDOW < at <= end for at in instants)


def _name(outcome: Action) -> str:
    match outcome:
        case Expire(phase):
            return f"expired: {phase.value}"
        case Refuse(reason, _, attempts):
            return f"refused: {reason.value}{' after an attempt' if attempts else ''}"
        case _:
            return type(outcome).__name__.lower()


def _dependency(random: Random) -> Dependency:
    retry = RetryPolicy(
        attempts=random.choice([2, 3, 5]),
        backoff_base=random.choice([0.0, 0.1, 1.0]),
        backoff_cap=random.choice([1.0, 4.0]),
        budget_ratio=random.choice([None, 0.0, 0.1, 0.5]),
        budget_per_second=random.choice([0.0, 0.2, 1.0]),
        max_retry_after=random.choice([0.5, 5.0]),
    )
    breaker = BreakerPolicy(
        window=random.choice([4, 10, 20]),
        minimum_calls=random.choice([1, 4]),
        failure_ratio=random.choice([0.3, 0.5, 0.9]),
        open_for=random.choice([0.2, 2.0, 5.0]),
        trials=random.choice([1, 3]),
        trial_lease=10.0,
    )
    waiting = BulkheadPolicy(limit=random.choice([1, 3, 10]), max_wait=0.5)
    bulkhead = random.choice([None, 1, 3, 10, waiting])
    throttle = ThrottlePolicy(window=random.choice([3.5, 10.0]), per_second=0.2, sent_per_accept=1.1)
    adaptive = (
        AdaptivePolicy(initial=4, floor=2)
        if bulkhead in (10, BulkheadPolicy(limit=10, max_wait=0.5))
        else None
    )
    return Dependency(
        "prices",
        "http://prices/*",
        timeout=random.choice([0.2, 1.0, 3.0]),
        connect_timeout=random.choice([None, 0.1, 0.5]),
        retry=random.choice([None, retry, retry, retry]),
        breaker=random.choice([None, breaker, breaker, breaker]),
        bulkhead=bulkhead,
        throttle=random.choice([None, throttle]),
        adaptive=random.choice([None, adaptive]),
        hedge=random.choice([None, *HEDGES]),
        reserve=random.choice([0.0, 0.01, 0.1]),
        smallest_budget=random.choice([0.0, 0.005, 0.05]),
    )


def _conditions(random: Random) -> list[tuple[float, Condition]]:
    """Return how the dependency fares: something else every few seconds, and well in the end."""
    conditions, at = [], 0.0
    while at < CALLS_FOR:
        conditions.append((at, _condition(random)))
        at += random.uniform(2.0, 12.0)
    return [*conditions, (HEALED_AT, WELL)]


def _condition(random: Random) -> Condition:
    def share() -> float:
        return random.choice([0.0, 0.0, 0.0, 0.1, 0.5, 1.0])

    services: list[Duration] = [Constant(0.02), Exponential(0.1), Constant(2.0), SOMETIMES_SLOW]
    bodies: list[Duration] = [Constant(0.0), Exponential(0.1), Constant(4.0)]
    connects: list[Duration] = [Constant(0.0), Exponential(0.05), Constant(0.3)]
    return Condition(
        service=random.choice(services),
        body=random.choice(bodies),
        connect=random.choice(connects),
        refuses=share(),
        unreachable=share(),
        resets=share(),
        errors=share(),
        forbids=random.choice([0.0, 0.0, 0.2]),
        cuts=share(),
        statuses=random.choice([(503,), (500, 502, 504), (429, 503), (404, 408, 425, 501, 507)]),
        shed_above=random.choice([None, 0, 3]),
        retry_after=random.choice([None, 0.0, 0.3, 2.0]),
    )


@pytest.mark.timeout(0 if PROFILE == "long" else 120)
def test_nothing_is_held_nothing_grows_and_nothing_is_wedged() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        try:
            seen += Schedule(seed).run()
        except BaseException as error:
            error.add_note(f"this was schedule {seed}")
            raise
    missing = EVERYTHING - set(seen)
    assert not missing, f"the schedules never show {missing}, so they say nothing about it"


EVERYTHING = {
    "deliver", "fail", "hung up", "expired: connect", "expired: head", "expired: body", "expired: backoff", "expired: bulkhead",
    "refused: circuit_open", "refused: bulkhead_full", "refused: insufficient_budget",
    "refused: circuit_open after an attempt", "refused: bulkhead_full after an attempt",
    "refused: throttled", "refused: throttled after an attempt",
    *(f"retry refused: {reason.value}" for reason in RetryRefusal),
    *(f"hedge refused: {reason.value}" for reason in HedgeRefusal), "hedges", "hedges won", "lost",
    "closed to open", "open to half_open", "half_open to open", "half_open to closed", "retries", "late retries",
}  # fmt: skip
