"""What code that runs for a job can ask: `current()` with the job's lease as its deadline, and `current_job()`.

A job that may be delivered once more is a retry owner: calls that our transports make in it are not retried, because the
delivery is. `RetryPolicy(insist=True)` retries nevertheless.
"""

from __future__ import annotations

import asyncio
from typing import Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.core.headers.retry_owner import RetryOwner
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.context import RequestContext, current
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.running_job import RUNNING_JOB, RunningJob, current_job, idempotency_key
from resilient_mw.runtime.supervised import Supervised
from resilient_mw.runtime.thread_context import ThreadContext

__all__ = [
    "RUNNING_JOB",
    "JobRecord",
    "RunningJob",
    "ThreadJob",
    "current_job",
    "idempotency_key",
    "may_finish",
    "outcome_of",
    "require_time",
]


def may_finish(delay: float, typical: float = 0.0) -> bool:
    """Return whether a delay and a further run of so many seconds fit into what is left of the budget."""
    return current().remaining() > delay + typical


def require_time(delay: float, typical: float = 0.0) -> None:
    """Raise if a delay and a further run do not fit into what is left of the budget.

    Raises:
        DeadlineExceeded: they do not.
    """
    if not may_finish(delay, typical):
        left = current().remaining()
        raise DeadlineExceeded(
            f"another attempt in {delay:g} s that takes {typical:g} s does not fit into {left:.3f} s"
        )


class JobRecord(Supervised):
    """The context of a job in an event loop.

    Args:
        task: that it runs in.
        deadline_at: when its lease is over.
        now: this instant.
        clock: the one clock.
        owner: who retries; None: it is delivered once.
        guard: whose slot it has; None: it has none.
    """

    __slots__ = ("owner",)

    def __init__(  # noqa: PLR0917  as its base, and two more
        self,
        task: asyncio.Task[Any],
        deadline_at: float,
        now: float,
        clock: Clock,
        owner: RetryOwner | None,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(task, deadline_at, now, clock)
        self.owner = owner
        self._guard = guard

    def retry_owner(self, fields: tuple[str, str]) -> RetryOwner | None:  # noqa: ARG002  there is no head
        """Return who retries: whoever delivers the job."""
        return self.owner


class ThreadJob(ThreadContext):
    """The context of a job in a thread; arguments as of `ThreadContext`."""

    __slots__ = ("retries",)

    def __init__(
        self,
        deadline_at: float,
        clock: Clock,
        owner: RetryOwner | None,
        guard: object = None,
        outer: RequestContext | None = None,
    ) -> None:
        super().__init__(deadline_at, clock, guard, outer)
        self.retries = owner

    def retry_owner(self, fields: tuple[str, str]) -> RetryOwner | None:  # noqa: ARG002  there is no head
        """Return who retries: whoever delivers the job."""
        return self.retries


def outcome_of(reason: CancelReason | None, error: BaseException | None) -> str:
    """Return how a job ended, as its label."""
    if reason is not None:
        return reason.value
    return "completed" if error is None else "error"
