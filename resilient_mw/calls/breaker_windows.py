"""What a breaker looks at: the last outcomes by number, or those of the last seconds. Every verb takes constant time.

Each outcome has a place, a number that only grows. An attempt is counted as slow while it still runs; when it fails at
last, the outcome at its place is marked, and nothing is counted twice.
"""

from __future__ import annotations

import math

FAILED, SLOW = 1, 2
STEPS = 10
"""Parts of a window of time: it covers between nine and ten of them."""


class CountWindow:
    """The last outcomes.

    Args:
        size: how many.

    Attributes:
        seen, failures, slow: outcomes in the window, and those among them that failed or were slow.
        ends_at: the instant from which `advance` has something to do.
    """

    __slots__ = ("_next", "_ring", "_size", "ends_at", "failures", "seen", "slow")

    def __init__(self, size: int) -> None:
        self.ends_at = math.inf
        self._size = size
        self._next = 0
        self.clear()

    def clear(self) -> None:
        """Forget all outcomes."""
        self._ring = bytearray(self._size)
        self.seen = self.failures = self.slow = 0

    @property
    def oldest(self) -> int:
        """The first place that is still looked at."""
        return self._next - self.seen

    def advance(self, now: float) -> None:
        """Time passes: outcomes that are counted do not age."""

    def good(self, count: int = 1) -> None:
        """Add good outcomes."""
        if count >= self._size:
            self.clear()
            self.seen = self._size
            self._next += count
            return
        for _ in range(count):
            self._add(0)

    def bad(self, *, failed: bool, slow: bool) -> int:
        """Add an outcome that failed, was slow, or both; return its place."""
        self._add(FAILED * failed | SLOW * slow)
        return self._next - 1

    def mark_failed(self, place: int) -> None:
        """A slow outcome has failed as well. Nothing if it has left the window, or failed before."""
        if place >= self.oldest and not self._ring[place % self._size] & FAILED:
            self._ring[place % self._size] |= FAILED
            self.failures += 1

    def outcomes(self) -> list[bool]:
        """Return for each outcome whether it failed, the oldest first."""
        return [bool(self._ring[place % self._size] & FAILED) for place in range(self.oldest, self._next)]

    def _add(self, outcome: int) -> None:
        at = self._next % self._size
        self._next += 1
        if self.seen == self._size:
            before = self._ring[at]
            self.failures -= before & FAILED
            self.slow -= before >> 1
        else:
            self.seen += 1
        self._ring[at] = outcome
        self.failures += outcome & FAILED
        self.slow += outcome >> 1


class TimeWindow:
    """The outcomes of the last seconds, in `STEPS` parts. See `CountWindow`, which has the same verbs.

    Args:
        seconds: how long they are looked at.
    """

    __slots__ = ("_current", "_failures", "_seen", "_slow", "_width", "ends_at", "failures", "seen", "slow")

    def __init__(self, seconds: float) -> None:
        self._width = seconds / STEPS
        self._current = 0
        self.ends_at = -math.inf
        self.clear()

    def clear(self) -> None:
        """Forget all outcomes."""
        self._seen, self._failures, self._slow = [0] * STEPS, [0] * STEPS, [0] * STEPS
        self.seen = self.failures = self.slow = 0

    @property
    def oldest(self) -> int:
        """The first place that is still looked at."""
        return self._current - STEPS + 1

    def advance(self, now: float) -> None:
        """Time passes: forget what is too old. A `now` before the last one changes nothing."""
        if now < self.ends_at:
            return
        step = math.floor(now / self._width)
        if (step + 1) * self._width <= now:  # the division was rounded down across the boundary
            step += 1
        if step - self._current >= STEPS:
            self.clear()
        else:
            for each in range(self._current + 1, step + 1):
                self._forget(each % STEPS)
        self._current = step
        self.ends_at = (step + 1) * self._width

    def good(self, count: int = 1) -> None:
        """Add good outcomes."""
        self._seen[self._current % STEPS] += count
        self.seen += count

    def bad(self, *, failed: bool, slow: bool) -> int:
        """Add an outcome that failed, was slow, or both; return its place."""
        self.good()
        self._failures[self._current % STEPS] += failed
        self.failures += failed
        self._slow[self._current % STEPS] += slow
        self.slow += slow
        return self._current

    def mark_failed(self, place: int) -> None:
        """A slow outcome has failed as well. Nothing if it has left the window. Each outcome is marked once."""
        if place >= self.oldest:
            self._failures[place % STEPS] += 1
            self.failures += 1

    def outcomes(self) -> list[bool]:
        """Return for each outcome whether it failed, in an order that means nothing."""
        return [True] * self.failures + [False] * (self.seen - self.failures)

    def _forget(self, at: int) -> None:
        self.seen -= self._seen[at]
        self.failures -= self._failures[at]
        self.slow -= self._slow[at]
        self._seen[at] = self._failures[at] = self._slow[at] = 0
