"""The open streams of one policy: requests that give their slot back with the head of their response.

They may last for as long as their callers like, so how many there are has a bound of its own, and how long they lasted is
in no figure of run times.
"""

from __future__ import annotations

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry, Waiter, WaiterState
from resilient_mw.core.snapshot import StreamRouteSnapshot, StreamSnapshot
from resilient_mw.core.streams import HEAD

LOOK_AFTER = 64
"""Waiters that are kept before those are dropped whose wait is over."""
GONE = frozenset({WaiterState.REFUSED, WaiterState.LEFT})


class OpenStreams:
    """Counts them. Not thread-safe: the owner locks.

    A place is taken on arrival, also by a request that has to wait for its slot: where it waits in vain, the place is found
    to be free when it is needed. So there are never more streams than places, also when many heads leave at once.

    Args:
        limit: places.
    """

    __slots__ = ("_look_at", "_open", "_outcomes", "_waiting", "limit", "places")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.places = 0
        self._waiting: list[Waiter] = []
        self._look_at = LOOK_AFTER
        self._open: dict[RouteEntry, int] = {}
        self._outcomes: dict[RouteEntry, dict[str, int]] = {}

    def take(self) -> bool:
        """Take a place for a request that has just arrived; return whether there was one."""
        if self.places >= self.limit:
            self._look()
        if self.places >= self.limit:
            return False
        self.places += 1
        return True

    def placed(self, decision: Decision | None) -> None:
        """Say what was decided about the request that has just taken a place; None: nothing, because of an error."""
        if decision is None or decision.reason is not None:
            self._give_back()
        elif decision.waiter is not None:
            self._waiting.append(decision.waiter)
            if len(self._waiting) >= self._look_at:
                self._look()
                self._look_at = max(LOOK_AFTER, 2 * len(self._waiting))

    def left(self, waiter: Waiter) -> None:
        """Give back the place, if it has one, of a request whose caller has gone at the instant at which its wait ended."""
        rule = waiter.route.stream
        if rule is not None and rule.slot == HEAD:
            self._waiting = [each for each in self._waiting if each is not waiter]
            self._give_back()

    def open(self, entry: RouteEntry) -> None:
        """Count a request whose head has been sent and whose slot comes back."""
        self._open[entry] = self._open.get(entry, 0) + 1

    def end(self, entry: RouteEntry, outcome: str | None) -> None:
        """Give back the place of a request that has ended. Exactly once.

        Args:
            entry: how it was treated.
            outcome: how the stream ended; None: it never became one.
        """
        self._give_back()
        if outcome is not None:
            self._open[entry] -= 1
            outcomes = self._outcomes.setdefault(entry, {})
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    def snapshot(self) -> StreamSnapshot:
        """Return the figures of this instant: entries that differ only in cost or deadline share their labels."""
        opened: dict[tuple[str, str], int] = {}
        ended: dict[tuple[str, str], dict[str, int]] = {}
        for entry, count in self._open.items():
            key = (entry.template, entry.priority)
            opened[key] = opened.get(key, 0) + count
            counts = ended.setdefault(key, {})
            for outcome, times in self._outcomes.get(entry, {}).items():
                counts[outcome] = counts.get(outcome, 0) + times
        routes = (StreamRouteSnapshot(*key, opened[key], ended[key]) for key in sorted(opened))
        return StreamSnapshot(self.limit, tuple(routes))

    def _look(self) -> None:
        """Take back the places of those who waited in vain. Who runs gives his back himself."""
        for waiter in self._waiting:
            if waiter.state in GONE:
                self._give_back()
        self._waiting = [
            each for each in self._waiting if each.state in {WaiterState.WAITING, WaiterState.GRANTED}
        ]

    def _give_back(self) -> None:
        if not self.places:
            raise RuntimeError("the place of a stream was given back, but none is taken")
        self.places -= 1
