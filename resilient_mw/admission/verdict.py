"""How a run ended: what an application's exception reports, and the outcome under which the run is counted."""

from __future__ import annotations

from resilient_mw.admission.entry import COMPLETED, ERROR
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import DeadlineExceeded, RequestCancelled

LATE_AFTER = 0.25
"""Seconds after its deadline from which work that goes on is counted as late."""


def reported_reason(error: BaseException, now: float, deadline_at: float) -> CancelReason | None:
    """Return the cancel reason that an application's exception reports; None if it is the application's own.

    Only the exceptions of `check()` report one: a foreign TimeoutError is never ours, and a `DeadlineExceeded` before
    the request's deadline comes from a smaller budget inside it.

    Args:
        error: what left the application.
        now: the instant at which it did.
        deadline_at: the request's deadline.
    """
    if isinstance(error, RequestCancelled) and isinstance(error.reason, CancelReason):
        return error.reason
    if isinstance(error, DeadlineExceeded) and now >= deadline_at:
        return CancelReason.DEADLINE
    return None


def is_bodiless(method: str, status: str) -> bool:
    """Return whether the head is the whole response, whatever body the application makes.

    Args:
        method: the request's method.
        status: the status code, text may follow it.
    """
    return method == "HEAD" or status[:3] in {"204", "304"}


def is_late(began_at: float, ended_at: float, deadline_at: float) -> bool:
    """Return whether work went on for too long after its deadline.

    Args:
        began_at, ended_at: the instants of the last step of the work. Time between steps, in which a slow peer takes
            what was produced, is not work.
        deadline_at: the request's deadline.
    """
    return ended_at - max(began_at, deadline_at) > LATE_AFTER


def outcome_of(reason: CancelReason | None, *, failed: bool, complete: bool) -> str:
    """Return the outcome under which a run is counted.

    Args:
        reason: why it was cancelled, None if it was not.
        failed: whether an exception of its own left the application.
        complete: whether the application handed out its whole response. One that ends without is one that the server
            gave up: the caller has gone.
    """
    if reason is not None:
        return reason.value
    if failed:
        return ERROR
    return COMPLETED if complete else CancelReason.CLIENT_DISCONNECT.value
