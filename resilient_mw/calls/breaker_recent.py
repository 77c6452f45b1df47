"""What a closed circuit counts: recent outcomes, failures in a row, and attempts under way that may become slow."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

from resilient_mw.calls.breaker_windows import CountWindow, TimeWindow

if TYPE_CHECKING:
    from resilient_mw.calls.breaker_policy import BreakerPolicy


class Recent:
    """The account of one circuit. Successes of the short way (see `Breaker`) are counted late, before any failure.

    Args:
        policy: the window and what is too much in it.

    Attributes:
        running: the attempts under way that are not slow yet, by number: their start. A new object for each period of
            the circuit, so that who took the short way in an older one holds that one's.
        numbered: whether attempts have numbers of their own: slowness counts.
        draw: gives the next number of an attempt.
        succeeded: counts a success of the short way.
        slow: attempts that were counted as slow; `short`: successes of the short way.
    """

    __slots__ = (
        "_counted",
        "_policy",
        "_slow_after",
        "_streak",
        "_synced",
        "_window",
        "draw",
        "numbered",
        "running",
        "short",
        "slow",
        "succeeded",
    )

    MOST_SLOW = 1000
    """Attempts counted as slow whose failure is still believed afterwards."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self.numbered = policy.slow_after is not None
        self._slow_after = math.inf if policy.slow_after is None else policy.slow_after
        self._window: CountWindow | TimeWindow = (
            CountWindow(policy.window) if policy.window_seconds is None else TimeWindow(policy.window_seconds)
        )
        self.draw = count(1).__next__
        self.succeeded = count().__next__
        self._synced = 0
        self.slow = self.short = 0
        self.clear()

    @property
    def ends_at(self) -> float:
        """The instant from which outcomes are too old."""
        return self._window.ends_at

    def clear(self) -> None:
        """Forget the outcomes, and who is under way."""
        self.running: dict[int, float] = {}
        self._counted: dict[int, int] = {}
        self._streak = 0
        self._sync()
        self._window.clear()

    def advance(self, now: float) -> None:
        """Time passes."""
        self._sync()
        self._window.advance(now)

    def ended(self, failed: bool | None) -> None:
        """An attempt has ended that was not slow."""
        if failed:
            self._sync()
            self._streak += 1
            self._window.bad(failed=True, slow=False)
        elif failed is not None:
            self._streak = 0
            self._window.good()

    def ended_slow(self, number: int, failed: bool | None) -> bool:
        """An attempt has ended that had been counted as slow; False if it is none of these."""
        place = self._counted.pop(number, None)
        if place is None:
            return False
        if failed:
            self._sync()
            self._streak += 1
            self._window.mark_failed(place)
        elif failed is not None:
            self._streak = 0
        return True

    def slow_at(self, now: float) -> float | None:
        """Return the instant before which no attempt can become slow; None: one has, and was counted."""
        slow_after = self._slow_after
        first = self._first()
        if first is None:
            return now + slow_after
        number, start = first
        if start + slow_after > now:
            return start + slow_after
        if self.running.pop(number, None) is not None:
            self.slow += 1
            self._remember(number, self._window.bad(failed=False, slow=True))
        return None

    def has_slow(self, now: float) -> bool:
        """Return whether an attempt has become slow that was not counted yet."""
        first = self._first()
        return first is not None and first[1] + self._slow_after <= now

    def _first(self) -> tuple[int, float] | None:
        while True:
            try:
                return next(iter(self.running.items()), None)
            except RuntimeError:  # It was changed on the short way in between.
                continue

    def _remember(self, number: int, place: int) -> None:
        counted = self._counted
        counted[number] = place
        while len(counted) > self.MOST_SLOW or next(iter(counted.values())) < self._window.oldest:
            del counted[next(iter(counted))]

    def too_many_failures(self) -> bool:
        """Return whether the failures in a row, or their share, are more than may be."""
        policy, window = self._policy, self._window
        if policy.consecutive_failures is not None and self._streak >= policy.consecutive_failures:
            return True
        return window.seen >= policy.minimum_calls and window.failures / window.seen >= policy.failure_ratio

    def too_many_slow(self) -> bool:
        """Return whether the share of slow attempts is more than may be."""
        policy, window = self._policy, self._window
        return window.seen >= policy.minimum_calls and window.slow / window.seen >= policy.slow_ratio

    def outcomes(self) -> list[bool]:
        """Return for each outcome in the window whether it failed."""
        return self._window.outcomes()

    def _sync(self) -> None:
        """Count the successes of the short way."""
        value = self.succeeded()
        new = value - self._synced
        self._synced = value + 1
        if new:
            self._streak = 0
            self.short += new
            self._window.good(new)
