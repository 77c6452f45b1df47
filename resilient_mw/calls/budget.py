"""The retry budget: retries are at most a share of the traffic, so a failing dependency is not loaded by them.

Whenever a retry begins, the retries begun in the 10 s up to then, itself included, are at most `ratio` times the calls
begun in them plus `per_second` times 10. Nothing is saved up: a quiet hour gives no credit.

A retry is reserved before its back-off, so that nobody waits in vain. One that begins later than it was reserved for,
because its timer was late, is counted where it really began; it is not refused then.

A retry has a price, in retries: one after a timeout counts twice, because what timed out has cost the dependency its whole
time and will often do so again, while a quick failure costs next to nothing.

Pure and not thread-safe: the owner of the dependency locks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

WINDOW = 10.0
"""Seconds."""
TIDY = 1.0
"""Seconds between two times that calls older than the window are forgotten: 8 bytes a call until then."""
PRICE = 1
"""What a retry costs."""
TIMEOUT_PRICE = 2
"""What a retry after a timeout costs."""


class RetryBudget:
    """Counts calls and retries in a sliding window.

    Args:
        ratio: retries per call.
        per_second: retries per second that are always allowed, for dependencies with little traffic.
    """

    __slots__ = ("_calls", "_per_second", "_ratio", "_retries", "_tidy_at")

    def __init__(self, ratio: float, per_second: float) -> None:
        self._ratio = ratio
        self._per_second = per_second
        self._calls = array("d")
        self._retries: list[float] = []
        self._tidy_at = 0.0

    def call(self, now: float) -> None:
        """Count a call whose first attempt begins."""
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY
            del self._calls[: bisect_right(self._calls, now - WINDOW)]
        self._calls.append(now)

    def calls(self, begun: Sequence[float]) -> None:
        """Count calls whose first attempts began, the earliest first."""
        self.call(begun[0])
        self._calls.extend(begun[1:])

    def reserve(self, now: float, begin: float, price: int = PRICE) -> bool:
        """Reserve a retry that will begin at `begin`, not before `now`; False if the budget does not allow it.

        Every window that ends at a retry not yet begun and would hold this one is looked at.
        """
        retries = self._retries
        del retries[: bisect_right(retries, now - WINDOW)]
        place = bisect_right(retries, begin)
        last = bisect_left(retries, begin + WINDOW)
        if not all(self._has_room(end, price) for end in (begin, *retries[place:last])):
            return False
        retries[place:place] = [begin] * price
        return True

    def begin(self, reserved: float, now: float, price: int = PRICE) -> None:
        """Note that a reserved retry has begun."""
        if now != reserved:
            self.give_back(reserved, price)
            place = bisect_right(self._retries, now)
            self._retries[place:place] = [now] * price

    def give_back(self, reserved: float, price: int = PRICE) -> None:
        """Take back the reservation of a retry that will not be made."""
        place = bisect_left(self._retries, reserved)
        end = bisect_right(self._retries, reserved, place, min(place + price, len(self._retries)))
        del self._retries[place:end]

    def _has_room(self, end: float, price: int) -> bool:
        """Return whether the window that ends at an instant may hold one more retry of a price."""
        start = end - WINDOW
        retries = bisect_right(self._retries, end) - bisect_right(self._retries, start)
        calls = bisect_right(self._calls, end) - bisect_right(self._calls, start)
        return retries + price <= self._ratio * calls + self._per_second * WINDOW
