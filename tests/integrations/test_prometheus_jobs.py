"""The figures of queues of jobs, as Prometheus reads them."""

from __future__ import annotations

from weakref import WeakSet

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from resilient_mw.core import ports
from resilient_mw.core.job_store import StoreCounts
from resilient_mw.core.jobs_snapshot import JobClassSnapshot, JobsSnapshot
from resilient_mw_integrations.prometheus import install

pytestmark = pytest.mark.usefixtures("own_figures")


class Fixed:
    """A source that always tells the same."""

    def __init__(self, snapshot: JobsSnapshot) -> None:
        self._snapshot = snapshot
        ports.register_jobs(self)

    def snapshot(self) -> JobsSnapshot:
        return self._snapshot


def figures(oldest: float = 3.0, store: StoreCounts | None = None) -> JobsSnapshot:
    normal = JobClassSnapshot(
        priority="normal",
        queued=1,
        waiting=2,
        promised=3,
        deferred=4,
        refused={"queue_full": 5},
        ended={"completed": 6},
    )
    return JobsSnapshot(
        jobs="mails",
        places=10,
        running=7,
        workers=8,
        overdue=9,
        oldest=oldest,
        redelivered=10,
        lost=11,
        unreachable=12,
        draining=False,
        classes=(normal,),
        store=store,
    )


def test_figures_of_queues_of_one_name_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_jobs", WeakSet())
    registry = CollectorRegistry()
    install(registry)
    counts = StoreCounts(waiting={"normal": 1, "critical": 2}, leased=4, dead=5, oldest=6.0)
    sources = [Fixed(figures()), Fixed(figures(oldest=1.0, store=counts))]
    found = {
        (sample.name.removeprefix("resilient_mw_jobs_"), *sorted(sample.labels.items())): sample.value
        for family in parse(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name.startswith("resilient_mw_jobs_")
    }
    jobs, priority = ("jobs", "mails"), ("priority", "normal")
    assert found == {
        ("queue_length", jobs, priority): 2,
        ("waiting", jobs, priority): 4,
        ("promised_total", jobs, priority): 6,
        ("deferred_total", jobs, priority): 8,
        ("refused_total", jobs, priority, ("reason", "queue_full")): 10,
        ("ended_total", jobs, ("outcome", "completed"), priority): 12,
        ("running", jobs): 14,
        ("workers", jobs): 16,
        ("overdue", jobs): 18,
        ("oldest_seconds", jobs): 3.0,
        ("redelivered_total", jobs): 20,
        ("lost_leases_total", jobs): 22,
        ("store_errors_total", jobs): 24,
        ("stored", jobs, ("state", "waiting")): 3,
        ("stored", jobs, ("state", "leased")): 4,
        ("stored", jobs, ("state", "dead")): 5,
        ("stored_oldest_seconds", jobs): 6.0,
    }
    assert len(sources) == 2
