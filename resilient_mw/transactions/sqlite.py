"""Work and its idempotency key in one transaction of a `sqlite3` connection.

    with idempotent(connection, key=key, caller=user, operation="POST /payments", payload=body) as op:
        if not op.replayed:
            connection.execute("INSERT INTO payments ...")
            op.complete(201, json={"id": 7})
    return op.answer

Where no transaction is open, the block is one: it is committed at its end, and rolled back if it raises. Where one is open, the
block is a savepoint in it, and the commit is the caller's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar, Unpack

from resilient_mw.idempotency.statements import SQLITE
from resilient_mw.idempotency.transaction import Asked, Done, Operation, beginning, ending
from resilient_mw.runtime.context import current
from resilient_mw.stores.sqlite import schema
from resilient_mw.transactions.terms import ENDED_INSIDE, Terms, TermsGiven, blocked

__all__ = ["create_table", "guard_commits", "idempotent", "schema"]

T = TypeVar("T")
_SAVEPOINT: Final = "resilient_mw_idempotent"
_BUSY: Final = {5, 6}
"""SQLITE_BUSY and SQLITE_LOCKED."""


@contextmanager
def idempotent(connection: sqlite3.Connection, **terms: Unpack[TermsGiven]) -> Iterator[Operation]:
    """Do the work of a key at most once, in one transaction with the key.

    SQLite has one writer: the transaction of anybody else is waited for, whatever its key.

    Args:
        connection: of any isolation level.
        **terms: attributes of `Terms`.

    Raises:
        IdempotencyRefused: the block has not run: the key is malformed or missing, another payload had it, or somebody else's
            transaction did not end in time.
        DeadlineExceeded, RequestCancelled: the request is over; nothing was committed.
        RuntimeError: the block has given no answer, or has ended the transaction; it is rolled back if it still can be.
        ValueError: a value is not allowed.
    """
    agreed = Terms(**terms)
    claim = agreed.claim()
    with _transaction(connection, agreed.milliseconds()) as block:
        operation = agreed.operation_with(block.run(beginning(claim, SQLITE, block.ms)))
        block.begun()
        yield operation
        block.undo = operation.replayed
        if not operation.replayed:
            block.check_open()
            block.run(ending(claim, operation, SQLITE))


@contextmanager
def guard_commits(connection: sqlite3.Connection) -> Iterator[None]:
    """Have the transaction inside, a new one or a savepoint, rolled back if the request is over at its end.

    Raises:
        DeadlineExceeded, RequestCancelled: it is over.
    """
    with _transaction(connection, None):
        yield


def create_table(connection: sqlite3.Connection) -> None:
    """Make the table of the keys, if it is missing. Outside a transaction."""
    connection.executescript(schema())


class _Block:
    """What happens on the connection."""

    def __init__(self, connection: sqlite3.Connection, ms: int | None) -> None:
        self._connection = connection
        self._own = not connection.in_transaction
        self._was: int | None = None
        self.ms = ms or 1
        self.undo = False
        if ms is not None:
            ((self._was,),) = self._execute("PRAGMA busy_timeout").fetchall()
            self._execute(f"PRAGMA busy_timeout = {ms}")

    def run(self, steps: Generator[Asked, Done, T]) -> T:
        """Have statements executed."""
        try:
            asked = next(steps)
            while True:
                cursor = self._connection.cursor()
                cursor.row_factory = None
                cursor.execute(asked.sql, dict(asked.facts))
                asked = steps.send(Done(cursor.fetchall(), cursor.rowcount))
        except StopIteration as stop:
            value: T = stop.value
            return value

    def begin(self) -> None:
        """Begin: as a writer, for who first reads cannot wait for the writer afterwards."""
        self._execute("BEGIN IMMEDIATE" if self._own else f"SAVEPOINT {_SAVEPOINT}")

    def begun(self) -> None:
        """Have other locks waited for as before."""
        if self._was is not None:
            self._execute(f"PRAGMA busy_timeout = {self._was}")
            self._was = None

    def waiting(self) -> bool:
        """Return whether the key has not been taken yet."""
        return self._was is not None

    def check_open(self) -> None:
        """Raise if the transaction has been ended by the code inside.

        Raises:
            RuntimeError: it has.
        """
        if not self._connection.in_transaction:
            raise RuntimeError(ENDED_INSIDE)

    def commit(self) -> None:
        """Commit, or leave the commit to the transaction around."""
        self._execute("COMMIT" if self._own else f"RELEASE {_SAVEPOINT}")

    def roll_back(self) -> None:
        """Undo all, if there still is anything that can be undone."""
        if not self._connection.in_transaction:
            return
        if self._own:
            self._execute("ROLLBACK")
            return
        try:
            self._execute(f"ROLLBACK TO {_SAVEPOINT}")
            self._execute(f"RELEASE {_SAVEPOINT}")
        except sqlite3.OperationalError:  # the code inside has ended the transaction, and begun another one
            self._connection.rollback()

    def _execute(self, statement: str) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor.execute(statement)


@contextmanager
def _transaction(connection: sqlite3.Connection, ms: int | None) -> Iterator[_Block]:
    block = _Block(connection, ms)
    try:
        block.begin()
        yield block
        if block.undo:
            block.roll_back()
        else:
            current().check()
            block.commit()
    except BaseException as error:
        waited = block.waiting()
        block.roll_back()
        block.begun()
        if waited and isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in _BUSY:
            raise blocked() from error
        raise
