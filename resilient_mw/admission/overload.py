"""The overload level: one number from 0 to 1 out of all signals, and a state that does not flap.

The level follows the largest of the signals' levels, and no sum or mean. The signals are not independent: full slots
make a queue, and a queue makes old waiters, so a sum would count one trouble three times; a mean would let nine healthy
signals hide the one that stops the service. The largest one leaves every band to be tuned alone, never falls when a
reading gets worse, and always has a name: the signal to look at.

It follows exponentially, with one time constant up and a longer one down. A reading holds until the next one of its
signal, for as long as it is not stale, so what counts is for how long something was so and not how often it was told.

What is not known has no say: a missing reading is neither 0 nor 1, and changes nothing. When a signal has not been
told for `stale_after` seconds, its last reading is forgotten, and the others decide alone. When nothing is known any
more the level falls: to refuse work needs a reason that still holds.

Pure: it takes the time as an argument. Not thread-safe: the owner locks.
"""

from __future__ import annotations

import math
from collections import deque

from resilient_mw.admission.overload_policy import OverloadPolicy, OverloadState, Signal
from resilient_mw.core.snapshot import OverloadSnapshot, Transition


class OverloadLevel:
    """Measures the overload of one service. See the module.

    The state changes at the call that notices: ask or report a few times a second.

    Args:
        policy: bands, time constants and thresholds.
        now: the instant of the start, when the level is 0.

    Attributes:
        level: 0 to 1, as of the last call.
        state: what the level means, as of the last call.
        since: the instant of the last change of the state.
        transitions: the last changes of the state, oldest first.
        counts: all changes, by (before, after).
    """

    __slots__ = (
        "_at",
        "_bands",
        "_known",
        "_policy",
        "_stale_at",
        "_target",
        "counts",
        "level",
        "since",
        "state",
        "transitions",
    )

    KEPT = 32
    """Transitions that are remembered."""

    def __init__(self, policy: OverloadPolicy, now: float) -> None:
        self.level = 0.0
        self.state = OverloadState.NORMAL
        self.since = now
        self.transitions: deque[Transition] = deque(maxlen=self.KEPT)
        self.counts: dict[tuple[str, str], int] = {}
        self._policy = policy
        self._bands = policy.bands
        self._known: dict[tuple[Signal, str], tuple[float, float]] = {}  # level, and when it is stale
        self._stale_at = math.inf  # no reading is stale before
        self._target = 0.0
        self._at = now

    def report(self, now: float, signal: Signal, reading: float | None, source: str = "") -> None:
        """Take a reading.

        Args:
            now: the instant.
            signal: what was read.
            reading: in the unit that `OverloadPolicy` names; None or NaN if it is unknown, which changes nothing.
            source: whose reading it is, where a signal has several (pools, dependencies, event loops): each is
                remembered, the worst one counts. To be a name from the code: each one takes memory until it is stale.
        """
        self.advance(now)
        band = self._bands.get(signal)
        if band is None or reading is None or math.isnan(reading):
            return
        until = self._at + self._policy.stale_after
        self._known[signal, source] = (band.level(reading), until)
        self._stale_at = min(self._stale_at, until)
        self._aim()

    def advance(self, now: float) -> OverloadState:
        """Let time pass and return the state. An instant before the last call counts as that one."""
        if now >= self._stale_at:
            self._forget(now)
        self._follow(now)
        return self.state

    def signals(self) -> dict[Signal, float]:
        """Return the levels of the signals that are known, the worst first: the reason for the level."""
        worst: dict[Signal, float] = {}
        for (signal, _), (level, _) in self._known.items():
            worst[signal] = max(level, worst.get(signal, 0.0))
        return dict(sorted(worst.items(), key=lambda item: (-item[1], item[0])))

    def worst(self) -> Signal | None:
        """Return the signal with the highest level; None if all that is known is well."""
        for signal, level in self.signals().items():
            return signal if level > 0.0 else None
        return None

    def snapshot(self) -> OverloadSnapshot:
        """Return the figures as of the last call."""
        return OverloadSnapshot(
            self.level,
            self.state.value,
            {signal.value: level for signal, level in self.signals().items()},
            dict(self.counts),
            tuple(self.transitions),
        )

    def _forget(self, now: float) -> None:
        """Forget each stale reading at its instant, so that it does not matter when somebody asks."""
        for until, key in sorted((until, key) for key, (_, until) in self._known.items() if until <= now):
            self._follow(until)
            del self._known[key]
            self._aim()
        self._stale_at = min((until for _, until in self._known.values()), default=math.inf)

    def _aim(self) -> None:
        self._target = max((level for level, _ in self._known.values()), default=0.0)

    def _follow(self, now: float) -> None:
        """Follow the target, which has stood still since the last call, and settle the state."""
        passed, target, level = now - self._at, self._target, self.level
        if passed <= 0.0:
            return
        self._at = now
        if level != target:
            constant = self._policy.rise if target > level else self._policy.fall
            followed = target + (level - target) * math.exp(-passed / constant)
            # Rounding must not carry it past where it comes from or goes to.
            self.level = min(max(followed, min(level, target)), max(level, target))
        self._settle()

    def _settle(self) -> None:
        policy, level, state = self._policy, self.level, self.state
        if level >= policy.enter_overloaded:
            after = OverloadState.OVERLOADED
        elif level >= policy.enter_elevated and state is OverloadState.NORMAL:
            after = OverloadState.ELEVATED
        elif self._at - self.since < policy.dwell:
            return
        elif level < policy.leave_elevated:
            after = OverloadState.NORMAL
        elif level < policy.leave_overloaded and state is OverloadState.OVERLOADED:
            after = OverloadState.ELEVATED
        else:
            return
        if after is not state:
            self.transitions.append(Transition(self._at, state.value, after.value))
            key = (state.value, after.value)
            self.counts[key] = self.counts.get(key, 0) + 1
            self.state = after
            self.since = self._at
