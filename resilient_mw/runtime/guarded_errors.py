"""The error of a guarded call that took too long, where it may have been, and why any call is refused on this side."""

from __future__ import annotations

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Phase, Refuse
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.core.rejection import Reason

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


def refused_why(dependency: Dependency, action: Refuse) -> str:
    """Return why a dependency is not asked, and what to change."""
    name = f"the dependency {dependency.name!r}"
    if action.reason is Reason.CIRCUIT_OPEN:
        if action.retry_in:
            why = f"its circuit is open, and the next trial is in {action.retry_in:.1f} s"
        else:
            why = "its circuit is not closed and all trials are under way, or it lets more pass by degrees, or is held open"
        text = (
            f"{name} is not asked at the moment: {why}. Answer without it, or change Dependency(breaker=...)"
        )
    elif action.reason is Reason.BULKHEAD_FULL:
        many = "as many as its adaptive limit allows, of" if dependency.adaptive else "all"
        text = (
            f"{name} gets no more calls at the moment: {many} {dependency.most_attempts} that may be under way at once are. "
            "Answer without it, or raise Dependency(bulkhead=...)"
        )
    elif action.reason is Reason.THROTTLED:
        text = (
            f"{name} refuses most of what it gets, so a part of the calls is not sent. Answer without it, call it less, or "
            "change Dependency(throttle=...)"
        )
    else:
        text = (
            f"the caller's budget is too small to ask {name}: less than its reserve of {dependency.reserve:g} s and its "
            f"smallest useful budget of {dependency.smallest_budget:g} s is left. Give the call more time, or lower "
            "Dependency(reserve=..., smallest_budget=...)"
        )
    return text
