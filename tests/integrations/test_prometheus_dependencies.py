"""The figures of dependencies, as Prometheus reads them."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core import ports
from resilient_mw.core.call_snapshot import GroupSnapshot, HedgeSnapshot, KeyedSnapshot
from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.core.snapshot import BUCKETS, Histogram, Transition
from resilient_mw.runtime.context import current
from resilient_mw_integrations.httpx import CallRefused, ResilientTransport
from resilient_mw_integrations.prometheus import install


@pytest.fixture(autouse=True)
def own_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_sources", WeakSet())
    monkeypatch.setattr(ports, "_dependencies", WeakSet())


@pytest.fixture
def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    install(made)
    return made


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Return name without prefix and sorted labels to value."""
    return {
        (
            sample.name.removeprefix("resilient_mw_"),
            *(f"{name}={value}" for name, value in sorted(sample.labels.items())),
        ): sample.value
        for family in parse(generate_latest(registry).decode())
        for sample in family.samples
        if "dependency" in sample.labels  # other tests of this process have figures of other things
    }


class Fixed:
    """A source that always tells the same."""

    def __init__(self, snapshot: DependencySnapshot) -> None:
        self._snapshot = snapshot
        ports.register_dependency(self)

    def snapshot(self) -> DependencySnapshot:
        return self._snapshot


def times(*seconds: float) -> Histogram:
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    return histogram


def complete(factor: int = 1, breaker: str | None = "open", bulkhead: int | None = 7) -> DependencySnapshot:
    """Return a snapshot in which every figure is there, and is another one."""
    return DependencySnapshot(
        dependency="prices",
        calls=1 * factor,
        attempts={"2xx": 2 * factor, "timeout": 3 * factor},
        retries=4 * factor,
        refused={"circuit_open": 5 * factor},
        retries_refused={"budget": 6 * factor},
        expired={"head": 8 * factor},
        in_use=9 * factor,
        bulkhead=bulkhead,
        breaker=breaker,
        transitions={("closed", "open"): 10 * factor},
        recent_transitions=(Transition(1.0, "closed", "open"),),
        seconds=times(0.002),
        budgets=times(0.3, 0.3),
        throttle=0.25,
        groups={
            "search": GroupSnapshot(breaker="open", timeout=0.4, under_way=2),
            "others": GroupSnapshot(breaker=None, timeout=None, under_way=0),
        },
        keyed=KeyedSnapshot(states=11 * factor, open=12 * factor, evicted=13 * factor, shared=14 * factor),
        watch_errors=15 * factor,
        hedges=HedgeSnapshot(made=18 * factor, won=16 * factor, refused={"budget": 17 * factor}, delay=0.125),
    )


P = "dependency=prices"


def test_each_figure_is_in_its_place(registry: CollectorRegistry) -> None:
    source = Fixed(complete())
    found = samples(registry)
    assert source is not None
    buckets = {key: found.pop(key) for key in list(found) if key[0].endswith("_bucket")}
    assert found == {
        ("calls_total", P): 1,
        ("attempts_total", P, "outcome=2xx"): 2,
        ("attempts_total", P, "outcome=timeout"): 3,
        ("retries_total", P): 4,
        ("calls_refused_total", P, "reason=circuit_open"): 5,
        ("retries_refused_total", P, "reason=budget"): 6,
        ("bulkhead_limit", P): 7,
        ("throttle_probability", P): 0.25,
        ("calls_expired_total", P, "phase=head"): 8,
        ("bulkhead_in_use", P): 9,
        ("breaker_transitions_total", "after=open", "before=closed", P): 10,
        ("breaker_state", P, "state=closed"): 0,
        ("breaker_state", P, "state=open"): 1,
        ("breaker_state", P, "state=half_open"): 0,
        ("attempt_timeout_seconds", P, "group=search"): 0.4,
        ("group_breaker_state", P, "group=search", "state=closed"): 0,
        ("group_breaker_state", P, "group=search", "state=open"): 1,
        ("group_breaker_state", P, "group=search", "state=half_open"): 0,
        ("keyed_states", P): 11,
        ("keyed_open", P): 12,
        ("keyed_evicted_total", P): 13,
        ("keyed_shared_total", P): 14,
        ("call_watch_errors_total", P): 15,
        ("hedges_total", P): 18,
        ("hedges_won_total", P): 16,
        ("hedges_refused_total", P, "reason=budget"): 17,
        ("hedge_delay_seconds", P): 0.125,
        ("attempt_seconds_count", P): 1,
        ("attempt_seconds_sum", P): 0.002,
        ("budget_left_seconds_count", P): 2,
        ("budget_left_seconds_sum", P): 0.6,
    }
    assert len(buckets) == 2 * (len(BUCKETS) + 1)
    assert buckets["budget_left_seconds_bucket", P, "le=0.25"] == 0
    assert buckets["budget_left_seconds_bucket", P, "le=0.5"] == 2


def test_dependencies_of_one_name_are_added_up(registry: CollectorRegistry) -> None:
    sources = [Fixed(complete()), Fixed(complete(10, "closed", None)), Fixed(complete(100, None))]
    found = samples(registry)
    assert sources
    assert found["calls_total", P] == 111
    assert found["attempts_total", P, "outcome=timeout"] == 333
    assert found["bulkhead_limit", P] == 14
    assert [found["breaker_state", P, f"state={state}"] for state in ("closed", "open", "half_open")] == [
        1,
        1,
        0,
    ]
    assert found["attempt_seconds_count", P] == 3


def test_what_a_dependency_does_not_have_is_not_there(registry: CollectorRegistry) -> None:
    source = Fixed(complete(1, None, None))
    names = {key[0] for key in samples(registry)}
    assert source is not None
    assert not names & {"breaker_state", "bulkhead_limit"}


def test_the_figures_of_real_calls(registry: CollectorRegistry) -> None:
    answers: list[Any] = [503, 200, 503, httpx.ReadTimeout("x"), 503, 503]

    def answer(request: httpx.Request) -> httpx.Response:
        next_one = answers.pop(0)
        if isinstance(next_one, Exception):
            raise next_one
        return httpx.Response(next_one)

    dependency = Dependency(
        "prices",
        match="http://prices.test/*",
        retry=RetryPolicy(attempts=2, backoff_base=0.0, budget_per_second=1000.0),
        breaker=BreakerPolicy(window=6, minimum_calls=6, failure_ratio=0.8),
        bulkhead=3,
    )
    with httpx.Client(transport=ResilientTransport([dependency], httpx.MockTransport(answer))) as client:
        url = "http://prices.test/"
        assert client.get(url).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            client.get(url)
        with current().within(1.0):
            assert client.get(url).status_code == 503
        with pytest.raises(CallRefused):
            client.get(url)
        with current().within(0.001), pytest.raises(httpx.TimeoutException):
            client.get(url)
        found = samples(registry)
    assert found["calls_total", P] == 5
    assert found["attempts_total", P, "outcome=5xx"] == 4
    assert found["attempts_total", P, "outcome=2xx"] == 1
    assert found["attempts_total", P, "outcome=timeout"] == 1
    assert found["retries_total", P] == 3
    assert found["retries_refused_total", P, "reason=attempts"] == 2
    assert found["calls_refused_total", P, "reason=circuit_open"] == 1
    assert found["calls_refused_total", P, "reason=insufficient_budget"] == 1
    assert found["breaker_state", P, "state=open"] == 1
    assert found["breaker_transitions_total", "after=open", "before=closed", P] == 1
    assert found["bulkhead_in_use", P] == 0
    assert found["bulkhead_limit", P] == 3
    assert found["budget_left_seconds_count", P] >= 2
