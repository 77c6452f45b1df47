"""Durable jobs in a SQLite file, for any number of threads and processes of one machine.

A job is in the file before its promise is given: the transaction is on the disk (`synchronous=FULL`) when `add` returns.
A claim is one statement, so two processes never get the same job; who dies with one leaves it to the next when the lease is
over, and what he might still say about it is told by the fencing token to be old. The file must be on a local disk: the
locks of network file systems cannot be relied on.
"""

# ruff: noqa: S608  statements are made of constants and question marks

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from resilient_mw.core.checks import require_name, require_number
from resilient_mw.core.job_store import ClaimedJob, NewJob, StoreCounts

DEFAULT_CLASSES = ("critical", "normal", "sheddable")
UNKNOWN_RANK = 1000
SCHEMA = """
CREATE TABLE IF NOT EXISTS resilient_mw_jobs (
    id TEXT PRIMARY KEY,
    task TEXT NOT NULL,
    payload TEXT NOT NULL,
    job_key TEXT NOT NULL,
    priority TEXT NOT NULL,
    rank INTEGER NOT NULL,
    put_at REAL NOT NULL,
    expires_at REAL,
    due_at REAL NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    leased INTEGER NOT NULL DEFAULT 0,
    dead TEXT
);
CREATE UNIQUE INDEX IF NOT EXISTS resilient_mw_jobs_key
    ON resilient_mw_jobs (task, job_key) WHERE dead IS NULL;
CREATE INDEX IF NOT EXISTS resilient_mw_jobs_next
    ON resilient_mw_jobs (rank, put_at) WHERE dead IS NULL;
"""
MINE = "WHERE id = ? AND token = ? AND leased = 1 AND dead IS NULL"


