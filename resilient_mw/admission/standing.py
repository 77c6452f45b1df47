"""Whether a queue stands: whether its waits stay long, rather than peak now and then."""

from __future__ import annotations

import math

INTERVAL = 0.1
"""Seconds for which waits have to stay long."""
LEAST_TARGET = 0.005
"""Seconds: a wait below this is nobody's trouble."""
RUNS = 2.0
"""Typical run times that a wait may last: a queue of one service time's worth hardly ever stands."""


class StandingQueue:
    """Looks at the oldest waiter whenever one is served (after CoDel, Nichols and Jacobson 2012).

    The age of the oldest is what the wait would be if the oldest were served, so it means the same in both orders. The
    queue stands once that age has not been below the target for 100 ms, and until it is.

    Attributes:
        standing: whether the queue stands.
    """

    __slots__ = ("_looked_at", "_since", "standing")

    def __init__(self) -> None:
        self.standing = False
        self._since = math.inf
        self._looked_at = -math.inf

    def look(self, now: float, oldest_arrived_at: float, typical_run: float) -> None:
        """Take notice of the oldest waiter at an instant at which one is served.

        Args:
            now: the instant.
            oldest_arrived_at: the instant at which the oldest waiter came.
            typical_run: seconds; 0 while unknown, and then no queue stands.
        """
        target = max(LEAST_TARGET, RUNS * typical_run)
        if not typical_run or now - oldest_arrived_at < target:
            self.standing = False
            self._since = math.inf
        else:
            if self._since == math.inf:
                # Nobody was served since the last look, so this one was the oldest all the time.
                self._since = max(self._looked_at, oldest_arrived_at + target)
            self.standing = now - self._since >= INTERVAL
        self._looked_at = now

    def gone(self) -> None:
        """Take notice that nobody waits any more."""
        self.standing = False
        self._since = math.inf
