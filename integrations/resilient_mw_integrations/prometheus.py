"""Metrics for Prometheus: a collector that reads the figures of all applications and dependencies when it is scraped.

The way of a request looks up no label and formats no text; it counts plain integers, which are read here.

Example:
    from resilient_mw_integrations.prometheus import install

    install()  # into prometheus_client's default registry

A histogram of a route appears with its first observation, a count by reason or outcome with its first event; all other
figures are there, as 0, from the route's first request.

Figures of applications of the same name are added up: counters, gauges and histograms alike; `draining` is 1 if one of
them drains, `drain_rate` is the sum of those that are known, and overload level and signals are those of
the worst. Give two applications of one process two names
(`ServerPolicy(name=...)`) to tell them apart. Dependencies of the same name are added up in the same way, and the state of
a circuit is 1 if that of one of them is.

The figures are those of one process. Behind a server with several worker processes each scrape reaches one of them;
prometheus_client's multi-process mode does not know collectors such as this one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from resilient_mw.core import ports
from resilient_mw.core.snapshot import (
    BUCKETS,
)
from resilient_mw.runtime.forks import renew_lock
from resilient_mw_integrations._prometheus_sums import Sums

PREFIX = "resilient_mw_"
BOUNDS = (*map(floatToGoString, BUCKETS), "+Inf")


class Family(NamedTuple):
    """One metric: its name without the prefix, its kind, its labels, its help text."""

    name: str
    kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    labels: tuple[str, ...]
    text: str


APP = ("app",)
CLASS = ("app", "priority")
ROUTE = ("app", "route", "priority")
TO = ("dependency",)
GROUP = ("dependency", "group")
JOBS = ("jobs",)
JOB_CLASS = ("jobs", "priority")
ASKED = ("app", "transition")
FAMILIES = (
    Family("requests_arrived", CounterMetricFamily, ROUTE, "Requests that reached the admission decision."),
    Family("requests_admitted", CounterMetricFamily, ROUTE, "Requests that were let in."),
    Family("requests_left", CounterMetricFamily, ROUTE, "Requests whose caller left while they waited for a slot."),
    Family("requests_refused", CounterMetricFamily, (*ROUTE, "reason"), "Refused requests by reason."),
    Family("requests_ended", CounterMetricFamily, (*ROUTE, "outcome"), "Admitted requests that ended, by outcome."),
    Family("work_after_cancel", CounterMetricFamily, ROUTE, "Runs still at work 250 ms after they were cancelled."),
    Family("in_flight", GaugeMetricFamily, CLASS, "Slots in use; requests for the class exempt."),
    Family("queue_length", GaugeMetricFamily, CLASS, "Requests that wait for a slot."),
    Family("limit", GaugeMetricFamily, APP, "Slots that exist."),
    Family("queue_limit", GaugeMetricFamily, APP, "Places in the wait queue."),
    Family("draining", GaugeMetricFamily, APP, "1 while new requests are refused because the server will stop."),
    Family("drain_rate", GaugeMetricFamily, APP, "Slots released per second while somebody waits; absent if unknown."),
    Family("queue_wait_seconds", HistogramMetricFamily, ROUTE, "How long admitted requests that had to queue waited."),
    Family("run_seconds", HistogramMetricFamily, ROUTE, "How long completed requests took once they were admitted."),
    Family("ignored_headers", CounterMetricFamily, ("app", "header"), "Header values outside the grammar."),
    Family("guard_errors", CounterMetricFamily, APP, "Errors of the guard itself that let a request pass unguarded."),
    Family("overload_level", GaugeMetricFamily, APP, "How overloaded the service is, 0 to 1."),
    Family("overload_state", GaugeMetricFamily, (*APP, "state"), "1 for the state that the level means."),
    Family("overload_signal", GaugeMetricFamily, (*APP, "signal"), "Level of each signal that is known, 0 to 1."),
    Family("overload_transitions", CounterMetricFamily, (*APP, "before", "after"), "Changes of the overload state."),
    Family("tenant_requests", CounterMetricFamily, (*APP, "tenant", "outcome"), "Requests of the tenants that are named."),
    Family("quota_limited", CounterMetricFamily, (*APP, "quota"), "Requests that were refused for a quota."),
    Family("quota_without_store", CounterMetricFamily, APP, "Requests whose quotas were decided without the store."),
    Family("websockets_arrived", CounterMetricFamily, ROUTE, "Websockets that reached the admission decision."),
    Family("websockets_refused", CounterMetricFamily, (*ROUTE, "reason"), "Refused websockets by reason."),
    Family("websockets_ended", CounterMetricFamily, (*ROUTE, "outcome"), "Websockets that were open, by outcome."),
    Family("websockets_open", GaugeMetricFamily, CLASS, "Websockets that are open."),
    Family("websocket_limit", GaugeMetricFamily, APP, "Most websockets at once; absent where they pass untouched."),
    Family("streams_open", GaugeMetricFamily, ROUTE, "Open streams: their slot came back with the head of the response."),
    Family("streams_ended", CounterMetricFamily, (*ROUTE, "outcome"), "Streams that have ended, by outcome."),
    Family("stream_limit", GaugeMetricFamily, APP, "Most streams at once."),
    Family("shadow_refused", CounterMetricFamily, (*ROUTE, "reason"), "Requests that shadow mode let pass, by reason."),
    Family("shadow_queued", CounterMetricFamily, ROUTE, "Requests that would have had to wait, but for shadow mode."),
    Family("shadow_cancelled", CounterMetricFamily, ROUTE, "Runs that outlived a deadline that is in shadow mode."),
    Family("shadow_outside", GaugeMetricFamily, APP, "Requests that run without a slot in shadow mode; absent outside."),
    Family("calls", CounterMetricFamily, TO, "Calls to a dependency, each made of one or more attempts."),
    Family("attempts", CounterMetricFamily, (*TO, "outcome"), "Ended attempts by outcome."),
    Family("retries", CounterMetricFamily, TO, "Attempts after the first one of a call, hedges excepted."),
    Family("retries_refused", CounterMetricFamily, (*TO, "reason"), "Retries that were not made, by reason."),
    Family("hedges", CounterMetricFamily, TO, "Attempts beside others that took long."),
    Family("hedges_won", CounterMetricFamily, TO, "Those of them whose answer was delivered."),
    Family("hedges_refused", CounterMetricFamily, (*TO, "reason"), "Hedges that were not made, by reason."),
    Family("hedge_delay_seconds", GaugeMetricFamily, TO, "After what time an attempt is hedged now; absent if unknown."),
    Family("calls_refused", CounterMetricFamily, (*TO, "reason"), "Attempts that were refused on this side, by reason."),
    Family("calls_expired", CounterMetricFamily, (*TO, "phase"), "Calls whose deadline passed, by phase."),
    Family("fallbacks", CounterMetricFamily, (*TO, "kind"), "Answers that stood in for an error, by kind."),
    Family("call_watch_errors", CounterMetricFamily, TO, "Errors of those who watch calls, such as a tracer."),
    Family("breaker_state", GaugeMetricFamily, (*TO, "state"), "1 for the state that the circuit is in."),
    Family("breaker_transitions", CounterMetricFamily, (*TO, "before", "after"), "Changes of the circuit's state."),
    Family("breaker_held", GaugeMetricFamily, TO, "1 while the circuit is held open or closed by hand."),
    Family("breaker_slow", CounterMetricFamily, TO, "Attempts that were counted as slow."),
    Family("breaker_ramped", CounterMetricFamily, TO, "Attempts that were refused while traffic came back by degrees."),
    Family("breaker_would_refuse", CounterMetricFamily, TO, "Attempts that a circuit in shadow mode let pass."),
    Family("bulkhead_in_use", GaugeMetricFamily, TO, "Attempts under way, bodies included."),
    Family("bulkhead_limit", GaugeMetricFamily, TO, "Most attempts at once; absent if there is no bound."),
    Family("throttle_probability", GaugeMetricFamily, TO, "Share of the attempts refused by the throttle; absent without."),
    Family("attempt_timeout_seconds", GaugeMetricFamily, GROUP, "What an attempt may take now; absent if unbounded."),
    Family("group_breaker_state", GaugeMetricFamily, (*GROUP, "state"), "1 for the state that a group's circuit is in."),
    Family("keyed_states", GaugeMetricFamily, TO, "States of keyed route groups."),
    Family("keyed_open", GaugeMetricFamily, TO, "Those of them whose circuit is not closed."),
    Family("keyed_evicted", CounterMetricFamily, TO, "States of keyed route groups that were forgotten."),
    Family("keyed_shared", CounterMetricFamily, TO, "Calls whose key found no place for a state of its own."),
    Family("attempt_seconds", HistogramMetricFamily, TO, "How long attempts took that say how long one usually takes."),
    Family("budget_left_seconds", HistogramMetricFamily, TO, "What the caller had left when an attempt began."),
    Family("jobs_queue_length", GaugeMetricFamily, JOB_CLASS, "Jobs that are promised and have not begun."),
    Family("jobs_waiting", GaugeMetricFamily, JOB_CLASS, "Callers who wait for a place in a queue of jobs."),
    Family("jobs_promised", CounterMetricFamily, JOB_CLASS, "Jobs that were promised in memory."),
    Family("jobs_deferred", CounterMetricFamily, JOB_CLASS, "Jobs that were put into the durable store."),
    Family("jobs_refused", CounterMetricFamily, (*JOB_CLASS, "reason"), "Jobs that were not promised, by reason."),
    Family("jobs_ended", CounterMetricFamily, (*JOB_CLASS, "outcome"), "Jobs that have ended, by outcome."),
    Family("jobs_running", GaugeMetricFamily, JOBS, "Jobs at work."),
    Family("jobs_workers", GaugeMetricFamily, JOBS, "Most jobs at work."),
    Family("jobs_overdue", GaugeMetricFamily, JOBS, "Jobs at work whose lease is over."),
    Family("jobs_oldest_seconds", GaugeMetricFamily, JOBS, "How long the oldest job in the queue has waited."),
    Family("jobs_redelivered", CounterMetricFamily, JOBS, "Durable jobs that were delivered once more."),
    Family("jobs_lost_leases", CounterMetricFamily, JOBS, "Durable jobs that ended after their claim had."),
    Family("jobs_store_errors", CounterMetricFamily, JOBS, "Questions that the store of durable jobs did not answer."),
    Family("jobs_stored", GaugeMetricFamily, (*JOBS, "state"), "Jobs in the durable store, as it was last asked."),
    Family("jobs_stored_oldest_seconds", GaugeMetricFamily, JOBS, "How long the oldest of them has waited."),
    Family("idempotency_requests", CounterMetricFamily, (*APP, "outcome"), "Requests with idempotency keys, by outcome."),
    Family("idempotency_waiting", GaugeMetricFamily, APP, "Repeats that wait for the answer of a first request."),
    Family("idempotency_places", GaugeMetricFamily, APP, "Most repeats that wait."),
    Family("idempotency_store_asked", CounterMetricFamily, ASKED, "Questions to the store of idempotency keys."),
    Family("idempotency_store_failed", CounterMetricFamily, ASKED, "Those of them that it could not answer."),
    Family("idempotency_store_seconds", CounterMetricFamily, ASKED, "How long they took, all together."),
)  # fmt: skip


class ResilienceCollector(Collector):
    """Gives the figures of every protected application and every dependency of this process.

    Register it with `install()`, or with `registry.register(ResilienceCollector())`.
    """

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values."""
        return Figures().metrics()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with the values of this instant."""
        figures = Figures()
        for snapshot in ports.snapshots():
            figures.add(snapshot)
        for dependency in ports.dependency_snapshots():
            figures.add_dependency(dependency)
        for jobs in ports.jobs_snapshots():
            figures.add_jobs(jobs)
        for keys in ports.idempotency_snapshots():
            figures.add_idempotency(keys)
        return figures.metrics()


_installed: WeakKeyDictionary[CollectorRegistry, ResilienceCollector] = WeakKeyDictionary()
_installing = threading.Lock()
renew_lock(__name__, "_installing")


def install(registry: CollectorRegistry | None = None) -> ResilienceCollector:
    """Register the collector; a second call for the same registry changes nothing.

    Args:
        registry: where to register; None: the default registry of prometheus_client.

    Returns:
        The registered collector, for `registry.unregister()`.

    Raises:
        ValueError: something else has registered metrics of the same names.
    """
    target = REGISTRY if registry is None else registry
    with _installing:
        known = _installed.get(target)
        collector = ResilienceCollector() if known is None else known
        try:
            target.register(collector)
        except ValueError:
            if known is None:
                raise
        _installed[target] = collector
    return collector


class Figures(Sums):
    """The sums over some applications and dependencies, as metrics."""

    def __init__(self) -> None:
        super().__init__(family.name for family in FAMILIES)

    def metrics(self) -> list[Metric]:
        """Return all metrics, those without a value as well."""
        return [self._metric(family) for family in FAMILIES]

    def _metric(self, family: Family) -> Metric:
        metric = family.kind(PREFIX + family.name, family.text, labels=family.labels)
        if isinstance(metric, HistogramMetricFamily):
            for labels, times in self._times[family.name].items():
                if not any(times.counts):
                    continue  # Most routes never queue; the rest of their series would say nothing.
                counts = list(zip(BOUNDS, accumulate(times.counts), strict=True))
                metric.add_metric(labels, buckets=counts, sum_value=times.total)
        else:
            for labels, value in self._values[family.name].items():
                metric.add_metric(labels, value)
        return metric
