"""The circuit breaker: stops asking a dependency that fails, and tries again carefully.

Closed: every attempt passes, the last `window` outcomes are counted. Open: every attempt is refused at once. Half-open:
a few trials pass; all succeed: closed; one fails: open again.

It judges attempts, not calls: a call that fails twice and then succeeds has told of two failures. A retry asks like
every other attempt, so the retries of a call end when the circuit opens.

Pure and not thread-safe: the owner of the dependency locks around every call. A permit carries the generation in which
it was given, so a late result of an older state changes nothing. A trial holds its place by a lease, and gives it back
whatever its outcome was, so neither a lost one nor one without a verdict can keep the breaker half-open for ever.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from resilient_mw.calls.config import BreakerPolicy
from resilient_mw.core.snapshot import Transition

if TYPE_CHECKING:
    from random import Random


class BreakerState(StrEnum):
    """Where a breaker stands. The values are stable labels."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to make one attempt. Hand it back with the outcome, once.

    Attributes:
        generation: the state period in which it was given.
        trial: the number of the trial it is; 0 outside half-open.
    """

    generation: int
    trial: int = 0


class Breaker:
    """Judges one dependency. See the module.

    Args:
        policy: window, ratio, times and trials.
        random: source of the jitter of the open time.
        longest: seconds within which every attempt ends; no trial counts as lost before.
    """

    __slots__ = (
        "_closed_permit",
        "_failures",
        "_generation",
        "_lease",
        "_open_until",
        "_outcomes",
        "_passed",
        "_policy",
        "_random",
        "_trial_number",
        "_trials",
        "counts",
        "state",
        "transitions",
    )

    KEPT = 32
    """Transitions that are remembered."""
    MOST_LOST = 8
    """Lost trials that are remembered, for each place: their late results are still believed."""

    def __init__(self, policy: BreakerPolicy, random: Random, longest: float = 0.0) -> None:
        self.state = BreakerState.CLOSED
        self.transitions: deque[Transition] = deque(maxlen=self.KEPT)
        self.counts: dict[tuple[str, str], int] = {}
        self._policy = policy
        self._lease = max(policy.trial_lease, longest)
        self._random = random
        self._generation = 0
        self._closed_permit = Permit(0)
        self._outcomes: deque[bool] = deque(maxlen=policy.window)
        self._failures = 0
        self._open_until = 0.0
        self._trials: dict[int, float] = {}
        self._trial_number = 0
        self._passed = 0

    def ask(self, now: float) -> Permit | None:
        """Return a permit for one attempt; None if the circuit is open or enough trials are under way."""
        if self.state is BreakerState.CLOSED:
            return self._closed_permit
        if self.state is BreakerState.OPEN:
            if now < self._open_until:
                return None
            self._change(now, BreakerState.HALF_OPEN)
        return self._ask_half_open(now)

    def _ask_half_open(self, now: float) -> Permit | None:
        trials, most = self._trials, self._policy.trials
        if not self._has_place(now):
            return None
        if len(trials) >= self.MOST_LOST * most:
            del trials[next(iter(trials))]
        self._trial_number += 1
        trials[self._trial_number] = now + self._lease
        return Permit(self._generation, self._trial_number)

    def _has_place(self, now: float) -> bool:
        # A trial whose lease ran out is lost: whoever holds it may never tell.
        under_way = sum(lease > now for lease in self._trials.values())
        return self._passed + under_way < self._policy.trials

    def would_allow(self, at: float) -> bool:
        """Return whether an attempt at an instant has a chance, as far as is known now. Changes nothing."""
        return self.state is not BreakerState.OPEN or at >= self._open_until

    def retry_in(self, now: float) -> float:
        """Return seconds until the next attempt has a chance; 0 unless the circuit is open."""
        return max(0.0, self._open_until - now) if self.state is BreakerState.OPEN else 0.0

    def closed_for(self, now: float) -> float | None:
        """Return the seconds for which no attempt will pass, as far as is known; None if one would pass now.

        0: as many trials are under way as may be, and nobody knows how long they take. Changes nothing.
        """
        if self.state is BreakerState.OPEN:
            return self.retry_in(now) or None
        if self.state is BreakerState.HALF_OPEN and not self._has_place(now):
            return 0.0
        return None

    def record(self, now: float, permit: Permit, *, failed: bool | None) -> None:
        """Take the outcome of a permitted attempt. A trial that is told of twice counts once.

        The circuit opens only at a failure: a success that completes the minimum of outcomes does not open it.

        Args:
            now: the instant.
            permit: what `ask` gave.
            failed: whether the dependency failed; None if the attempt says nothing about it (the caller cancelled,
                we refused it ourselves, the caller's budget was too small).
        """
        if permit.generation != self._generation:
            return
        if permit.trial:
            self._record_trial(now, permit, failed)
        elif failed is not None:
            self._record_closed(now, failed)

    def _record_closed(self, now: float, failed: bool) -> None:
        outcomes = self._outcomes
        if len(outcomes) == outcomes.maxlen:
            self._failures -= outcomes[0]
        outcomes.append(failed)
        self._failures += failed
        seen = len(outcomes)
        enough = seen >= self._policy.minimum_calls
        if failed and enough and self._failures / seen >= self._policy.failure_ratio:
            self._change(now, BreakerState.OPEN)

    def _record_trial(self, now: float, permit: Permit, failed: bool | None) -> None:
        # The place of a lost trial has been given to another one; what its holder saw is still true.
        if self._trials.pop(permit.trial, None) is None:
            return
        if failed:
            self._change(now, BreakerState.OPEN)
        elif failed is not None:
            self._passed += 1
            if self._passed >= self._policy.trials:
                self._change(now, BreakerState.CLOSED)

    def _change(self, now: float, after: BreakerState) -> None:
        self.transitions.append(Transition(now, self.state.value, after.value))
        key = (self.state.value, after.value)
        self.counts[key] = self.counts.get(key, 0) + 1
        self.state = after
        self._generation += 1
        self._closed_permit = Permit(self._generation)
        self._outcomes.clear()
        self._failures = 0
        self._trials.clear()
        self._passed = 0
        if after is BreakerState.OPEN:
            jitter = self._policy.open_jitter * self._random.random()
            self._open_until = now + self._policy.open_for * (1.0 + jitter)
