"""The ledger of payments in a SQLite file: where it shows whether each was made exactly once.

Nothing in it forbids the same payment twice: a double must show, not be hidden.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import psycopg

TABLE: Final = "CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, amount INTEGER NOT NULL)"
INDEX: Final = "CREATE INDEX IF NOT EXISTS payments_by_key ON payments (key)"
INSERT: Final = "INSERT INTO payments (key, amount) VALUES (?, ?)"


@dataclass(frozen=True, slots=True)
class Entry:
    """One payment in the ledger."""

    id: int
    key: str
    amount: int


class Ledger(Protocol):
    """A ledger, as it is seen from outside."""

    def create(self) -> None:
        """Make its table."""
        ...

    def entries(self) -> Sequence[Entry]:
        """Return all payments."""
        ...


class TooLate(Exception):
    """Raised when the time in which a payment may be written is over."""


class SQLiteLedger:
    """A ledger in a file of its own. Safe to use from any thread and process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> None:
        """Make the file and its table."""
        with closing(self._connect(5.0)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(TABLE)
            connection.execute(INDEX)

    def pay(self, key: str, amount: int, until: float) -> int:
        """Write a payment and return its id.

        Args:
            key: of the payment.
            amount: of the payment.
            until: monotonic seconds, which all processes of a machine share. After that nothing is written any more, so that an
                attempt whose lease is over by then is not at work while another one is.

        Raises:
            sqlite3.Error: it is not written.
            TooLate: the same.
        """
        with closing(self._connect(until - time.monotonic())) as connection:
            connection.execute("BEGIN IMMEDIATE")
            if time.monotonic() >= until:
                raise TooLate
            number = connection.execute(INSERT, (key, amount)).lastrowid
            connection.execute("COMMIT")
            return number or 0

    def find(self, key: str) -> Entry | None:
        """Return the payment of a key, after every write that has begun."""
        with closing(self._connect(1.0)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            found = connection.execute(
                "SELECT id, key, amount FROM payments WHERE key = ?", (key,)
            ).fetchone()
            return None if found is None else Entry(*found)

    def entries(self) -> Sequence[Entry]:
        """Return all there are."""
        with closing(self._connect(5.0)) as connection:
            return [Entry(*row) for row in connection.execute("SELECT id, key, amount FROM payments")]

    def _connect(self, within: float) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=max(0.0, within), isolation_level=None)
        # A process that is killed takes nothing with it that the operating system has.
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


class PostgresLedger:
    """A ledger in a PostgreSQL database.

    Args:
        where: a DSN.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    def create(self) -> None:
        """As of `Ledger`."""
        with self._connect() as connection:
            connection.execute(
                "CREATE TABLE payments (id bigserial PRIMARY KEY, key text NOT NULL, amount int NOT NULL)"
            )

    def entries(self) -> Sequence[Entry]:
        """As of `Ledger`."""
        with self._connect() as connection:
            return [Entry(*row) for row in connection.execute("SELECT id, key, amount FROM payments")]

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        import psycopg

        return psycopg.connect(self._where)
