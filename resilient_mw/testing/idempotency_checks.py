"""What the tests of a store of idempotency keys are made of."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from resilient_mw.idempotency.protocol import IdempotencyStore
from resilient_mw.idempotency.record import About, Begun, Claim, Found, Record
from resilient_mw.idempotency.scope import record_key

LONG = 3600.0
_numbers = itertools.count(1)


def need(holds: object, what: str) -> None:
    """Fail a test with a message that says what the store broke.

    Raises:
        AssertionError: it does not hold.
    """
    if not holds:
        raise AssertionError(what)


class StoreTests:
    """What every test has. Each opens a store of its own; what was there before does not matter.

    Attributes:
        lease: seconds of the leases and expiries that a test waits for.
        rivals: threads that want one key at a time.
    """

    lease = 1.0
    rivals = 64

    def open_store(self) -> AbstractContextManager[IdempotencyStore]:
        """Return a store, ready to be used."""
        raise NotImplementedError("open_store() must return a context manager that yields a store")

    def pass_time(self, seconds: float) -> None:
        """Have so many seconds pass on the store's clock."""
        threading.Event().wait(seconds)

    def claim(self, key: str = "", **facts: Any) -> Claim:
        """Return a claim of a new attempt, for a new key unless one is named."""
        name = key or self.new("key")
        about = About(key=name, method="POST", route="/payments")
        record = record_key(name, caller="caller", method=about.method, route=about.route)
        return replace(
            Claim(record=record, token=self.new("token"), lease=LONG, keep=LONG, about=about), **facts
        )

    def again(self, claim: Claim, **facts: Any) -> Claim:
        """Return another attempt at the key of a claim."""
        return replace(claim, token=self.new("token"), **facts)

    def lapsed(self, store: IdempotencyStore, **facts: Any) -> tuple[Claim, int]:
        """Return a claim whose lease is over, and its fence."""
        claim = self.claim(lease=self.lease, **facts)
        fence = begun(store.begin(claim)).fence
        self.pass_time(self.lease * 1.5)
        return claim, fence

    def new(self, name: str) -> str:
        """Return a text that no other test of this run has."""
        return f"{name}-{next(_numbers)}-{id(self)}"


def begun(outcome: object) -> Begun:
    """Return an outcome that must be `Begun`."""
    if not isinstance(outcome, Begun):
        raise AssertionError(f"the claim did not get the record: {outcome!r}")
    return outcome


def found(outcome: object) -> Record:
    """Return the record of an outcome that must be `Found`."""
    if not isinstance(outcome, Found):
        raise AssertionError(f"the store should have found a record, and said {outcome!r}")
    return outcome.record


def looked(store: IdempotencyStore, claim: Claim) -> Record:
    """Return the record of a claim, which must be there."""
    record = store.look(claim.record)
    if record is None:
        raise AssertionError(f"there is no record of {claim!r}")
    return record


def every(store: IdempotencyStore, **facts: Any) -> dict[str, Record]:
    """Return all live records, read in pages of two."""
    records: dict[str, Record] = {}
    after = ""
    while True:
        page = store.records(after=after, limit=2, **facts)
        records.update((each.record, each) for each in page)
        if len(page) < 2:
            return records
        after = page[-1].record


@contextmanager
def used(store: IdempotencyStore, close: Callable[[], None] | None = None) -> Iterator[IdempotencyStore]:
    """Yield a store after `create`, and close it at the end."""
    try:
        store.create(timeout=30)
        yield store
    finally:
        (close or store.close)()
