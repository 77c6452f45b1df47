"""Metrics for Prometheus: a collector that reads the figures of all protected applications when it is scraped.

The way of a request looks up no label and formats no text; it counts plain integers, which are read here.

Example:
    from resilient_mw_integrations.prometheus import install

    install()  # into prometheus_client's default registry

A histogram of a route appears with its first observation, a count by reason or outcome with its first event; all other
figures are there, as 0, from the route's first request.

Figures of applications of the same name are added up: counters, gauges and histograms alike; `draining` is 1 if one of
them drains, and `drain_rate` is the sum of those that are known. Give two applications of one process two names
(`ServerPolicy(name=...)`) to tell them apart.

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
from resilient_mw.core.snapshot import BUCKETS, AppSnapshot, Histogram, RouteSnapshot

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
)  # fmt: skip


class ResilienceCollector(Collector):
    """Gives the figures of every protected application of this process.

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
        return figures.metrics()


_installed: WeakKeyDictionary[CollectorRegistry, ResilienceCollector] = WeakKeyDictionary()
_installing = threading.Lock()


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


class Figures:
    """The sums over some applications, by metric and label values."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {family.name: {} for family in FAMILIES}
        self._times: dict[str, dict[tuple[str, ...], Histogram]] = {family.name: {} for family in FAMILIES}

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
        for route in snapshot.routes:
            self._add_route((*app, route.route, route.priority), route)

    def metrics(self) -> list[Metric]:
        """Return all metrics, those without a value as well."""
        return [self._metric(family) for family in FAMILIES]

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

    def _sum(self, name: str, labels: tuple[str, ...], value: float) -> None:
        values = self._values[name]
        values[labels] = values.get(labels, 0) + value

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
