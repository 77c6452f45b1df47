"""Builds the snapshot of a dependency from the live counters. Called under the owner's lock."""

from __future__ import annotations

from resilient_mw.calls.state import DependencyState
from resilient_mw.core.snapshot import DependencySnapshot, Histogram


def dependency_snapshot(name: str, state: DependencyState, now: float = 0.0) -> DependencySnapshot:
    """Return the figures of one dependency as plain values, as of an instant."""
    breaker = state.breaker
    transitions: dict[tuple[str, str], int] = {} if breaker is None else dict(breaker.counts)
    return DependencySnapshot(
        dependency=name,
        calls=state.calls,
        attempts=dict(state.attempts),
        retries=state.retries,
        refused={reason.value: count for reason, count in state.refusals.items()},
        retries_refused={reason.value: count for reason, count in state.retry_refusals.items()},
        expired={phase.value: count for phase, count in state.expiries.items()},
        in_use=state.in_use,
        bulkhead=state.bulkhead if state.adaptive is None else state.adaptive.limit,
        breaker=None if breaker is None else breaker.state.value,
        transitions=transitions,
        recent_transitions=() if breaker is None else tuple(breaker.transitions),
        seconds=_copy(state.seconds),
        budgets=_copy(state.budgets),
        throttle=None if state.throttle is None else state.throttle.probability(now),
    )


def _copy(histogram: Histogram) -> Histogram:
    copied = Histogram()
    copied.merge(histogram)
    return copied
