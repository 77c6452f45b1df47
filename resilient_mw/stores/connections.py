"""Connections to one SQLite file: one for each thread that is at it, none carried over a fork, every wait within its time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from resilient_mw.core.ports import Clock, process_clock
from resilient_mw.idempotency.protocol import StoreUnavailable
from resilient_mw.stores.forks import after_fork

_MOST_IDLE: Final = 8
# SQLite connections must not be used in a child, not even closed: https://www.sqlite.org/howtocorrupt.html
_inherited: list[list[sqlite3.Connection]] = []


class SQLiteFile:
    """A file, its connections and the one writer of this process.

    Args:
        path: of the file.
        schema: statements that make what is missing; run with the first connection of each process.
        durable: whether a commit is on the disk when it returns, so that it outlives a loss of power. Without, it outlives the
            death of the process only.
    """

    def __init__(self, path: str | Path, schema: str, *, durable: bool) -> None:
        self._path = str(path)
        self._schema = schema
        self._durable = durable
        self._clock: Clock = process_clock()
        self._writer = threading.Lock()
        self._free: list[sqlite3.Connection] = []
        self._created = False
        self._closed = False
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child."""
        _inherited.append(self._free)
        self._free = []
        self._writer = threading.Lock()
        self._created = False

    @contextmanager
    def reading(self, timeout: float) -> Iterator[sqlite3.Connection]:
        """Lend a connection for one statement.

        Raises:
            StoreUnavailable: it did not work, within the time.
        """
        with self._translated(), self._lent(timeout) as connection:
            yield connection

    @contextmanager
    def writing(self, timeout: float) -> Iterator[sqlite3.Connection]:
        """Lend a connection inside a transaction that is the only one that writes; committed at the end.

        Raises:
            StoreUnavailable: it did not work, within the time.
        """
        until = self._clock.now() + timeout
        # The threads of this process queue here, in order; SQLite's own wait is a poll, and unfair.
        if not self._writer.acquire(timeout=max(0.0, timeout)):
            raise StoreUnavailable(f"{self._path} was busy for {timeout:g} s: another writer had it")
        try:
            with self._translated(), self._lent(until - self._clock.now()) as connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        finally:
            self._writer.release()

    def close(self) -> None:
        """Close what is free now; what is lent is closed when it comes back."""
        self._closed = True
        free, self._free = self._free, []
        for connection in free:
            connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (
            sqlite3.Error,
            ValueError,
        ) as error:  # an answer in the format of a later version is a ValueError
            folder = Path(self._path).parent
            why = "" if folder.is_dir() else f": there is no folder {folder}"
            raise StoreUnavailable(f"{self._path}: {error}{why}") from error

    @contextmanager
    def _lent(self, timeout: float) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise StoreUnavailable(f"{self._path} is closed")
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self._connect(timeout)
        good = False
        try:
            connection.execute(f"PRAGMA busy_timeout = {max(0, int(timeout * 1000))}")
            yield connection
            good = True
        finally:
            # One that failed may have an open transaction, or a file that is no longer there.
            if not (good and self._takes_back(connection)):
                connection.close()

    def _takes_back(self, connection: sqlite3.Connection) -> bool:
        if self._closed or len(self._free) >= _MOST_IDLE:
            return False
        self._free.append(connection)
        return True

    def _connect(self, timeout: float) -> sqlite3.Connection:
        # Each is lent to one thread at a time, which need not be the one that made it.
        connection = sqlite3.connect(
            self._path, timeout=max(0.0, timeout), isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
            if not self._created:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(self._schema)
                self._created = True
        except BaseException:
            connection.close()
            raise
        return connection
