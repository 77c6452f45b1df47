"""How far an event loop is behind its timers."""

from __future__ import annotations

from collections import deque

WINDOW = 0.2
"""Seconds that a reading looks back: a few ticks."""


class LoopLag:
    """Tells the lag of one event loop from a timer that somebody else keeps there.

    The reading is the smallest lag of the last `WINDOW` seconds. One long callback makes one timer late; only a loop
    with more to do than it can do makes every timer late (the minimum over an interval, as CoDel, RFC 8289, takes it to
    tell a standing queue from a burst). All methods belong to the loop's thread.
    """

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def sample(self, expected_at: float, now: float) -> None:
        """Take the instant that a timer was set for and the one at which it ran. Timers that ran early have no lag."""
        samples = self._samples
        while samples and samples[0][0] <= now - WINDOW:
            samples.popleft()
        samples.append((now, max(0.0, now - expected_at)))

    def reading(self, now: float) -> float | None:
        """Return seconds; None if no timer ran in the last `WINDOW` seconds, so that nothing is known."""
        lags = [lag for at, lag in self._samples if at > now - WINDOW]
        return min(lags, default=None)
