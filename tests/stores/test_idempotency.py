"""The stores of this package under the suite that users run on theirs: memory and SQLite, blocking and async."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from resilient_mw.idempotency import IdempotencyStore, State, StoredAnswer
from resilient_mw.stores.faces import ThreadedIdempotencyStore
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
from resilient_mw.testing import ManualClock
from resilient_mw.testing.idempotency_checks import begun, looked
from resilient_mw.testing.idempotency_faces import blocking_face
from resilient_mw.testing.idempotency_store import IdempotencyStoreSuite, used


class ByHand(IdempotencyStoreSuite):
    """Time passes at once."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _clock(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.clock = ManualClock()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def make(self) -> IdempotencyStore:
        raise NotImplementedError

    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        with used(self.make()) as store:
            yield store


class TestMemory(ByHand):
    def make(self) -> IdempotencyStore:
        return MemoryIdempotencyStore(clock=self.clock)


class TestSQLite(ByHand):
    def make(self) -> IdempotencyStore:
        return SQLiteIdempotencyStore(self.folder / "keys.db", durable=False, clock=self.clock)


def test_sqlite_by_its_own_clock(tmp_path: Path) -> None:
    """Leases and expiry by the machine's clock, which every process sees, also one that is started later."""
    suite = IdempotencyStoreSuite()
    with used(SQLiteIdempotencyStore(tmp_path / "keys.db")) as store:
        held = suite.claim()
        fence = begun(store.begin(held)).fence
        assert 3500 < looked(store, held).lease_left <= 3600
        assert 0 <= looked(store, held).age < 60
        lapsing = suite.claim(lease=0.2)
        assert begun(store.begin(lapsing)).fence > fence
        expiring = suite.claim(keep=0.2)
        store.begin(expiring)
        assert store.complete(expiring, StoredAnswer(200))
        suite.pass_time(0.3)
        with used(SQLiteIdempotencyStore(tmp_path / "keys.db")) as other:
            assert looked(other, lapsing).state is State.UNKNOWN
            assert looked(other, held).state is State.RUNNING
            assert other.look(expiring.record) is None
            assert begun(other.begin(suite.again(lapsing, lease=3600.0, take_unknown=True))).unknown
        assert not store.complete(lapsing, StoredAnswer(200))


class TestThreads(ByHand):
    """A blocking store behind its async face."""

    rivals = 16

    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        inner = SQLiteIdempotencyStore(self.folder / "keys.db", durable=False, clock=self.clock)
        face = blocking_face(ThreadedIdempotencyStore(inner))
        try:
            with used(face):
                yield face
        finally:
            face.stop()


class TestNoThreads(ByHand):
    """A store that never blocks behind its async face."""

    rivals = 16

    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        face = blocking_face(ThreadedIdempotencyStore(MemoryIdempotencyStore(clock=self.clock)))
        try:
            with used(face):
                yield face
        finally:
            face.stop()
