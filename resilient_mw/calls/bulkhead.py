"""The bulkhead: how many attempts may be under way at once, and how long another one waits for its slot.

Who waits is served in the order of arrival. A slot that comes back is handed over in the same step: the waiter owns it from
then on, whether or not it has heard of it, and gives it back if it has left meanwhile. So a slot that is granted in the
instant of a timeout or a cancellation is not lost.

Pure and not thread-safe: the owner of the dependency locks, and wakes the granted ones outside the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from resilient_mw.core.checks import require_integer, require_number


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkheadPolicy:
    """How many attempts may be under way at once, bodies included.

    By default one more is refused at once; waiting hides a slow dependency from the caller, so it is asked for.

    Attributes:
        limit: the most.
        max_wait: seconds that one more waits for a slot, within its deadline. 0: it is refused at once.
        queue: how many may wait at once; None: as many as may be under way.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    limit: int
    max_wait: float = 0.0
    queue: int | None = None

    def __post_init__(self) -> None:
        require_integer("BulkheadPolicy.limit", self.limit, low=1)
        require_number("BulkheadPolicy.max_wait", self.max_wait, low=0, high=3600)
        if self.queue is not None:
            require_integer("BulkheadPolicy.queue", self.queue, low=1)

    @property
    def places(self) -> int:
        """How many may wait at once."""
        return self.limit if self.queue is None else self.queue


class Waiter:
    """One attempt that waits for its slot.

    Attributes:
        granted: whether a slot is its own.
        left: whether it waits no longer.
        wake: called when a slot was granted, outside the lock and maybe by another thread; None: nobody listens yet, so
            whoever sets it looks at `granted` afterwards.
    """

    __slots__ = ("granted", "left", "wake")

    def __init__(self) -> None:
        self.granted = False
        self.left = False
        self.wake: Callable[[], None] | None = None


class WaitingLine:
    """Those who wait for a slot of one bulkhead, in the order of arrival.

    Args:
        policy: how many may wait, and how long.

    Attributes:
        max_wait: seconds.
        waiting: how many wait.
        woken: those that were granted a slot and have not been woken yet.
    """

    __slots__ = ("_line", "_places", "max_wait", "waiting", "woken")

    def __init__(self, policy: BulkheadPolicy) -> None:
        self.max_wait = policy.max_wait
        self.waiting = 0
        self.woken: list[Waiter] = []
        self._places = policy.places
        self._line: deque[Waiter] = deque()

    def join(self) -> Waiter | None:
        """Begin to wait; None if as many wait as may."""
        if self.waiting >= self._places:
            return None
        if len(self._line) >= 2 * self._places:  # Those who have left keep their places until then.
            self._line = deque(waiter for waiter in self._line if not waiter.left)
        waiter = Waiter()
        self._line.append(waiter)
        self.waiting += 1
        return waiter

    def hand_over(self) -> bool:
        """Give a slot that came back to the one who waits longest; False if nobody waits."""
        while self._line:
            waiter = self._line.popleft()
            if not waiter.left:
                waiter.granted = True
                self.waiting -= 1
                self.woken.append(waiter)
                return True
        return False

    def leave(self, waiter: Waiter) -> bool:
        """Wait no longer; return whether a slot had been granted, which is now the leaver's to give back. Once."""
        if waiter.left:
            return False
        waiter.left = True
        if not waiter.granted:
            self.waiting -= 1
        return waiter.granted
