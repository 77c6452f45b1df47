"""The figures of a queue of jobs, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resilient_mw.core.job_store import StoreCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClassSnapshot:
    """The figures of one class of jobs.

    Attributes:
        priority: the class.
        queued: jobs that are promised and have not begun.
        waiting: callers who wait for a place.
        promised: jobs that were promised since the start.
        deferred: jobs that were put into the durable store.
        refused: those that were not promised, by reason.
        ended: those that have ended, by outcome: `completed`, `error`, `expired` (never begun), `left` (handed back at the
            end of the process), or a cancel reason.
    """

    priority: str
    queued: int
    waiting: int
    promised: int
    deferred: int
    refused: Mapping[str, int]
    ended: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSnapshot:
    """The figures of one queue of jobs.

    Attributes:
        jobs: its name.
        places: most jobs that are promised and have not begun.
        running: jobs at work, those included that should have stopped.
        workers: most of them.
        overdue: jobs at work whose lease is over.
        oldest: seconds that the oldest job in the queue has waited.
        redelivered: jobs that were delivered once more.
        lost: jobs whose lease was over before they were: somebody else may have done them, too.
        unreachable: questions that the store did not answer.
        draining: whether no job is taken any more.
        classes: the figures of each class, highest first.
        store: what the durable store holds, as it was last asked; None: there is none.
    """

    jobs: str
    places: int
    running: int
    workers: int
    overdue: int
    oldest: float
    redelivered: int
    lost: int
    unreachable: int
    draining: bool
    classes: tuple[JobClassSnapshot, ...]
    store: StoreCounts | None
