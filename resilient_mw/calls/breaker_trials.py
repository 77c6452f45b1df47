"""The trials of a half-open circuit: a few places, each held by a lease."""

from __future__ import annotations

import math


class Trials:
    """Who tries whether a dependency is well again.

    Args:
        most: successes that close the circuit, and trials under way at once.
        lease: seconds after which a trial counts as lost, and its place is free.
    """

    __slots__ = ("_begun", "_lease", "_most", "_passed")

    MOST_LOST = 8
    """Lost trials that are remembered, for each place: their late results are still believed."""

    def __init__(self, most: int, lease: float) -> None:
        self._most = most
        self._lease = lease
        self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._begun: dict[int, float] = {}
        self._passed = 0

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def oldest(self) -> float:
        """When the first one began of which nobody has told; inf: there is none."""
        return next(iter(self._begun.values()), math.inf)

    def has_place(self, now: float) -> bool:
        """Return whether one more may begin: no more than could still matter."""
        # A trial whose lease ran out is lost: whoever holds it may never tell.
        under_way = sum(start + self._lease > now for start in self._begun.values())
        return self._passed + under_way < self._most

    def begin(self, number: int, now: float) -> None:
        """Take a place."""
        if len(self._begun) >= self.MOST_LOST * self._most:
            del self._begun[next(iter(self._begun))]
        self._begun[number] = now

    def end(self, number: int) -> bool:
        """Give its place back; False if it is none of these, or was told of before."""
        return self._begun.pop(number, None) is not None

    def succeeded(self) -> bool:
        """Count a success; return whether there are enough."""
        self._passed += 1
        return self._passed >= self._most
