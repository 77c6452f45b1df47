"""Sums of figures over applications and dependencies, by metric and label values, for exporters."""

from __future__ import annotations

from collections.abc import Iterable

from resilient_mw.admission.overload_policy import OverloadState
from resilient_mw.calls.breaker import BreakerState
from resilient_mw.core.call_snapshot import HedgeSnapshot
from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.core.idempotency_snapshot import IdempotencySnapshot
from resilient_mw.core.jobs_snapshot import JobsSnapshot
from resilient_mw.core.snapshot import (
    AppSnapshot,
    Histogram,
    OverloadSnapshot,
    RouteSnapshot,
    ShadowSnapshot,
    StreamSnapshot,
    WebsocketSnapshot,
)


class Sums:
    """The sums over some applications and dependencies.

    Args:
        names: of all metrics.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = list(names)
        self._values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in known}
        self._times: dict[str, dict[tuple[str, ...], Histogram]] = {name: {} for name in known}

    def add(self, snapshot: AppSnapshot) -> None:
        """Add the figures of one application."""
        app = (snapshot.app,)
        self._sum("limit", app, snapshot.limit)
        self._sum("queue_limit", app, snapshot.queue)
        self._sum("guard_errors", app, snapshot.guard_errors)
        if snapshot.drain_rate is not None:
            self._sum("drain_rate", app, snapshot.drain_rate)
        draining = self._values["draining"]
        draining[app] = max(draining.get(app, 0), int(snapshot.draining))
        for header, count in snapshot.ignored_headers.items():
            self._sum("ignored_headers", (*app, header), count)
        for each in snapshot.classes:
            self._sum("in_flight", (*app, each.priority), each.slots)
            self._sum("queue_length", (*app, each.priority), each.queued)
        if snapshot.overload is not None:
            self._add_overload(snapshot.app, snapshot.overload)
        if snapshot.websockets is not None:
            self._add_websockets(snapshot.app, snapshot.websockets)
        if snapshot.streams is not None:
            self._add_streams(snapshot.app, snapshot.streams)
        if snapshot.shadow is not None:
            self._add_shadow(snapshot.app, snapshot.shadow)
        self._add_tenants(snapshot)
        for route in snapshot.routes:
            self._add_route((*app, route.route, route.priority), route)

    def add_dependency(self, snapshot: DependencySnapshot) -> None:
        """Add the figures of one dependency."""
        to = (snapshot.dependency,)
        self._sum("calls", to, snapshot.calls)
        self._sum("retries", to, snapshot.retries)
        self._sum("call_watch_errors", to, snapshot.watch_errors)
        self._sum("bulkhead_in_use", to, snapshot.in_use)
        if snapshot.bulkhead is not None:
            self._sum("bulkhead_limit", to, snapshot.bulkhead)
        if snapshot.throttle is not None:
            self._worst("throttle_probability", to, snapshot.throttle)
        for name, counts in (
            ("attempts", snapshot.attempts),
            ("retries_refused", snapshot.retries_refused),
            ("calls_refused", snapshot.refused),
            ("calls_expired", snapshot.expired),
            ("fallbacks", snapshot.fallbacks),
        ):
            for label, count in counts.items():
                self._sum(name, (*to, label), count)
        if snapshot.breaker is not None:
            states = self._values["breaker_state"]
            for state in BreakerState:
                is_it = int(state.value == snapshot.breaker)
                states[*to, state.value] = max(states.get((*to, state.value), 0), is_it)
        for change, count in snapshot.transitions.items():
            self._sum("breaker_transitions", (*to, *change), count)
        self._add_groups(to, snapshot)
        if snapshot.hedges is not None:
            self._add_hedges(to, snapshot.hedges)
        if snapshot.circuit is not None:
            self._worst("breaker_held", to, int(snapshot.circuit.held))
            self._sum("breaker_slow", to, snapshot.circuit.slow)
            self._sum("breaker_ramped", to, snapshot.circuit.ramped)
            self._sum("breaker_would_refuse", to, snapshot.circuit.would_refuse)
        self._times["attempt_seconds"].setdefault(to, Histogram()).merge(snapshot.seconds)
        self._times["budget_left_seconds"].setdefault(to, Histogram()).merge(snapshot.budgets)

    def add_jobs(self, snapshot: JobsSnapshot) -> None:
        """Add the figures of one queue of jobs."""
        jobs = (snapshot.jobs,)
        for name, value in (
            ("running", snapshot.running),
            ("workers", snapshot.workers),
            ("overdue", snapshot.overdue),
            ("redelivered", snapshot.redelivered),
            ("lost_leases", snapshot.lost),
            ("store_errors", snapshot.unreachable),
        ):
            self._sum(f"jobs_{name}", jobs, value)
        self._worst("jobs_oldest_seconds", jobs, snapshot.oldest)
        for each in snapshot.classes:
            labels = (*jobs, each.priority)
            self._sum("jobs_queue_length", labels, each.queued)
            self._sum("jobs_waiting", labels, each.waiting)
            self._sum("jobs_promised", labels, each.promised)
            self._sum("jobs_deferred", labels, each.deferred)
            for reason, count in each.refused.items():
                self._sum("jobs_refused", (*labels, reason), count)
            for outcome, count in each.ended.items():
                self._sum("jobs_ended", (*labels, outcome), count)
        store = snapshot.store
        if store is not None:  # two queues may ask the same one
            self._worst("jobs_stored_oldest_seconds", jobs, store.oldest)
            for state, count in (
                ("waiting", sum(store.waiting.values())),
                ("leased", store.leased),
                ("dead", store.dead),
            ):
                self._worst("jobs_stored", (*jobs, state), count)

    def add_idempotency(self, snapshot: IdempotencySnapshot) -> None:
        """Add the figures of the idempotency keys of one application."""
        app = (snapshot.app,)
        self._sum("idempotency_waiting", app, snapshot.waiting)
        self._sum("idempotency_places", app, snapshot.places)
        for outcome, count in snapshot.outcomes.items():
            self._sum("idempotency_requests", (*app, outcome), count)
        for transition, each in snapshot.store.items():
            labels = (*app, transition)
            self._sum("idempotency_store_asked", labels, each.asked)
            self._sum("idempotency_store_failed", labels, each.failed)
            self._sum("idempotency_store_seconds", labels, each.microseconds / 1_000_000)

    def _add_hedges(self, to: tuple[str], hedges: HedgeSnapshot) -> None:
        self._sum("hedges", to, hedges.made)
        self._sum("hedges_won", to, hedges.won)
        for reason, count in hedges.refused.items():
            self._sum("hedges_refused", (*to, reason), count)
        if hedges.delay is not None:
            self._worst("hedge_delay_seconds", to, hedges.delay)

    def _add_groups(self, to: tuple[str], snapshot: DependencySnapshot) -> None:
        for group, figures in snapshot.groups.items():
            if figures.timeout is not None:
                self._worst("attempt_timeout_seconds", (*to, group), figures.timeout)
            if figures.breaker is not None:
                for state in BreakerState:
                    is_it = int(state.value == figures.breaker)
                    self._worst("group_breaker_state", (*to, group, state.value), is_it)
        if snapshot.keyed is not None:
            for name in ("states", "open", "evicted", "shared"):
                self._sum(f"keyed_{name}", to, getattr(snapshot.keyed, name))

    def _add_overload(self, app: str, overload: OverloadSnapshot) -> None:
        self._worst("overload_level", (app,), overload.level)
        for state in OverloadState:
            self._worst("overload_state", (app, state.value), int(state.value == overload.state))
        for signal, level in overload.signals.items():
            self._worst("overload_signal", (app, signal), level)
        for change, count in overload.transitions.items():
            self._sum("overload_transitions", (app, *change), count)

    def _add_tenants(self, snapshot: AppSnapshot) -> None:
        for tenant, counts in snapshot.tenants.items():
            for outcome in ("admitted", "refused", "limited"):
                self._sum("tenant_requests", (snapshot.app, tenant, outcome), getattr(counts, outcome))
        if snapshot.quotas is not None:
            self._sum("quota_without_store", (snapshot.app,), snapshot.quotas.without_store)
            for quota, count in snapshot.quotas.limited.items():
                self._sum("quota_limited", (snapshot.app, quota), count)

    def _add_websockets(self, app: str, websockets: WebsocketSnapshot) -> None:
        self._sum("websocket_limit", (app,), websockets.limit)
        for priority, count in websockets.opened.items():
            self._sum("websockets_open", (app, priority), count)
        for route in websockets.routes:
            labels = (app, route.route, route.priority)
            self._sum("websockets_arrived", labels, route.arrived)
            for reason, count in route.refused.items():
                self._sum("websockets_refused", (*labels, reason), count)
            for outcome, count in route.outcomes.items():
                self._sum("websockets_ended", (*labels, outcome), count)

    def _add_streams(self, app: str, streams: StreamSnapshot) -> None:
        self._sum("stream_limit", (app,), streams.limit)
        for route in streams.routes:
            labels = (app, route.route, route.priority)
            self._sum("streams_open", labels, route.opened)
            for outcome, count in route.ended.items():
                self._sum("streams_ended", (*labels, outcome), count)

    def _add_shadow(self, app: str, shadow: ShadowSnapshot) -> None:
        self._sum("shadow_outside", (app,), shadow.outside)
        for route in shadow.routes:
            labels = (app, route.route, route.priority)
            self._sum("shadow_queued", labels, route.queued)
            self._sum("shadow_cancelled", labels, route.cancelled)
            for reason, count in route.refused.items():
                self._sum("shadow_refused", (*labels, reason), count)

    def _add_route(self, labels: tuple[str, ...], route: RouteSnapshot) -> None:
        self._sum("requests_arrived", labels, route.arrived)
        self._sum("requests_admitted", labels, route.admitted)
        self._sum("requests_left", labels, route.left)
        self._sum("work_after_cancel", labels, route.late)
        for reason, count in route.refused.items():
            self._sum("requests_refused", (*labels, reason), count)
        for outcome, count in route.outcomes.items():
            self._sum("requests_ended", (*labels, outcome), count)
        self._times["queue_wait_seconds"].setdefault(labels, Histogram()).merge(route.wait)
        self._times["run_seconds"].setdefault(labels, Histogram()).merge(route.run)

    def _worst(self, name: str, labels: tuple[str, ...], value: float) -> None:
        values = self._values[name]
        values[labels] = max(values.get(labels, 0), value)

    def _sum(self, name: str, labels: tuple[str, ...], value: float) -> None:
        values = self._values[name]
        values[labels] = values.get(labels, 0) + value
