"""Durable jobs in a SQLite file, for any number of threads and processes of one machine.

A job is in the file before its promise is given: the transaction is on the disk (`synchronous=FULL`) when `add` returns.
A claim is one statement, so two processes never get the same job; who dies with one leaves it to the next when the lease is
over, and what he might still say about it is told by the fencing token to be old. The file must be on a local disk: the
locks of network file systems cannot be relied on.
"""

# ruff: noqa: S608  statements are made of constants and question marks

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path

from resilient_mw.core.checks import require_name, require_number
from resilient_mw.core.job_store import ClaimedJob, NewJob, StoreCounts, check_repeat
from resilient_mw.stores.connections import SQLiteFile

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
        StoreUnavailable: the file cannot be opened. All methods raise it when the file cannot be used.
    """

    def __init__(
        self, path: str | Path, classes: Sequence[str] = DEFAULT_CLASSES, busy_timeout: float = 5.0
    ) -> None:
        self._ranks = {require_name("classes", name): rank for rank, name in enumerate(classes)}
        self._busy_timeout = require_number("busy_timeout", busy_timeout)
        self._file = SQLiteFile(path, SCHEMA, durable=True)
        self.counts(0.0)  # a file that cannot be used is told now, and not with the first job

    def add(self, job: NewJob, now: float, most: int | None) -> str | None:
        """Promise a job."""
        with self._file.writing(self._busy_timeout) as connection:
            known = connection.execute(
                "SELECT id, payload FROM resilient_mw_jobs WHERE task = ? AND job_key = ? AND dead IS NULL",
                (job.task, job.key),
            ).fetchone()
            if known is None:
                return self._insert(connection, job, now, most)
        check_repeat(job, known[1])
        return str(known[0])

    def _insert(
        self, connection: sqlite3.Connection, job: NewJob, now: float, most: int | None
    ) -> str | None:
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
        with self._file.writing(self._busy_timeout) as connection:
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
        with self._file.reading(self._busy_timeout) as connection:
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
        with self._file.reading(self._busy_timeout) as connection:
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
        """Close the file, for good."""
        self._file.close()

    def _changed(self, statement: str, *values: object) -> bool:
        with self._file.writing(self._busy_timeout) as connection:
            return connection.execute(statement, values).rowcount == 1
