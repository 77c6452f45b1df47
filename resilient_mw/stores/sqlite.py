"""Idempotency keys in a SQLite file: durable, for several processes on one machine.

A file on a network drive is no such file: SQLite's locks do not hold there.
"""

# ruff: noqa: S608 -- nothing but the names in this file is put into a statement.

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from resilient_mw.core.ports import Clock
from resilient_mw.idempotency import shelf
from resilient_mw.idempotency.answers import StoredAnswer, decode_answer, encode_answer
from resilient_mw.idempotency.protocol import TIMEOUT
from resilient_mw.idempotency.record import (
    About,
    Begun,
    Claim,
    Ending,
    Found,
    Full,
    Outcome,
    Record,
    State,
)
from resilient_mw.idempotency.shelf import Row
from resilient_mw.stores.connections import SQLiteFile

TABLE: Final = "resilient_mw_idempotency"
# By the machine's wall clock, read by SQLite, since leases must outlive a restart: a step of it makes them longer or shorter.
_NOW: Final = "(julianday('now') - 2440587.5) * 86400.0"
_COLUMNS: Final = (
    "token, state, id, fingerprint, began, lease_until, expires, caller, completed_by, "
    "about_key, about_method, about_route, about_caller"
)
_READ: Final = f"SELECT {_COLUMNS}, answer FROM {TABLE} WHERE record = ?"
_READ_HEAD: Final = f"SELECT {_COLUMNS}, NULL FROM {TABLE} WHERE record = ?"
_INSERT: Final = (
    f"INSERT INTO {TABLE} (record, token, state, fingerprint, began, lease_until, expires, caller, completed_by, "
    "about_key, about_method, about_route, about_caller) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = (
    f"UPDATE {TABLE} SET token = ?, state = ?, fingerprint = ?, lease_until = ?, expires = ?, completed_by = ?, answer = ? "
    "WHERE record = ?"
)
_DELETE: Final = f"DELETE FROM {TABLE} WHERE record = ?"
_COUNT: Final = f"SELECT count(*), min(expires) FROM (SELECT expires FROM {TABLE} WHERE caller = ? AND expires > ? LIMIT ?)"
_PURGE: Final = (
    f"DELETE FROM {TABLE} WHERE id IN (SELECT id FROM {TABLE} WHERE expires <= ? ORDER BY expires LIMIT ?)"
)
_LIST: Final = (
    f"SELECT record, {_COLUMNS}, NULL FROM {TABLE} WHERE record > :after AND expires > :now AND (:state IS NULL OR :state = "
    "CASE WHEN state = 'running' AND lease_until <= :now THEN 'unknown' ELSE state END) ORDER BY record LIMIT :limit"
)
_SWEPT: Final = 2
"""Expired records that each new one removes: more than come in, so that they cannot pile up."""


def schema() -> str:
    """Return the statements that make the table, for those who create tables by hand."""
    return files("resilient_mw.stores").joinpath("sqlite.sql").read_text("utf-8")


