"""Builds the snapshot of a dependency from the live counters. Called under the owner's lock."""

from __future__ import annotations

import math

from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.groups import OTHERS, GroupState, GroupStates
from resilient_mw.calls.state import DependencyState
from resilient_mw.core.call_snapshot import GroupSnapshot, HedgeSnapshot, KeyedSnapshot
from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.core.snapshot import Histogram


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
        groups=_groups(now, state),
        keyed=_keyed(state.groups),
        circuit=None if breaker is None else breaker.figures(),
        fallbacks=dict(state.fallbacks),
        watch_errors=state.watch_errors,
        hedges=_hedges(now, state),
    )


def _groups(now: float, state: DependencyState) -> dict[str, GroupSnapshot]:
    states = {} if state.groups is None else dict(state.groups.named)
    if state.groups is not None or state.group.timeout is not None:
        states[OTHERS] = state.group
    return {name: _group(now, state, group) for name, group in states.items()}


def _group(now: float, state: DependencyState, group: GroupState) -> GroupSnapshot:
    breaker, adaptive = group.breaker, group.timeout
    timeout = state.timeout if adaptive is None else adaptive.seconds(now)
    return GroupSnapshot(
        breaker=None if breaker is None else breaker.state.value,
        timeout=None if timeout == math.inf else timeout,
        under_way=group.under_way,
    )


def _keyed(groups: GroupStates | None) -> KeyedSnapshot | None:
    if groups is None:
        return None
    breakers = [state.breaker for state in groups.keyed()]
    opened = sum(breaker is not None and breaker.state is not BreakerState.CLOSED for breaker in breakers)
    return KeyedSnapshot(len(groups), opened, groups.evicted, groups.shared)


def _hedges(now: float, state: DependencyState) -> HedgeSnapshot | None:
    hedging = state.hedging
    if hedging is None:
        return None
    refused = {refusal.value: count for refusal, count in hedging.refused.items()}
    return HedgeSnapshot(hedging.made, hedging.won, refused, hedging.delay(state.group.heads, now))


def _copy(histogram: Histogram) -> Histogram:
    copied = Histogram()
    copied.merge(histogram)
    return copied
