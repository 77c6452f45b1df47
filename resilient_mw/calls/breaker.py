"""The circuit breaker: stops asking a dependency that fails or hangs, and tries again carefully.

Closed: every attempt passes, recent outcomes are counted. Open: every attempt is refused at once. Half-open: a few
trials pass; all succeed: closed; one fails: open again. After closing it may let the traffic back bit by bit (`ramp`).

It judges attempts, not calls: a call that fails twice and then succeeds has told of two failures. A retry asks like
every other attempt, so the retries of a call end when the circuit opens.

A permit is a number that belongs to one state period, so a late result of an older state changes nothing. A trial holds
its place by a lease, and gives it back whatever its outcome was, so neither a lost one nor one without a verdict can
keep the breaker half-open for ever. Where slowness counts, attempts under way are known by their start, and leave that
list the moment they are counted as slow: one that never ends is remembered by nobody.

Pure and not thread-safe: the owner locks around every call but one short way. Before `quiet_until` the circuit is
closed and nothing is due, so an attempt may begin without `ask` and succeed without `record`: see `quiet_until`.
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING

from resilient_mw.calls.breaker_pace import OpenTime, Ramp
from resilient_mw.calls.breaker_policy import BreakerPolicy
from resilient_mw.calls.breaker_recent import Recent
from resilient_mw.calls.breaker_trials import Trials
from resilient_mw.core.circuit_snapshot import CircuitFigures
from resilient_mw.core.snapshot import Transition

if TYPE_CHECKING:
    from random import Random


class BreakerState(StrEnum):
    """Where a breaker stands. The values are stable labels."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


CLOSED, OPEN, HALF_OPEN = BreakerState
"""By names of their own, as the stages of a call are."""


Permit = int
"""Leave to make one attempt. Hand it back with the outcome, once. Never 0."""
SHADOW: Permit = -1
"""The permit of an attempt that would have been refused."""


