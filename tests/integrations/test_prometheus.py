"""The collector: names, labels and values, as Prometheus reads them."""

from __future__ import annotations

import gc
import threading
from typing import Any
from weakref import WeakSet

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from resilient_mw import ServerPolicy
from resilient_mw.admission.decision import ADMITTED
from resilient_mw.core import ports
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.marks import Mark
from resilient_mw.core.snapshot import (
    BUCKETS,
    AppSnapshot,
    ClassSnapshot,
    Histogram,
    OverloadSnapshot,
    RouteSnapshot,
    ShadowRoute,
    ShadowSnapshot,
    StreamRouteSnapshot,
    StreamSnapshot,
    WebsocketSnapshot,
)
from resilient_mw.core.tenant_figures import QuotaSnapshot, TenantSnapshot
from resilient_mw.runtime.guard import Guard, guard_of
from resilient_mw_integrations.prometheus import Figures, ResilienceCollector, install

pytestmark = pytest.mark.usefixtures("own_figures")

ROUTE = {"app", "route", "priority"}
FINAL = {
    "resilient_mw_requests_arrived_total": ROUTE,
    "resilient_mw_requests_admitted_total": ROUTE,
    "resilient_mw_requests_left_total": ROUTE,
    "resilient_mw_requests_refused_total": ROUTE | {"reason"},
    "resilient_mw_requests_ended_total": ROUTE | {"outcome"},
    "resilient_mw_work_after_cancel_total": ROUTE,
    "resilient_mw_in_flight": {"app", "priority"},
    "resilient_mw_queue_length": {"app", "priority"},
    "resilient_mw_limit": {"app"},
    "resilient_mw_queue_limit": {"app"},
    "resilient_mw_draining": {"app"},
    "resilient_mw_drain_rate": {"app"},
    "resilient_mw_queue_wait_seconds_bucket": ROUTE | {"le"},
    "resilient_mw_queue_wait_seconds_count": ROUTE,
    "resilient_mw_queue_wait_seconds_sum": ROUTE,
    "resilient_mw_run_seconds_bucket": ROUTE | {"le"},
    "resilient_mw_run_seconds_count": ROUTE,
    "resilient_mw_run_seconds_sum": ROUTE,
    "resilient_mw_ignored_headers_total": {"app", "header"},
    "resilient_mw_guard_errors_total": {"app"},
    "resilient_mw_overload_level": {"app"},
    "resilient_mw_overload_state": {"app", "state"},
    "resilient_mw_overload_signal": {"app", "signal"},
    "resilient_mw_overload_transitions_total": {"app", "before", "after"},
    "resilient_mw_tenant_requests_total": {"app", "tenant", "outcome"},
    "resilient_mw_quota_limited_total": {"app", "quota"},
    "resilient_mw_quota_without_store_total": {"app"},
    "resilient_mw_websockets_arrived_total": ROUTE,
    "resilient_mw_websockets_refused_total": ROUTE | {"reason"},
    "resilient_mw_websockets_ended_total": ROUTE | {"outcome"},
    "resilient_mw_websockets_open": {"app", "priority"},
    "resilient_mw_websocket_limit": {"app"},
    "resilient_mw_streams_open": ROUTE,
    "resilient_mw_streams_ended_total": ROUTE | {"outcome"},
    "resilient_mw_stream_limit": {"app"},
    "resilient_mw_shadow_refused_total": ROUTE | {"reason"},
    "resilient_mw_shadow_queued_total": ROUTE,
    "resilient_mw_shadow_cancelled_total": ROUTE,
    "resilient_mw_shadow_outside": {"app"},
}


@pytest.fixture(autouse=True)
def own_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_sources", WeakSet())
    monkeypatch.setattr(ports, "_dependencies", WeakSet())


@pytest.fixture
def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    install(made)
    return made


class Fixed:
    """A source that always tells the same."""

    def __init__(self, snapshot: AppSnapshot) -> None:
        self._snapshot = snapshot
        ports.register(self)

    def snapshot(self) -> AppSnapshot:
        return self._snapshot


def times(*seconds: float) -> Histogram:
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    return histogram


