"""The figures of idempotency keys, as Prometheus reads them: those of two middlewares of one name are added up."""

from __future__ import annotations

from weakref import WeakSet

import pytest
from prometheus_client import CollectorRegistry

from resilient_mw.core import ports
from resilient_mw.core.idempotency_snapshot import IdempotencySnapshot, TransitionSnapshot
from resilient_mw_integrations.prometheus import install

pytestmark = pytest.mark.usefixtures("own_figures")


class Source:
    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        ports.register_idempotency(self)

    def snapshot(self) -> IdempotencySnapshot:
        return IdempotencySnapshot(
            app="pay",
            waiting=self.waiting,
            places=10,
            outcomes={"first": 3, "replayed": 2},
            store={"begin": TransitionSnapshot(5, 1, 250_000)},
        )


def test_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_idempotency", WeakSet())
    sources = [Source(1), Source(2)]
    registry = CollectorRegistry()
    install(registry)
    app = {"app": "pay"}
    expected = {
        ("requests_total", "first"): 6,
        ("requests_total", "replayed"): 4,
        ("waiting", ""): 3,
        ("places", ""): 20,
        ("store_asked_total", "begin"): 10,
        ("store_failed_total", "begin"): 2,
        ("store_seconds_total", "begin"): 0.5,
    }
    for (name, label), value in expected.items():
        labels = app if not label else app | {"outcome" if name == "requests_total" else "transition": label}
        assert registry.get_sample_value(f"resilient_mw_idempotency_{name}", labels) == value, name
    del sources
