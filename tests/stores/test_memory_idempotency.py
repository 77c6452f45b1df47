"""The memory store has a bound, and keeps no expired record for long."""

from __future__ import annotations

import os

import pytest

from resilient_mw.idempotency import Begun, StoredAnswer, StoreUnavailable
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.testing import ManualClock
from resilient_mw.testing.idempotency_checks import StoreTests, begun

TESTS = StoreTests()


def test_it_has_a_bound_and_throws_nothing_away_that_is_alive() -> None:
    clock = ManualClock()
    store = MemoryIdempotencyStore(most=2, clock=clock)
    first = TESTS.claim(keep=10.0)
    begun(store.begin(first))
    store.complete(first, StoredAnswer(200))
    begun(store.begin(TESTS.claim()))
    with pytest.raises(StoreUnavailable, match="2 records: raise `most`"):
        store.begin(TESTS.claim())
    clock.advance(11)
    assert isinstance(store.begin(TESTS.claim()), Begun)


def test_expired_records_are_removed_on_use() -> None:
    clock = ManualClock()
    store = MemoryIdempotencyStore(clock=clock)
    for _ in range(10):
        claim = TESTS.claim(keep=1.0, caller="c" * 64)
        begun(store.begin(claim))
        store.complete(claim, StoredAnswer(200))
    clock.advance(2)
    for _ in range(6):
        begun(store.begin(TESTS.claim()))
    assert len(store._rows) == 6
    assert store._callers == {}


def test_expired_records_of_a_caller_do_not_count() -> None:
    """The sweep is busy with those of others."""
    clock = ManualClock()
    store = MemoryIdempotencyStore(clock=clock)
    for _ in range(10):
        begun(store.begin(TESTS.claim()))
    mine = [TESTS.claim(keep=1.0, caller="c" * 64, most=2) for _ in range(2)]
    for claim in mine:
        begun(store.begin(claim))
        store.complete(claim, StoredAnswer(200))
    clock.advance(2)
    begun(store.begin(TESTS.claim(caller="c" * 64, most=2)))


def test_a_wrong_bound() -> None:
    with pytest.raises(ValueError, match=r"MemoryIdempotencyStore.most=0 is not allowed"):
        MemoryIdempotencyStore(most=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems fork")
def test_a_forked_child_begins_anew() -> None:
    """Its lock may have been held by a thread of the parent; what the parent runs is not the child's."""
    store = MemoryIdempotencyStore()
    claim = TESTS.claim()
    begun(store.begin(claim))
    store._lock.acquire()
    store.forked()
    assert isinstance(store.begin(TESTS.again(claim)), Begun)
