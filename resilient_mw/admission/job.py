"""One job of a bounded queue."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Any, TypedDict

from resilient_mw.core.job_store import ClaimedJob
from resilient_mw.core.rejection import Reason


class JobState(Enum):
    """Where a job stands."""

    NEW = "new"
    WAITING = "waiting"
    HELD = "held"
    """It has its place, and whoever put it has not let it go yet."""
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    REFUSED = "refused"


class JobTerms(TypedDict, total=False):
    """On which terms a job is to be done.

    Attributes:
        priority: the name of its class; `normal` if nothing is said.
        key: its idempotency key; None: a new one.
        expires: seconds after which it is worthless, if it has not begun; its deadline ends there, too. None: never.
        carry_budget: whether what is left of the caller's budget is such a bound; False if nothing is said.
    """

    priority: str
    key: str | None
    expires: float | None
    carry_budget: bool


class Job:
    """One job.

    Attributes:
        id: its own name.
        key: its idempotency key, the same at every delivery.
        task: the name under which what it does is known; None: it cannot be written down.
        work, args: what it does, and what with.
        priority: the name of its class.
        expires_at: the instant after which it is worthless.
        context: what it runs in; for the owner.
        state: where it stands.
        reason: why it was refused.
        outcome: how it ended.
        put_at: when it came.
        give_up_at: when it stops waiting for a place.
        deadline_at: of the caller who waits.
        lease_until: when its time at work is over.
        wake: called once when the wait for a place is over.
        claim: of a durable job at work.
        deferred: whether it has been put into the durable store.
    """

    __slots__ = (
        "args", "claim", "context", "deadline_at", "deferred", "expires_at", "give_up_at", "id", "key", "lease_until",
        "outcome", "priority", "put_at", "reason", "state", "task", "wake", "work",
    )  # fmt: skip

    def __init__(
        self,
        job_id: str,
        key: str,
        work: Callable[..., Any],
        args: tuple[Any, ...] = (),
        *,
        priority: str = "normal",
        task: str | None = None,
        expires_at: float = inf,
        context: Any = None,
    ) -> None:
        self.id = job_id
        self.key = key
        self.task = task
        self.work = work
        self.args = args
        self.priority = priority
        self.expires_at = expires_at
        self.context = context
        self.state = JobState.NEW
        self.reason: Reason | None = None
        self.outcome: str | None = None
        self.put_at = 0.0
        self.give_up_at = inf
        self.deadline_at = inf
        self.lease_until = inf
        self.wake: Callable[[], None] | None = None
        self.claim: ClaimedJob | None = None
        self.deferred = False

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return 1 if self.claim is None else self.claim.attempt