class Breaker:
    """Judges one dependency. See the module.

    Args:
        policy: window, ratios, times and trials.
        random: source of the jitter of the open time.
        longest: seconds within which every attempt ends; no trial counts as lost before.

    Attributes:
        state: where it stands.
        held: whether somebody opened or closed it by hand; it stays so until `reset`.
        transitions: the last changes; `untold`: those that no listener was told of yet.
        counts: changes by (before, after).
        would_refuse: attempts that passed because it is in shadow mode.
        ramped: attempts that were refused during a ramp.
        failed_listeners: errors of its listeners, counted by who tells them.
        quiet_until: before this instant an attempt may take the short way, which needs no lock because each step of it
            is one call into C: keep `recent.running` and `closed_permit`, draw a number, put `running[number] = now`;
            at the end, if `recent.running` is still the same object and it is still before `quiet_until`, take the
            number out and call `recent.succeeded()`. A number that is gone, and every other outcome, goes to `record`.
            Where slowness does not count there is no number: `closed_permit` is the permit, and nothing is put anywhere.
        recent: what is counted while it is closed.
        closed_permit: the permit of every attempt of this period where slowness does not count.
    """

    __slots__ = (
        "_open_time", "_open_until", "_period", "_policy", "_ramp", "_slow_after", "_trials", "closed_permit", "counts",
        "failed_listeners",
        "held", "quiet_until", "ramped", "recent", "state", "transitions", "untold", "would_refuse",
    )  # fmt: skip

    KEPT = 32
    """Transitions that are remembered."""

    def __init__(self, policy: BreakerPolicy, random: Random, longest: float = 0.0) -> None:
        self.transitions: deque[Transition] = deque(maxlen=self.KEPT)
        self.untold: deque[Transition] = deque(maxlen=self.KEPT)
        self._policy = policy
        self._slow_after = policy.slow_after
        self._trials = Trials(policy.trials, max(policy.trial_lease, longest))
        self._open_time = OpenTime(policy, random)
        self._ramp = Ramp(policy.ramp)
        self.recent = Recent(policy)
        self._period = 0
        self.anew()

    def anew(self) -> None:
        """Forget everything: closed, nothing counted, nobody under way."""
        self.state = CLOSED
        self.held = False
        self.transitions.clear()
        self.untold.clear()
        self.counts: dict[tuple[str, str], int] = {}
        self.would_refuse = self.ramped = self.failed_listeners = 0
        self._begin_period()
        self.recent.slow = self.recent.short = 0
        self._open_until = 0.0
        self._open_time.reset()
        self._ramp.stop()

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, now: float) -> Permit | None:
        """Return a permit for one attempt; None if it may not be made."""
        if now < self.quiet_until:  # The short way: closed, and nothing is due.
            if self._slow_after is None:
                return self.closed_permit
            number = self.recent.draw()
            self.recent.running[number] = now
            return number
        self.notice(now)
        if self._lets(now):
            return self._admit(now)
        if self._policy.shadow:
            self.would_refuse += 1
            return SHADOW
        return None

    def _admit(self, now: float) -> Permit:
        if self._slow_after is None and self.state is CLOSED:
            return self.closed_permit
        number = self.recent.draw()
        if self.state is CLOSED:
            self.recent.running[number] = now
        else:
            self._trials.begin(number, now)
        return number

    def _lets(self, now: float) -> bool:
        if self.state is CLOSED:
            if self._ramp.lets(now):
                return True
            self.ramped += 1
            return False
        if self.state is OPEN:
            if now < self._open_until:
                return False
            self._change(now, HALF_OPEN)
        return self._trials.has_place(now)

    def would_allow(self, at: float) -> bool:
        """Return whether an attempt at an instant has a chance, as far as is known now. Changes nothing."""
        return self.state is not OPEN or at >= self._open_until or self._policy.shadow

    def retry_in(self, now: float) -> float:
        """Return seconds until the next attempt has a chance; 0 unless the circuit is open, or if nobody knows."""
        if self.state is not OPEN or self._policy.shadow or self._open_until == math.inf:
            return 0.0
        return max(0.0, self._open_until - now)

    def closed_for(self, now: float) -> float | None:
        """Return the seconds for which no attempt will pass, as far as is known; None if one would pass now.

        0: as many trials are under way as may be, or it is held open, and nobody knows how long that takes.
        """
        self.notice(now)
        if self._policy.shadow:
            return None
        if self.state is OPEN:
            return 0.0 if self._open_until == math.inf else self.retry_in(now) or None
        if self.state is HALF_OPEN and not self._trials.has_place(now):
            return 0.0
        return None

    # -- telling -------------------------------------------------------------------------------------------------------

    def record(self, now: float, permit: Permit, *, failed: bool | None) -> None:
        """Take the outcome of a permitted attempt. One that is told of twice counts once where it has a number.

        The circuit opens only at a failure or a slow attempt: a success that completes the minimum does not open it.

        Args:
            now: the instant.
            permit: what `ask` gave.
            failed: whether the dependency failed; None if the attempt says nothing about it (the caller cancelled,
                we refused it ourselves, the caller's budget was too small).
        """
        if now >= self.quiet_until:
            self.notice(now)
        if self.state is HALF_OPEN:
            self._record_trial(now, permit, failed)
        elif self.state is CLOSED:
            recent = self.recent
            if permit == self.closed_permit or recent.running.pop(permit, None) is not None:
                # One that is slow has been noticed, so this is not.
                recent.ended(failed)
            elif not recent.ended_slow(permit, failed):
                return
            if failed and not self.held and recent.too_many_failures():
                self._change(now, OPEN)

    def _record_trial(self, now: float, permit: Permit, failed: bool | None) -> None:
        # The place of a lost trial has been given to another one; what its holder saw is still true.
        if not self._trials.end(permit):
            return
        if failed:
            self._change(now, OPEN)
        elif failed is not None and self._trials.succeeded():
            self._change(now, CLOSED)

    def notice(self, now: float) -> None:
        """Take note of what time alone has done: attempts that have become slow, outcomes that have become old."""
        recent = self.recent
        if self.state is CLOSED:
            recent.advance(now)
            slow_at = math.inf if self._slow_after is None else recent.slow_at(now)
            while slow_at is None:
                if not self.held and recent.too_many_slow():
                    self._change(now, OPEN)
                    return
                slow_at = recent.slow_at(now)
            if not self._ramp.lasts(now):
                self.quiet_until = min(recent.ends_at, slow_at)
        elif self._slow_after is not None and self._trials.oldest + self._slow_after <= now:
            recent.slow += 1
            self._change(now, OPEN)

    # -- changing ------------------------------------------------------------------------------------------------------

    def open(self, now: float) -> None:
        """Open it by hand: nothing passes until `close` or `reset`."""
        self.held = True
        if self.state is not OPEN:
            self._change(now, OPEN)
        self._open_until = math.inf

    def close(self, now: float) -> None:
        """Close it by hand: everything passes and is counted, and nothing opens it until `open` or `reset`."""
        self.reset(now)
        self.held = True

    def reset(self, now: float) -> None:
        """Close it and judge anew from here: no outcome, no ramp, no open time that has grown, no hand on it."""
        self.held = False
        if self.state is not CLOSED:
            self._change(now, CLOSED)
        else:
            self._begin_period()
        self._open_time.reset()
        self._ramp.stop()

    def begin_like(self, other: Breaker) -> None:
        """Begin held by hand, if another one is, and tell of its changes where that one does."""
        self.untold = other.untold
        self.held = other.held
        if other.held and other.state is BreakerState.OPEN:
            self.state, self._open_until = BreakerState.OPEN, math.inf

    def _change(self, now: float, after: BreakerState) -> None:
        before = self.state
        transition = Transition(now, before.value, after.value)
        self.transitions.append(transition)
        if self._policy.listeners:
            self.untold.append(transition)
        key = (before.value, after.value)
        self.counts[key] = self.counts.get(key, 0) + 1
        self.state = after
        self._begin_period()
        if after is OPEN:
            self._open_until = now + self._open_time.next(now, again=before is HALF_OPEN)
        elif after is CLOSED:
            self._open_time.closed(now)
            self._ramp.begin(now)

    def _begin_period(self) -> None:
        self.quiet_until = -math.inf
        self._period += 1
        self.closed_permit = SHADOW - self._period
        self.recent.clear()
        self._trials.clear()

    def figures(self) -> CircuitFigures:
        """Return what it has counted."""
        return CircuitFigures(
            held=self.held,
            slow=self.recent.slow,
            ramped=self.ramped,
            would_refuse=self.would_refuse,
            failed_listeners=self.failed_listeners,
        )

    @property
    def _outcomes(self) -> list[bool]:
        return self.recent.outcomes()