class SQLiteJobStore:
    """Keeps jobs in a file; see `JobStore`.

    Args:
        path: of the file, which is made if it is not there.
        classes: names of the classes, highest first. Others come after them.
        busy_timeout: seconds that a statement waits for another process that writes.

    Raises:
        ValueError: a class has no name, or `busy_timeout` is no number.
        sqlite3.Error: the file cannot be opened. All methods raise it when the file cannot be used.
    """

    def __init__(
        self, path: str | Path, classes: Sequence[str] = DEFAULT_CLASSES, busy_timeout: float = 5.0
    ) -> None:
        self._path = str(path)
        self._ranks = {require_name("classes", name): rank for rank, name in enumerate(classes)}
        self._busy_timeout = require_number("busy_timeout", busy_timeout)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._forgotten: list[sqlite3.Connection] = []
        with self._using() as connection:
            connection.execute("SELECT 1")

    def add(self, job: NewJob, now: float, most: int | None) -> str | None:
        """Promise a job."""
        with self._writing() as connection:
            known = connection.execute(
                "SELECT id FROM resilient_mw_jobs WHERE task = ? AND job_key = ? AND dead IS NULL",
                (job.task, job.key),
            ).fetchone()
            if known is not None:
                return str(known[0])
            if most is not None:
                waiting = connection.execute(
                    "SELECT count(*) FROM resilient_mw_jobs WHERE priority = ? AND leased = 0 AND dead IS NULL",
                    (job.priority,),
                ).fetchone()[0]
                if waiting >= most:
                    return None
            rank = self._ranks.get(job.priority, UNKNOWN_RANK)
            connection.execute(
                "INSERT INTO resilient_mw_jobs (id, task, payload, job_key, priority, rank, put_at, expires_at, due_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (job.id, job.task, job.payload, job.key, job.priority, rank, now, job.expires_at, now),
            )
            return job.id

    def claim(self, now: float, until: float, tasks: Collection[str], attempts: int) -> ClaimedJob | None:
        """Take the next job."""
        names = tuple(tasks)
        among = f"dead IS NULL AND due_at <= ? AND task IN ({', '.join('?' * len(names))})"
        with self._writing() as connection:
            connection.execute(
                "UPDATE resilient_mw_jobs SET leased = 0, dead = 'delivered ' || attempt || ' times'"
                f" WHERE {among} AND attempt >= ?",
                (now, *names, attempts),
            )
            row = connection.execute(
                "UPDATE resilient_mw_jobs SET leased = 1, attempt = attempt + 1, token = token + 1, due_at = ?"
                f" WHERE id = (SELECT id FROM resilient_mw_jobs WHERE {among} ORDER BY rank, put_at LIMIT 1)"
                " RETURNING id, task, payload, job_key, priority, expires_at, put_at, attempt, token",
                (until, now, *names),
            ).fetchone()
        if row is None:
            return None
        job_id, task, payload, key, priority, expires_at, put_at, attempt, token = row
        job = NewJob(id=job_id, task=task, payload=payload, key=key, priority=priority, expires_at=expires_at)
        return ClaimedJob(job=job, put_at=put_at, attempt=attempt, token=token)

    def done(self, job_id: str, token: int) -> bool:
        """Forget a job that is done."""
        return self._changed(f"DELETE FROM resilient_mw_jobs {MINE}", job_id, token)

    def retry(self, job_id: str, token: int, at: float, *, delivered: bool = True) -> bool:
        """Give a job back."""
        return self._changed(
            f"UPDATE resilient_mw_jobs SET leased = 0, due_at = ?, attempt = attempt - ? {MINE}",
            at, 0 if delivered else 1, job_id, token,
        )  # fmt: skip

    def give_up(self, job_id: str, token: int, why: str) -> bool:
        """Keep a job for a person to look at."""
        return self._changed(f"UPDATE resilient_mw_jobs SET leased = 0, dead = ? {MINE}", why, job_id, token)

    def counts(self, now: float) -> StoreCounts:
        """Return what the store holds."""
        waits = "(leased = 0 OR due_at <= ?)"
        with self._using() as connection:
            waiting = connection.execute(
                "SELECT priority, count(*), min(put_at) FROM resilient_mw_jobs"
                f" WHERE dead IS NULL AND {waits} GROUP BY priority",
                (now,),
            ).fetchall()
            alive, dead = connection.execute(
                "SELECT count(*) FILTER (WHERE dead IS NULL), count(*) FILTER (WHERE dead IS NOT NULL)"
                " FROM resilient_mw_jobs"
            ).fetchone()
        counts = {priority: count for priority, count, _ in waiting}
        return StoreCounts(
            waiting=counts,
            leased=alive - sum(counts.values()),
            dead=dead,
            oldest=max(0.0, now - min((first for _, _, first in waiting), default=now)),
        )

    def dead(self) -> list[tuple[NewJob, str]]:
        """Return the jobs that were given up, and why."""
        with self._using() as connection:
            rows = connection.execute(
                "SELECT id, task, payload, job_key, priority, expires_at, dead FROM resilient_mw_jobs"
                " WHERE dead IS NOT NULL ORDER BY put_at"
            ).fetchall()
        return [
            (NewJob(id=i, task=t, payload=p, key=k, priority=c, expires_at=e), why)
            for i, t, p, k, c, e, why in rows
        ]

    def revive(self, job_id: str, now: float) -> bool:
        """Have a job that was given up delivered again, from its first attempt on; False: there is none."""
        return self._changed(
            "UPDATE OR IGNORE resilient_mw_jobs SET dead = NULL, attempt = 0, due_at = ?"
            " WHERE id = ? AND dead IS NOT NULL",
            now, job_id,
        )  # fmt: skip

    def close(self) -> None:
        """Close the file; the next method opens it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _changed(self, statement: str, *values: object) -> bool:
        with self._writing() as connection:
            return connection.execute(statement, values).rowcount == 1

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that has the write lock from its first statement on."""
        with self._using() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        if self._process != os.getpid():
            # Forked: the lock may be held by a thread that is not here, and the connection is the parent's. Closing it would
            # drop the locks that the parent has on the file.
            if self._connection is not None:
                self._forgotten.append(self._connection)
            self._lock, self._connection, self._process = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._connection is None:
                self._connection = self._opened()
            yield self._connection

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection
