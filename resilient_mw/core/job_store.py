"""The port of a durable store of jobs: what is promised there survives the process.

All instants in a store are seconds since 1970, given by whoever calls: several processes read them, and they outlive a
restart of the machine. A clock that jumps ahead lets leases run out early; the fencing token of a claim keeps what comes
of it harmless for the store itself, and the job's key for everything else.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job that is to be promised.

    Attributes:
        id: its own name, unique in the store.
        task: the name of the function that does it.
        payload: what it is called with, as JSON text.
        key: its idempotency key, the same at every delivery.
        priority: the name of its class.
        expires_at: the instant after which it is worthless; None: never.
    """

    id: str
    task: str
    payload: str
    key: str
    priority: str
    expires_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """A job that somebody has claimed: his until the lease is over.

    Attributes:
        job: what was promised.
        put_at: when it was promised.
        attempt: the number of this delivery, from 1.
        token: the fencing token of this claim; what comes with an older one is not obeyed.
    """

    job: NewJob
    put_at: float
    attempt: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCounts:
    """What a store holds at an instant.

    Attributes:
        waiting: jobs that can be claimed now or later, by class.
        leased: jobs that are claimed, and whose lease is not over.
        dead: jobs that were given up, and wait for a person.
        oldest: seconds that the job has waited which came first; 0 without one.
    """

    waiting: Mapping[str, int]
    leased: int
    dead: int
    oldest: float


class JobStore(Protocol):
    """Keeps jobs until they are done. Every method is atomic, and may be called from any thread.

    Methods block; they raise what the store's own library raises when it is not there.
    """

    def add(self, job: NewJob, now: float, most: int | None) -> str | None:
        """Promise a job.

        Args:
            job: the job.
            now: this instant.
            most: jobs of its class that may wait; None: any number.

        Returns:
            The id under which it is kept: that of the job already there with the same task and key, if there is one. None:
            the class has as many waiting as may be, and nothing is promised.

        Raises:
            ValueError: that job is to be called with something else, see `check_repeat`.
        """
        ...

    def claim(self, now: float, until: float, tasks: Collection[str], attempts: int) -> ClaimedJob | None:
        """Take the next job, the oldest of the highest class: one that waits, or whose lease is over.

        Classes are ranked by the order in which the store was told them. A job that has been delivered `attempts` times
        already is given up instead: it is dead.

        Args:
            now: this instant.
            until: when the lease is over.
            tasks: names of the tasks that the caller can do.
            attempts: most deliveries of a job.
        """
        ...

    def done(self, job_id: str, token: int) -> bool:
        """Forget a job that is done; False: the claim was not valid any more, and nothing has changed."""
        ...

    def retry(self, job_id: str, token: int, at: float, *, delivered: bool = True) -> bool:
        """Give a job back, to be claimed from an instant on; False: the claim was not valid any more.

        Args:
            job_id, token: of the claim.
            at: the instant.
            delivered: whether the delivery counts. False: it was not begun.
        """
        ...

    def give_up(self, job_id: str, token: int, why: str) -> bool:
        """Keep a job for a person to look at; False: the claim was not valid any more."""
        ...

    def counts(self, now: float) -> StoreCounts:
        """Return what the store holds."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def check_repeat(job: NewJob, kept: str) -> None:
    """Check that a job with the task and the key of one that is kept is that one.

    Args:
        job: the one that is to be promised.
        kept: the payload of the other one.

    Raises:
        ValueError: it is another one: to say that it is promised would be to lose it.
    """
    if job.payload != kept and json.loads(job.payload) != json.loads(kept):
        raise ValueError(
            f"key={job.key!r} of the job {job.task!r} is that of one with other arguments, which is not done yet: "
            "give each job a key of its own"
        )
