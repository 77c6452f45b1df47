"""How long a circuit stays open, and how traffic comes back after it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from resilient_mw.calls.breaker_policy import BreakerPolicy

if TYPE_CHECKING:
    from random import Random

LEAST_SHARE = 0.1
"""The share of attempts that pass when a ramp begins."""


class OpenTime:
    """The open time, which grows each time the circuit opens again.

    Args:
        policy: where it begins, its factor, its cap and its jitter.
        random: source of the jitter.
    """

    __slots__ = ("_closed_at", "_last", "_policy", "_random", "_times")

    def __init__(self, policy: BreakerPolicy, random: Random) -> None:
        self._policy = policy
        self._random = random
        self.reset()

    def reset(self) -> None:
        """Begin at `open_for` again."""
        self._times = 0
        self._last = 0.0
        self._closed_at = 0.0

    def closed(self, now: float) -> None:
        """The circuit has closed."""
        self._closed_at = now

    def next(self, now: float, *, again: bool) -> float:
        """Return for how long it is open now.

        Args:
            now: the instant.
            again: whether a trial failed. Else it was closed, and if it was so for at least as long as it had been
                open before, the dependency was well in between.
        """
        policy = self._policy
        if not again and now - self._closed_at >= self._last:
            self._times = 0
        seconds = policy.open_for
        if policy.open_factor > 1.0:
            seconds = min(seconds * policy.open_factor**self._times, policy.open_cap)
            self._times += seconds < policy.open_cap
        self._last = seconds * (1.0 + policy.open_jitter * self._random.random())
        return self._last


class Ramp:
    """Lets a growing share of attempts through.

    Args:
        seconds: until all pass; 0: at once.
    """

    __slots__ = ("_credit", "_from", "_seconds", "_until")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._credit = 0.0
        self.stop()

    def begin(self, now: float) -> None:
        """Begin with the least share."""
        self._from, self._until = now, now + self._seconds
        self._credit = 0.0

    def stop(self) -> None:
        """Let all pass."""
        self._from = self._until = -math.inf

    def lasts(self, now: float) -> bool:
        """Return whether it is not over yet."""
        return now < self._until

    def lets(self, now: float) -> bool:
        """Return whether one more attempt passes.

        Evenly spread, without luck: each attempt brings the share that may pass, and one whole lets one through.
        """
        if now >= self._until:
            return True
        self._credit += max(LEAST_SHARE, (now - self._from) / self._seconds)
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True
