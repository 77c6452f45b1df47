"""Idempotency keys in the memory of one process: for tests, and for a service that is one process and may forget.

A restart loses everything. With several workers, each knows its own keys only, and a repeat that comes to another one runs again.
"""

# ruff: noqa: ARG002 -- nothing here waits, so no `timeout` is needed.

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Literal

from resilient_mw.core.checks import require_integer
from resilient_mw.core.ports import Clock, process_clock
from resilient_mw.idempotency import shelf
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.protocol import TIMEOUT, StoreUnavailable
from resilient_mw.idempotency.record import Begun, Claim, Ending, Found, Full, Outcome, Record, State
from resilient_mw.idempotency.shelf import Row
from resilient_mw.stores.forks import after_fork

_SWEPT_WHEN_FULL: Final = 1000
_SWEPT: Final = 2
"""Records that each new one looks at for expired ones: more than come in, so that they cannot pile up."""


class MemoryIdempotencyStore:
    """Idempotency keys in memory. An `IdempotencyStore` that never blocks.

    Args:
        most: records of all callers together. When they are so many, and no expired one is found among a thousand, `begin`
            raises `StoreUnavailable`: one that is alive is never thrown away for a new one.
        clock: monotonic seconds; the one of this process by default.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    blocking: Final = False
    shared: Literal["process"] = "process"

    def __init__(self, *, most: int = 100_000, clock: Clock | None = None) -> None:
        self._most = require_integer("MemoryIdempotencyStore.most", most, low=1)
        self._clock = process_clock() if clock is None else clock
        self._lock = threading.Lock()
        self._fences = itertools.count(1)
        # In the order in which the sweep looks at them.
        self._rows: OrderedDict[str, Row] = OrderedDict()
        self._callers: dict[str, set[str]] = {}
        self._closed = False
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child: what the parent has begun is not the child's to end."""
        self._lock = threading.Lock()
        self._rows = OrderedDict()
        self._callers = {}

    def begin(self, claim: Claim, *, timeout: float = TIMEOUT) -> Outcome:
        """As of `IdempotencyStore`."""
        with self._locked():
            now = self._clock.now()
            self._sweep(now, _SWEPT)
            row = shelf.live(self._rows.get(claim.record), now)
            if row is not None:
                if not shelf.may_take(row, claim, now):
                    return Found(shelf.record_of(claim.record, row, now))
                fence = next(self._fences)
                self._rows[claim.record] = shelf.begun(row, claim, now, fence)
                return Begun(fence, unknown=True)
            self._remove(claim.record)
            full = self._full(claim, now)
            if full is not None:
                return full
            if len(self._rows) >= self._most and not self._sweep(now, _SWEPT_WHEN_FULL):
                raise StoreUnavailable(
                    f"the memory store has its {self._most} records: raise `most`, or keep answers for a shorter time"
                )
            fence = next(self._fences)
            self._rows[claim.record] = shelf.begun(None, claim, now, fence)
            if claim.caller:
                self._callers.setdefault(claim.caller, set()).add(claim.record)
            return Begun(fence)

    def renew(self, claim: Claim, *, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        with self._locked():
            now = self._clock.now()
            row = shelf.live(self._rows.get(claim.record), now)
            if row is None or not shelf.has(row, claim):
                return False
            self._rows[claim.record] = shelf.renewed(row, claim, now)
            return True

    def complete(
        self, claim: Claim, answer: StoredAnswer, *, fingerprint: str | None = None, timeout: float = TIMEOUT
    ) -> bool:
        """As of `IdempotencyStore`."""
        with self._locked():
            now = self._clock.now()
            row = shelf.live(self._rows.get(claim.record), now)
            if row is None or not shelf.has(row, claim):
                return row is not None and row.completed_by == claim.token
            self._rows[claim.record] = shelf.completed(row, claim, answer, fingerprint, now)
            return True

    def abandon(self, claim: Claim, ending: Ending, *, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        with self._locked():
            now = self._clock.now()
            row = shelf.live(self._rows.get(claim.record), now)
            if row is None or not shelf.has(row, claim):
                return False
            left = shelf.abandoned(row, claim, ending, now)
            if left is None:
                self._remove(claim.record)
            else:
                self._rows[claim.record] = left
            return True

    def look(self, record: str, *, timeout: float = TIMEOUT) -> Record | None:
        """As of `IdempotencyStore`."""
        with self._locked():
            now = self._clock.now()
            row = shelf.live(self._rows.get(record), now)
            return None if row is None else shelf.record_of(record, row, now)

    def release(self, record: str, *, running: bool = False, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        with self._locked():
            now = self._clock.now()
            row = shelf.live(self._rows.get(record), now)
            if row is None or (not running and shelf.state_of(row, now) is State.RUNNING):
                return False
            self._remove(record)
            return True

    def records(
        self, *, state: State | None = None, after: str = "", limit: int = 100, timeout: float = TIMEOUT
    ) -> Sequence[Record]:
        """As of `IdempotencyStore`."""
        with self._locked():
            now = self._clock.now()
            keys = sorted(
                key
                for key, row in self._rows.items()
                if key > after
                and shelf.live(row, now) is not None
                and (state is None or shelf.state_of(row, now) is state)
            )
            return [shelf.record_of(key, self._rows[key], now, answer=False) for key in keys[:limit]]

    def purge(self, limit: int = 10_000, *, timeout: float = TIMEOUT) -> int:
        """As of `IdempotencyStore`."""
        with self._locked():
            now = self._clock.now()
            expired = [key for key, row in self._rows.items() if shelf.live(row, now) is None][:limit]
            for key in expired:
                self._remove(key)
            return len(expired)

    def create(self, *, timeout: float = TIMEOUT) -> None:
        """As of `IdempotencyStore`: nothing is missing."""
        self.ping()

    def ping(self, *, timeout: float = TIMEOUT) -> None:
        """As of `IdempotencyStore`."""
        with self._locked():
            pass

    def close(self) -> None:
        """As of `IdempotencyStore`. The records are lost."""
        with self._lock:
            self._closed = True
            self._rows.clear()
            self._callers.clear()

    def _locked(self) -> threading.Lock:
        if self._closed:
            raise StoreUnavailable("the memory store is closed")
        return self._lock

    def _full(self, claim: Claim, now: float) -> Full | None:
        own = self._callers.get(claim.caller, ())
        if not claim.caller or len(own) < claim.most:
            return None
        for key in [key for key in own if shelf.live(self._rows[key], now) is None]:
            self._remove(key)
        own = self._callers.get(claim.caller, ())
        if len(own) < claim.most:
            return None
        return Full(max(0.0, min(self._rows[key].expires for key in own) - now))

    def _sweep(self, now: float, most: int) -> int:
        """Look at some records, remove the expired ones and return how many they were."""
        removed = 0
        for _ in range(min(most, len(self._rows))):
            key = next(iter(self._rows))
            if shelf.live(self._rows[key], now) is None:
                self._remove(key)
                removed += 1
            else:
                self._rows.move_to_end(key)
        return removed

    def _remove(self, key: str) -> None:
        row = self._rows.pop(key, None)
        if row is not None and row.caller:
            own = self._callers[row.caller]
            own.discard(key)
            if not own:
                del self._callers[row.caller]
