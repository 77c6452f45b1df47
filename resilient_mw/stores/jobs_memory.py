"""A store of jobs in memory: the behaviour of a durable one, without the durability. For tests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Sequence
from math import inf

from resilient_mw.core.job_store import ClaimedJob, NewJob, StoreCounts, check_repeat

DEFAULT_CLASSES = ("critical", "normal", "sheddable")


class _Kept:
    """A job in the store."""

    def __init__(self, job: NewJob, now: float) -> None:
        self.job = job
        self.put_at = now
        self.due_at = now
        self.attempt = 0
        self.token = 0
        self.leased = False
        self.dead: str | None = None


class MemoryJobStore:
    """Keeps jobs for as long as the process lives; see `JobStore`.

    Args:
        classes: names of the classes, highest first.
    """

    def __init__(self, classes: Sequence[str] = DEFAULT_CLASSES) -> None:
        self._ranks = {name: rank for rank, name in enumerate(classes)}
        self._lock = threading.Lock()
        self._jobs: dict[str, _Kept] = {}

    def add(self, job: NewJob, now: float, most: int | None) -> str | None:
        """Promise a job."""
        with self._lock:
            alive = [each for each in self._jobs.values() if each.dead is None]
            for each in alive:
                if (each.job.task, each.job.key) == (job.task, job.key):
                    check_repeat(job, each.job.payload)
                    return each.job.id
            waiting = sum(each.job.priority == job.priority and not each.leased for each in alive)
            if most is not None and waiting >= most:
                return None
            self._jobs[job.id] = _Kept(job, now)
            return job.id

    def claim(self, now: float, until: float, tasks: Collection[str], attempts: int) -> ClaimedJob | None:
        """Take the next job."""
        with self._lock:
            due = [
                each
                for each in self._jobs.values()
                if each.dead is None and each.due_at <= now and each.job.task in tasks
            ]
            for kept in sorted(due, key=self._order):
                if kept.attempt >= attempts:
                    kept.dead = f"delivered {kept.attempt} times"
                    kept.leased = False
                    continue
                kept.attempt += 1
                kept.token += 1
                kept.due_at = until
                kept.leased = True
                return ClaimedJob(job=kept.job, put_at=kept.put_at, attempt=kept.attempt, token=kept.token)
            return None

    def done(self, job_id: str, token: int) -> bool:
        """Forget a job that is done."""
        with self._lock:
            if self._claimed(job_id, token) is None:
                return False
            del self._jobs[job_id]
            return True

    def retry(self, job_id: str, token: int, at: float, *, delivered: bool = True) -> bool:
        """Give a job back."""
        with self._lock:
            kept = self._claimed(job_id, token)
            if kept is None:
                return False
            kept.leased = False
            kept.due_at = at
            kept.attempt -= not delivered
            return True

    def give_up(self, job_id: str, token: int, why: str) -> bool:
        """Keep a job for a person to look at."""
        with self._lock:
            kept = self._claimed(job_id, token)
            if kept is None:
                return False
            kept.leased = False
            kept.dead = why
            return True

    def counts(self, now: float) -> StoreCounts:
        """Return what the store holds."""
        with self._lock:
            alive = [each for each in self._jobs.values() if each.dead is None]
            waiting = [each for each in alive if not each.leased or each.due_at <= now]
            return StoreCounts(
                waiting=dict(Counter(each.job.priority for each in waiting)),
                leased=len(alive) - len(waiting),
                dead=len(self._jobs) - len(alive),
                oldest=max(0.0, now - min((each.put_at for each in waiting), default=inf)),
            )

    def dead(self) -> list[tuple[NewJob, str]]:
        """Return the jobs that were given up, and why."""
        with self._lock:
            return [(each.job, each.dead) for each in self._jobs.values() if each.dead is not None]

    def close(self) -> None:
        """Do nothing."""

    def _order(self, kept: _Kept) -> tuple[int, float]:
        return self._ranks.get(kept.job.priority, len(self._ranks)), kept.put_at

    def _claimed(self, job_id: str, token: int) -> _Kept | None:
        kept = self._jobs.get(job_id)
        valid = kept is not None and kept.leased and kept.dead is None and kept.token == token
        return kept if valid else None