class SQLiteIdempotencyStore:
    """Idempotency keys in a SQLite file (WAL). An `IdempotencyStore` for the processes of one machine.

    Args:
        path: of the file; made if it is missing, with its table.
        durable: whether a record is on the disk when `begin` and `complete` return (`synchronous=FULL`), so that it outlives a
            loss of power. False is faster, and outlives the death of the process only.
        clock: seconds; for tests. By default SQLite reads the machine's clock, which all its processes share.
    """

    blocking: Final = True
    shared: Literal["machine"] = "machine"

    def __init__(self, path: str | Path, *, durable: bool = True, clock: Clock | None = None) -> None:
        self._file = SQLiteFile(path, schema(), durable=durable)
        self._clock = clock

    def begin(self, claim: Claim, *, timeout: float = TIMEOUT) -> Outcome:
        """As of `IdempotencyStore`."""
        with self._file.writing(timeout) as connection:
            now = self._now(connection)
            connection.execute(_PURGE, (now, _SWEPT))
            row = shelf.live(_read(connection, claim.record), now)
            if row is not None:
                if not shelf.may_take(row, claim, now):
                    return Found(shelf.record_of(claim.record, row, now))
            elif claim.caller:
                most = (claim.caller, now, claim.most)
                live, first = connection.execute(_COUNT, most).fetchone()
                if live >= claim.most:
                    return Full(max(0.0, first - now))
            connection.execute(_DELETE, (claim.record,))
            fence = _insert(connection, claim.record, shelf.begun(row, claim, now, 0))
            return Begun(fence, unknown=row is not None)

    def renew(self, claim: Claim, *, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        with self._file.writing(timeout) as connection:
            now = self._now(connection)
            row = shelf.live(_read(connection, claim.record, head=True), now)
            if row is None or not shelf.has(row, claim):
                return False
            _update(connection, claim.record, shelf.renewed(row, claim, now))
            return True

    def complete(
        self, claim: Claim, answer: StoredAnswer, *, fingerprint: str | None = None, timeout: float = TIMEOUT
    ) -> bool:
        """As of `IdempotencyStore`."""
        with self._file.writing(timeout) as connection:
            now = self._now(connection)
            row = shelf.live(_read(connection, claim.record, head=True), now)
            if row is None or not shelf.has(row, claim):
                return row is not None and row.completed_by == claim.token
            _update(connection, claim.record, shelf.completed(row, claim, answer, fingerprint, now))
            return True

    def abandon(self, claim: Claim, ending: Ending, *, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        with self._file.writing(timeout) as connection:
            now = self._now(connection)
            row = shelf.live(_read(connection, claim.record, head=True), now)
            if row is None or not shelf.has(row, claim):
                return False
            left = shelf.abandoned(row, claim, ending, now)
            if left is None:
                connection.execute(_DELETE, (claim.record,))
            else:
                _update(connection, claim.record, left)
            return True

    def look(self, record: str, *, timeout: float = TIMEOUT) -> Record | None:
        """As of `IdempotencyStore`."""
        with self._file.reading(timeout) as connection:
            now = self._now(connection)
            row = shelf.live(_read(connection, record), now)
            return None if row is None else shelf.record_of(record, row, now)

    def release(self, record: str, *, running: bool = False, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        with self._file.writing(timeout) as connection:
            now = self._now(connection)
            row = shelf.live(_read(connection, record, head=True), now)
            if row is None or (not running and shelf.state_of(row, now) is State.RUNNING):
                return False
            connection.execute(_DELETE, (record,))
            return True

    def records(
        self, *, state: State | None = None, after: str = "", limit: int = 100, timeout: float = TIMEOUT
    ) -> Sequence[Record]:
        """As of `IdempotencyStore`."""
        with self._file.reading(timeout) as connection:
            now = self._now(connection)
            asked = {
                "after": after,
                "now": now,
                "state": None if state is None else state.value,
                "limit": limit,
            }
            found = connection.execute(_LIST, asked).fetchall()
            return [shelf.record_of(key, _row(values), now) for key, *values in found]

    def purge(self, limit: int = 10_000, *, timeout: float = TIMEOUT) -> int:
        """As of `IdempotencyStore`."""
        with self._file.writing(timeout) as connection:
            return connection.execute(_PURGE, (self._now(connection), limit)).rowcount

    def create(self, *, timeout: float = TIMEOUT) -> None:
        """As of `IdempotencyStore`. The first use does it, too."""
        self.ping(timeout=timeout)

    def ping(self, *, timeout: float = TIMEOUT) -> None:
        """As of `IdempotencyStore`."""
        with self._file.reading(timeout) as connection:
            connection.execute(f"SELECT 1 FROM {TABLE} LIMIT 1").fetchone()

    def close(self) -> None:
        """As of `IdempotencyStore`."""
        self._file.close()

    def _now(self, connection: sqlite3.Connection) -> float:
        if self._clock is not None:
            return self._clock.now()
        return float(connection.execute(f"SELECT {_NOW}").fetchone()[0])


def _read(connection: sqlite3.Connection, record: str, *, head: bool = False) -> Row | None:
    found = connection.execute(_READ_HEAD if head else _READ, (record,)).fetchone()
    return None if found is None else _row(found)


def _row(values: Sequence[Any]) -> Row:
    token, state, fence, fingerprint, began, lease_until, expires, caller, completed_by, *about, answer = (
        values
    )
    return Row(
        token=token,
        state=State(state),
        fence=fence,
        fingerprint=fingerprint,
        began=began,
        lease_until=lease_until,
        expires=expires,
        caller=caller,
        completed_by=completed_by,
        answer=None if answer is None else decode_answer(answer),
        about=About(key=about[0], method=about[1], route=about[2], caller=about[3]),
    )


def _insert(connection: sqlite3.Connection, record: str, row: Row) -> int:
    about = row.about
    where = (row.began, row.lease_until, row.expires, row.caller, row.completed_by)
    shown = (about.key, about.method, about.route, about.caller)
    done = connection.execute(_INSERT, (record, row.token, row.state.value, row.fingerprint, *where, *shown))
    return done.lastrowid or 0


def _update(connection: sqlite3.Connection, record: str, row: Row) -> None:
    answer = None if row.answer is None else encode_answer(row.answer)
    values = (
        row.token,
        row.state.value,
        row.fingerprint,
        row.lease_until,
        row.expires,
        row.completed_by,
        answer,
    )
    connection.execute(_UPDATE, (*values, record))
