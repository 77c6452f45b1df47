"""The figures of Celery tasks in one process."""

from __future__ import annotations

import threading
from collections import Counter

from resilient_mw.core.jobs_snapshot import JobClassSnapshot, JobsSnapshot
from resilient_mw.runtime.forks import after_fork


class CeleryJobs:
    """The figures of one Celery application in this process, where exporters find them.

    Published tasks count where they are published; the others in the process that runs them, expired ones also in the
    parent of a prefork pool.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        """Have a lock of its own in a forked child; what was counted before stays with the parent."""
        self._lock = threading.Lock()
        self.published = self.running = self.redelivered = 0
        self.ended: Counter[str] = Counter()

    def snapshot(self) -> JobsSnapshot:
        """Return the figures of this instant."""
        with self._lock:
            tasks = JobClassSnapshot(
                priority="task", queued=0, waiting=0, promised=0, deferred=self.published, refused={},
                ended=dict(self.ended),
            )  # fmt: skip
            return JobsSnapshot(
                jobs=self.name, places=0, running=self.running, workers=0, overdue=0, oldest=0.0,
                redelivered=self.redelivered, lost=0, unreachable=0, draining=False, classes=(tasks,), store=None,
            )  # fmt: skip

    def publishes(self) -> None:
        """Count a task that is published."""
        with self._lock:
            self.published += 1

    def begins(self, *, redelivered: bool) -> None:
        """Count a task that begins."""
        with self._lock:
            self.running += 1
            self.redelivered += redelivered

    def stops(self) -> None:
        """Count it no longer."""
        with self._lock:
            self.running -= 1

    def count(self, outcome: str) -> None:
        """Count how a task has ended."""
        with self._lock:
            self.ended[outcome] += 1
