"""Where repeats of a request wait for the first one: a bounded place in this process, and who wakes them.

Who waits in another process looks into the store now and then; here the end of the first attempt wakes everybody at once, with
what was recorded, so that a thousand who wait do not ask the store a thousand times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.record import Claim, Record, State
from resilient_mw.runtime.forks import after_fork

MOST_ROUTES = 1000
"""Routes whose usual duration is remembered."""
WEIGHT = 0.2
"""Of the newest duration in the usual one."""


class Place:
    """A place of one who waits.

    Attributes:
        record: the record's key.
        wake: called once, from any thread, when there is something to see.
        seen: what was recorded, where the one who has ended it was in this process; None: look into the store.
    """

    __slots__ = ("record", "seen", "wake")

    def __init__(self, record: str, wake: Callable[[], None]) -> None:
        self.record = record
        self.wake = wake
        self.seen: Record | None = None


class Joins:
    """The waiting places of an application. Safe to use from any thread.

    Args:
        most: who may wait at one time.

    Attributes:
        waiting: who waits now.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._places: dict[str, set[Place]] = {}
        self._typical: dict[str, float] = {}
        self.waiting = 0
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child, in which nobody waits."""
        self._lock = threading.Lock()
        self._places = {}
        self.waiting = 0

    def join(self, record: str, wake: Callable[[], None]) -> Place | None:
        """Take a place, until `leave`; None: there is none left.

        Look into the store *after* that: what ended before it wakes nobody.
        """
        with self._lock:
            if self.waiting >= self._most:
                return None
            self.waiting += 1
            place = Place(record, wake)
            self._places.setdefault(record, set()).add(place)
            return place

    def leave(self, place: Place) -> None:
        """Give a place back. Once for each."""
        with self._lock:
            self.waiting -= 1
            places = self._places.get(place.record)
            if places is not None:
                places.discard(place)
                if not places:
                    del self._places[place.record]

    def ended(self, record: str, seen: Record | None = None) -> None:
        """Wake who waits for a record: its attempt has completed it, or given it up.

        Args:
            record: its key.
            seen: what was recorded.
        """
        with self._lock:
            places = list(self._places.get(record, ()))
        for place in places:
            place.seen = seen
            place.wake()

    def typical(self, route: str) -> float | None:
        """Return how many seconds the work of a route usually takes; None: not known yet."""
        return self._typical.get(route)

    def took(self, route: str, seconds: float) -> None:
        """Take how long the work of a route took."""
        before = self._typical.get(route)
        if before is not None:
            self._typical[route] = before + WEIGHT * (seconds - before)
        elif len(self._typical) < MOST_ROUTES:
            self._typical[route] = seconds


def recorded(claim: Claim, answer: StoredAnswer, fingerprint: str | None) -> Record:
    """Return what a store would show of a record that a claim has just completed."""
    return Record(
        record=claim.record,
        state=State.COMPLETED,
        fingerprint=claim.fingerprint if fingerprint is None else fingerprint,
        fence=0,
        age=0.0,
        lease_left=0.0,
        expires_in=claim.keep,
        answer=answer,
        about=claim.about,
    )
