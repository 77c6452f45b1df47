"""The start-up ramp: a limit that grows from a small part to the whole while a service warms up."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resilient_mw.core.priority import PriorityClass

FIRST_SHARE = 0.1
"""The part of the limit that a ramp begins with."""


class Ramp:
    """A limit that grows in equal steps of one slot. Pure: it takes the time as an argument.

    It begins with the first request, because a service that nobody uses does not warm up, with a tenth of the slots; at
    least with one more than all classes have reserved, so that no class is shut out.

    Args:
        seconds: from the first request to the whole limit; above 0.
        full: the whole limit.
        classes: the priority classes.

    Attributes:
        first: the limit that it begins with.
    """

    __slots__ = ("_began", "_full", "_grown", "_seconds", "first")

    def __init__(self, seconds: float, full: int, classes: Sequence[PriorityClass]) -> None:
        self._seconds = seconds
        self._began: float | None = None
        self.aim(full, classes)

    def aim(self, full: int, classes: Sequence[PriorityClass]) -> None:
        """Grow to another limit; the time stays the same."""
        reserved = sum(each.reserved for each in classes)
        self.first = min(full, max(1 + reserved, round(full * FIRST_SHARE)))
        self._full = full
        self._grown = self.first

    @property
    def begun(self) -> bool:
        """Whether there was a first request."""
        return self._began is not None

    def limit(self, now: float) -> tuple[int, bool]:
        """Return the limit at an instant, and whether it is the whole one. The first call begins the ramp."""
        if self._began is None:
            self._began = now
        # Instants are compared, and not parts of the way: at the one that was told it has grown, whatever is rounded. A
        # thread that read its clock earlier takes nothing back.
        while now >= self.next_at():
            if self._grown + 1 >= self._full:
                return self._full, True
            self._grown += 1
        return self._grown, False

    def next_at(self) -> float:
        """Return the next instant at which the limit will have grown; never, before it has begun."""
        if self._began is None:
            return math.inf
        left = self._full - self._grown - 1
        return self._began + self._seconds * (1.0 - max(0, left) / max(1, self._full - self.first))
