"""The tree of errors. Each carries a `reason` from the one closed set.

ResilienceError
├── DeadlineExceeded (also a TimeoutError)   the time for this work is over
├── BodyTooLarge (also an OSError)           the request body is larger than the route takes
├── RequestCancelled                         the work was given up for another cause
├── JobRefused                               a job was not promised: its queue is full, or drains
├── IdempotencyRefused                       the work of an idempotency key is not done a second time, and has no answer yet
└── UnsupportedEventLoop                     started on an event loop other than asyncio's
ResilienceWarning (a UserWarning)            something that was configured has no effect
"""

from __future__ import annotations

from typing import Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.rejection import Reason


class ResilienceError(Exception):
    """Base of every error that this package raises on its own account.

    Attributes:
        reason: the stable reason, a member of `Reason` or `CancelReason`; None where no request is concerned.
    """

    reason: Reason | CancelReason | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # An error is made of more than its message, and must survive the way out of another process.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[ResilienceError], args: tuple[object, ...]) -> ResilienceError:
    """Return a pickled error without its attributes, which are set afterwards."""
    error = kind.__new__(kind, *args)
    # For those that are an OSError as well, which keeps what __init__ is given.
    BaseException.__init__(error, *args)
    return error


class DeadlineExceeded(ResilienceError, TimeoutError):
    """Raised by `check()` and by `within()` when the deadline of the work has passed."""

    reason = Reason.DEADLINE_EXCEEDED


class BodyTooLarge(ResilienceError, OSError):
    """Raised to an application that reads more of a request body than its route takes.

    An OSError, which is what frameworks expect of a body that cannot be read.
    """

    reason = Reason.BODY_TOO_LARGE


class CallRefused(ResilienceError):
    """Raised when an attempt to call a dependency was refused on this side of the wire.

    The message says whether attempts had been made before it.

    Attributes:
        reason: `Reason.CIRCUIT_OPEN`, `BULKHEAD_FULL`, `THROTTLED` or `INSUFFICIENT_BUDGET`.
        dependency: the name of the dependency.
        retry_in: seconds after which the answer may be different; 0 where that is unknown.
    """

    def __init__(self, message: str, reason: Reason, dependency: str, retry_in: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.dependency = dependency
        self.retry_in = retry_in


class RequestCancelled(ResilienceError):
    """Raised by `check()` when the request was cancelled for a cause other than its deadline.

    Attributes:
        reason: the `CancelReason`.
    """

    def __init__(self, reason: CancelReason) -> None:
        super().__init__(f"the request was cancelled: {reason.value}")
        self.reason = reason


class JobRefused(ResilienceError):
    """Raised when a job is not promised. Nothing of it has been done, and nothing will be.

    Attributes:
        reason: `Reason.QUEUE_FULL`, `QUEUE_TIMEOUT`, `EXPIRED_ON_ARRIVAL`, `EXPIRED_IN_QUEUE` or `DRAINING`.
        jobs: the name of the queue.
        priority: the class of the job.
        retry_after: whole seconds after which there may be a place; None: that is not known.
    """

    def __init__(
        self, message: str, reason: Reason, jobs: str, priority: str, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.jobs = jobs
        self.priority = priority
        self.retry_after = retry_after


class IdempotencyRefused(ResilienceError):
    """Raised when a block of work under an idempotency key may not run, and there is no answer to repeat.

    Raised by a handler, the middlewares answer with the status of its reason.

    Attributes:
        reason: one of the reasons of `Reason` that begin with `IDEMPOTENCY_`.
        retry_after: whole seconds after which there may be an answer; None: that is not known, or never.
    """

    reason: Reason

    def __init__(self, message: str, reason: Reason, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class UnsupportedEventLoop(ResilienceError):
    """Raised at start when the server runs the application on an event loop other than asyncio's (Trio)."""


class ResilienceWarning(UserWarning):
    """Something that was configured has no effect, or less than it seems; the text says what to change."""
