"""What a hedge needs before it begins: it waits for nothing."""

from __future__ import annotations

from resilient_mw.calls.breaker import CLOSED, Breaker, Permit
from resilient_mw.calls.hedge import HedgeRefusal
from resilient_mw.calls.state import DependencyState


def take(
    state: DependencyState, breaker: Breaker | None, now: float, left: float
) -> HedgeRefusal | Permit | None:
    """Take what a hedge needs: return its permit, None without a breaker, or what is missing, with nothing taken.

    Args:
        state: the dependency's.
        breaker: of its route group.
        now: the instant.
        left: of the caller's budget, in seconds.
    """
    if left < max(state.typical(), state.least):
        return HedgeRefusal.DEADLINE
    if breaker is not None:
        breaker.notice(now)
        if breaker.state is not CLOSED:
            return HedgeRefusal.CIRCUIT_OPEN
    if state.throttle is not None and state.throttle.refuses(now):
        return HedgeRefusal.THROTTLED
    if not state.take_slot():
        return HedgeRefusal.BULKHEAD_FULL
    if state.budget is not None and not state.budget.reserve(now, now):
        state.give_slot()
        return HedgeRefusal.BUDGET
    permit = None if breaker is None else breaker.ask(now)
    if breaker is None or permit is not None:
        return permit
    state.give_slot()
    if state.budget is not None:
        state.budget.give_back(now)
    return HedgeRefusal.CIRCUIT_OPEN
