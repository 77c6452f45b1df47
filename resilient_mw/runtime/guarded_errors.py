"""The error of a guarded call that took too long, and where it may have been."""

from __future__ import annotations

from resilient_mw.calls.events import Phase
from resilient_mw.core.errors import DeadlineExceeded

DOING = {
    Phase.HEAD: "in the function",
    Phase.BACKOFF: "waiting for the next attempt",
    Phase.BULKHEAD: "waiting for a bulkhead slot",
}


class CallExpired(DeadlineExceeded):
    """A guarded call was not over in time: the caller's budget ended it, or the dependency's own timeout its last attempt.

    Attributes:
        phase: where it was: `head` in the function, `backoff` or `bulkhead` before it.
        dependency: the name of the dependency.
    """

    def __init__(self, message: str, phase: Phase, dependency: str) -> None:
        super().__init__(message)
        self.phase = phase
        self.dependency = dependency


def expired_message(dependency: str, phase: Phase, attempts: int) -> str:
    """Return what to say when the deadline passed."""
    where = f"in attempt {attempts}" if attempts else "before the first attempt"
    return (
        f"the deadline passed {where} at {dependency!r}, {DOING.get(phase, phase.value)}. The caller's budget ended the "
        "call, not a timeout of the dependency: give it more time (a larger deadline, or budget()), or ask for less"
    )