def complete(app: str = "shop", factor: int = 1, drain_rate: float | None = 2.5) -> AppSnapshot:
    """Return a snapshot in which every figure is there, and is another one."""
    route = RouteSnapshot(
        "/items/{id}", "normal", 11 * factor, 12 * factor, 13 * factor,
        {"queue_full": 14 * factor, "draining": 15 * factor}, {"completed": 16 * factor, "deadline": 17 * factor},
        18 * factor, times(0.002, 100.0), times(0.05, 0.05, 0.2),
    )  # fmt: skip
    socket = RouteSnapshot(
        "/ws", "normal", 63 * factor, 64 * factor, 0, {"websocket_limit": 65 * factor}, {"completed": 66 * factor}, 0,
        times(), times(),
    )  # fmt: skip
    would = ShadowRoute(
        "/items/{id}", "normal", {"queue_full": 72 * factor}, 73 * factor, 74 * factor, times()
    )  # fmt: skip
    classes = (ClassSnapshot("normal", 21 * factor, 22 * factor), ClassSnapshot("exempt", 23 * factor, 0))
    return AppSnapshot(
        app,
        31 * factor,
        32 * factor,
        False,
        drain_rate,
        classes,
        (route,),
        {"grpc-timeout": 41 * factor},
        42 * factor,
        OverloadSnapshot(
            0.05 * factor, "elevated", {"gc": 0.04 * factor}, {("normal", "elevated"): 51 * factor}, ()
        ),
        WebsocketSnapshot(61 * factor, {"normal": 62 * factor, "exempt": 0}, (socket,)),
        StreamSnapshot(
            71 * factor,
            (
                StreamRouteSnapshot(
                    "/events",
                    "normal",
                    72 * factor,
                    {"completed": 73 * factor, "client_disconnect": 74 * factor},
                ),
            ),
        ),
        ShadowSnapshot(("admission",), 71 * factor, (would,)),
        {"acme": TenantSnapshot(81 * factor, 82 * factor, 83 * factor)},
        QuotaSnapshot({"burst": 84 * factor}, 85 * factor),
    )


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Return what Prometheus would store: name and sorted labels to value."""
    found: dict[tuple[str, ...], float] = {}
    for family in parse(generate_latest(registry).decode()):
        for sample in family.samples:
            key = (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items())))
            assert key not in found, f"{key} stands there twice"
            found[key] = sample.value
    return found


def value(registry: CollectorRegistry, name: str, *labels: str) -> float | None:
    return samples(registry).get((f"resilient_mw_{name}", *sorted(labels)))


ITEM = ("app=shop", "route=/items/{id}", "priority=normal")
SOCKET = ("app=shop", "route=/ws", "priority=normal")
EVENTS = ("app=shop", "route=/events", "priority=normal")


def test_names_and_labels_are_the_final_ones(registry: CollectorRegistry) -> None:
    source = Fixed(complete())
    found = {key[0]: {label.partition("=")[0] for label in key[1:]} for key in samples(registry)}
    assert found == FINAL
    assert source is not None


def test_each_figure_is_in_its_place(registry: CollectorRegistry) -> None:
    source = Fixed(complete())
    found = samples(registry)
    expected: dict[tuple[str, ...], Any] = {
        ("requests_arrived_total", *ITEM): 11,
        ("requests_admitted_total", *ITEM): 12,
        ("requests_left_total", *ITEM): 13,
        ("requests_refused_total", *ITEM, "reason=queue_full"): 14,
        ("requests_refused_total", *ITEM, "reason=draining"): 15,
        ("requests_ended_total", *ITEM, "outcome=completed"): 16,
        ("requests_ended_total", *ITEM, "outcome=deadline"): 17,
        ("work_after_cancel_total", *ITEM): 18,
        ("in_flight", "app=shop", "priority=normal"): 21,
        ("queue_length", "app=shop", "priority=normal"): 22,
        ("in_flight", "app=shop", "priority=exempt"): 23,
        ("queue_length", "app=shop", "priority=exempt"): 0,
        ("limit", "app=shop"): 31,
        ("queue_limit", "app=shop"): 32,
        ("draining", "app=shop"): 0,
        ("drain_rate", "app=shop"): 2.5,
        ("ignored_headers_total", "app=shop", "header=grpc-timeout"): 41,
        ("guard_errors_total", "app=shop"): 42,
        ("overload_level", "app=shop"): 0.05,
        ("overload_state", "app=shop", "state=normal"): 0,
        ("overload_state", "app=shop", "state=elevated"): 1,
        ("overload_state", "app=shop", "state=overloaded"): 0,
        ("overload_signal", "app=shop", "signal=gc"): 0.04,
        ("overload_transitions_total", "app=shop", "before=normal", "after=elevated"): 51,
        ("websockets_arrived_total", *SOCKET): 63,
        ("websockets_refused_total", *SOCKET, "reason=websocket_limit"): 65,
        ("websockets_ended_total", *SOCKET, "outcome=completed"): 66,
        ("websockets_open", "app=shop", "priority=normal"): 62,
        ("websockets_open", "app=shop", "priority=exempt"): 0,
        ("websocket_limit", "app=shop"): 61,
        ("streams_open", *EVENTS): 72,
        ("streams_ended_total", *EVENTS, "outcome=completed"): 73,
        ("streams_ended_total", *EVENTS, "outcome=client_disconnect"): 74,
        ("stream_limit", "app=shop"): 71,
        ("shadow_outside", "app=shop"): 71,
        ("shadow_refused_total", *ITEM, "reason=queue_full"): 72,
        ("shadow_queued_total", *ITEM): 73,
        ("shadow_cancelled_total", *ITEM): 74,
        ("tenant_requests_total", "app=shop", "tenant=acme", "outcome=admitted"): 81,
        ("tenant_requests_total", "app=shop", "tenant=acme", "outcome=refused"): 82,
        ("tenant_requests_total", "app=shop", "tenant=acme", "outcome=limited"): 83,
        ("quota_limited_total", "app=shop", "quota=burst"): 84,
        ("quota_without_store_total", "app=shop"): 85,
        ("queue_wait_seconds_count", *ITEM): 2,
        ("queue_wait_seconds_sum", *ITEM): 100.002,
        ("queue_wait_seconds_bucket", *ITEM, "le=0.001"): 0,
        ("queue_wait_seconds_bucket", *ITEM, "le=0.0025"): 1,
        ("queue_wait_seconds_bucket", *ITEM, "le=60.0"): 1,
        ("queue_wait_seconds_bucket", *ITEM, "le=+Inf"): 2,
        ("run_seconds_count", *ITEM): 3,
        ("run_seconds_sum", *ITEM): pytest.approx(0.3),
        ("run_seconds_bucket", *ITEM, "le=0.025"): 0,
        ("run_seconds_bucket", *ITEM, "le=0.05"): 2,
        ("run_seconds_bucket", *ITEM, "le=0.25"): 3,
        ("run_seconds_bucket", *ITEM, "le=+Inf"): 3,
    }
    named = {(f"resilient_mw_{key[0]}", *sorted(key[1:])): each for key, each in expected.items()}
    assert {key: found[key] for key in named} == named
    assert len(found) == len(named) + 2 * (len(BUCKETS) + 1) - 8  # the other buckets
    assert source is not None


def test_applications_of_one_name_are_added_up(registry: CollectorRegistry) -> None:
    sources = [
        Fixed(complete()),
        Fixed(complete(factor=10)),
        Fixed(AppSnapshot("shop", 1, 1, True, None, (), (), {}, 0)),
        Fixed(complete("other", 100, None)),
    ]
    assert value(registry, "requests_arrived_total", *ITEM) == 121
    assert value(registry, "requests_refused_total", *ITEM, "reason=queue_full") == 154
    assert value(registry, "in_flight", "app=shop", "priority=normal") == 231
    assert value(registry, "limit", "app=shop") == 342
    assert value(registry, "draining", "app=shop") == 1
    assert value(registry, "drain_rate", "app=shop") == 5.0
    assert value(registry, "run_seconds_count", *ITEM) == 6
    assert value(registry, "queue_wait_seconds_count", *ITEM) == 4
    assert value(registry, "run_seconds_bucket", *ITEM, "le=0.05") == 4
    assert value(registry, "overload_level", "app=shop") == 0.5  # the worst of them
    assert value(registry, "overload_signal", "app=shop", "signal=gc") == 0.4
    assert value(registry, "overload_transitions_total", "app=shop", "before=normal", "after=elevated") == 561
    assert value(registry, "websockets_open", "app=shop", "priority=normal") == 682
    assert value(registry, "websocket_limit", "app=shop") == 671
    assert value(registry, "streams_open", *EVENTS) == 792
    assert value(registry, "stream_limit", "app=shop") == 781
    assert value(registry, "shadow_outside", "app=shop") == 781
    assert value(registry, "tenant_requests_total", "app=shop", "tenant=acme", "outcome=limited") == 913
    assert value(registry, "quota_limited_total", "app=shop", "quota=burst") == 924
    assert value(registry, "limit", "app=other") == 3100
    assert value(registry, "draining", "app=other") == 0
    assert value(registry, "drain_rate", "app=other") is None
    assert sum(source.snapshot().routes[0].run.total for source in sources[:2]) == pytest.approx(
        0.6
    )  # untouched


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_one_application_that_drains_is_enough(order: tuple[bool, bool]) -> None:
    figures = Figures()
    for draining in order:
        figures.add(AppSnapshot("shop", 1, 1, draining, None, (), (), {}, 0))
    (metric,) = (each for each in figures.metrics() if each.name == "resilient_mw_draining")
    assert [sample.value for sample in metric.samples] == [1]


def test_a_histogram_appears_with_its_first_observation(registry: CollectorRegistry) -> None:
    empty = RouteSnapshot("/x", "normal", 1, 0, 0, {}, {}, 0, Histogram(), Histogram())
    source = Fixed(AppSnapshot("shop", 1, 1, False, None, (), (empty,), {}, 0))
    assert not [key for key in samples(registry) if "_seconds" in key[0]]
    assert value(registry, "requests_left_total", "app=shop", "route=/x", "priority=normal") == 0
    assert source is not None


def test_text_of_any_kind_in_labels(registry: CollectorRegistry) -> None:
    route = RouteSnapshot('/a"\\{b}\n', "normal", 1, 1, 0, {}, {}, 0, Histogram(), Histogram())
    source = Fixed(AppSnapshot("shop", 1, 1, False, None, (), (route,), {}, 0))
    assert value(registry, "requests_arrived_total", "app=shop", 'route=/a"\\{b}\n', "priority=normal") == 1
    assert source is not None


def test_openmetrics_reads_it_as_well(registry: CollectorRegistry) -> None:
    source = Fixed(complete())
    text: str = openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    families = {family.name: family.type for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert families["resilient_mw_requests_arrived"] == "counter"
    assert families["resilient_mw_run_seconds"] == "histogram"
    assert families["resilient_mw_in_flight"] == "gauge"
    assert source is not None


def test_every_metric_says_what_it_is(registry: CollectorRegistry) -> None:
    described = list(ResilienceCollector().describe())
    assert [metric.samples for metric in described] == [[]] * len(described)
    assert {metric.name for metric in described} == {
        metric.name for metric in ResilienceCollector().collect()
    }
    for metric in described:
        assert metric.documentation.endswith("."), metric.name


# -- a real guard ------------------------------------------------------------------------------------------------------


@pytest.fixture
def guard() -> Guard:
    return guard_of(ServerPolicy(name="shop", limit=2, queue=1))


def test_what_a_guard_counts(registry: CollectorRegistry, guard: Guard) -> None:
    entry = guard.entries.get("/items/{id}", Mark())
    now = guard.clock.now()
    assert guard.arrive(entry, now, now + 5.0) is ADMITTED
    assert guard.arrive(entry, now, now + 5.0) is ADMITTED
    waiter = guard.arrive(entry, now, now + 5.0).waiter
    assert waiter is not None
    assert guard.arrive(entry, now, now + 5.0).reason is not None
    guard.ignored(("grpc-timeout",))
    assert value(registry, "in_flight", "app=shop", "priority=normal") == 2
    assert value(registry, "queue_length", "app=shop", "priority=normal") == 1
    assert value(registry, "requests_arrived_total", *ITEM) == 4
    assert value(registry, "requests_admitted_total", *ITEM) == 2
    assert value(registry, "requests_refused_total", *ITEM, "reason=queue_full") == 1
    assert value(registry, "ignored_headers_total", "app=shop", "header=grpc-timeout") == 1
    assert value(registry, "drain_rate", "app=shop") is None
    guard.leave(waiter)
    guard.end(entry, 1, "completed", 0.02)
    guard.late(entry, CancelReason.DEADLINE)
    guard.end(entry, 1, "deadline", 0.5)
    guard.drain()
    assert value(registry, "in_flight", "app=shop", "priority=normal") == 0
    assert value(registry, "requests_left_total", *ITEM) == 1
    assert value(registry, "requests_ended_total", *ITEM, "outcome=deadline") == 1
    assert value(registry, "work_after_cancel_total", *ITEM) == 1
    assert value(registry, "run_seconds_count", *ITEM) == 1
    assert value(registry, "draining", "app=shop") == 1


def test_two_guards_of_one_name_make_no_series_twice(registry: CollectorRegistry) -> None:
    policies = [ServerPolicy(name="shop", limit=3) for _ in range(2)]
    for policy in policies:
        guard = guard_of(policy)
        now = guard.clock.now()
        guard.arrive(guard.entries.get("/items/{id}", Mark()), now, now + 5.0)
    assert value(registry, "limit", "app=shop") == 6
    assert value(registry, "requests_admitted_total", *ITEM) == 2


def test_an_application_that_has_gone_is_not_reported(registry: CollectorRegistry) -> None:
    policy: Any = ServerPolicy(name="short")
    guard_of(policy)
    assert value(registry, "limit", "app=short") == 40
    del policy
    gc.collect()
    assert value(registry, "limit", "app=short") is None


def test_scrapes_during_traffic_see_whole_figures(registry: CollectorRegistry, guard: Guard) -> None:
    entry = guard.entries.get("/items/{id}", Mark())
    stop = threading.Event()

    def traffic() -> None:
        while not stop.is_set():
            now = guard.clock.now()
            if guard.arrive(entry, now, now + 5.0) is ADMITTED:
                guard.end(entry, 1, "completed", 0.001)

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        for _ in range(50):
            found = samples(registry)
            arrived = found.get(("resilient_mw_requests_arrived_total", *sorted(ITEM)), 0)
            admitted = found.get(("resilient_mw_requests_admitted_total", *sorted(ITEM)), 0)
            assert arrived == admitted
    finally:
        stop.set()
        thread.join()


def test_the_overload_of_a_guard(registry: CollectorRegistry, guard: Guard) -> None:
    assert value(registry, "overload_level", "app=shop") == 0.0
    assert value(registry, "overload_state", "app=shop", "state=normal") == 1
    assert value(registry, "overload_signal", "app=shop", "signal=slots") == 0.0
    unmeasured = guard_of(ServerPolicy(name="unmeasured", overload=None))
    assert value(registry, "limit", "app=unmeasured") == 40
    assert value(registry, "overload_level", "app=unmeasured") is None
    assert unmeasured is not guard


# -- registration ------------------------------------------------------------------------------------------------------


def test_install_twice_registers_once() -> None:
    registry = CollectorRegistry()
    collector = install(registry)
    assert install(registry) is collector
    assert len([each for each in registry.collect() if each.name == "resilient_mw_limit"]) == 1
    registry.unregister(collector)
    assert not list(registry.collect())
    assert install(registry) is collector
    assert any(True for _ in registry.collect())


def test_install_uses_the_default_registry() -> None:
    collector = install()
    try:
        assert install(REGISTRY) is collector
        assert "resilient_mw_limit" in {metric.name for metric in REGISTRY.collect()}
    finally:
        REGISTRY.unregister(collector)


def test_a_name_that_is_taken_is_an_error() -> None:
    registry = CollectorRegistry()
    Gauge("resilient_mw_limit", "Somebody else's.", registry=registry)
    for _ in range(2):
        with pytest.raises(ValueError, match="resilient_mw_limit"):
            install(registry)


def test_registration_asks_no_guard() -> None:
    class Broken:
        def snapshot(self) -> AppSnapshot:
            raise RuntimeError("asked")

    broken = Broken()
    ports.register(broken)
    registry = CollectorRegistry(auto_describe=True)
    install(registry)
    with pytest.raises(RuntimeError, match="asked"):
        list[Metric](registry.collect())
