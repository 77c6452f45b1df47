"""Route groups and measured timeouts on the wire."""

from __future__ import annotations

import time

import pytest

from resilient_mw.calls.config import BreakerPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.latency import REFRESH
from resilient_mw.calls.timeout import TimeoutPolicy
from resilient_mw.core.errors import CallRefused
from tests.integrations.httpx_wires import Wire, every_wire, timed
from tests.transport.tcp_server import Connection, RawServer

SOON = BreakerPolicy(window=2, minimum_calls=2, open_for=60.0)


def _ill_in_part(connection: Connection) -> None:
    while request := connection.request():
        connection.answer(500 if request.path.startswith("/heavy") else 200)


@every_wire
@pytest.mark.parametrize(
    "fields", [{"groups": {"heavy": "/heavy/*"}}, {"group_key": lambda _, to: to.path[:3]}]
)
def test_b70_a_part_that_fails_does_not_close_the_rest(wire: Wire, fields: dict[str, object]) -> None:
    with RawServer(_ill_in_part) as server:
        prices = Dependency("prices", f"{server.url}/*", retry=None, breaker=SOON, **fields)  # type: ignore[arg-type]
        wire.open([prices])
        for _ in range(2):
            assert wire.get(server.url + "/heavy/1").status_code == 500
        error, _ = timed(lambda: wire.get(server.url + "/heavy/2?x=1"))
        assert isinstance(error, CallRefused)
        assert wire.get(server.url + "/light").status_code == 200
        assert prices.snapshot().breaker == "closed"


@every_wire
def test_an_attempt_ends_when_nearly_all_others_would_have(wire: Wire) -> None:
    def hangs_at_last(connection: Connection) -> None:
        while request := connection.request():
            if request.path == "/hang":
                connection.hang()
            connection.answer()

    with RawServer(hangs_at_last) as server:
        policy = TimeoutPolicy(false_timeouts=0.1, factor=2.0, floor=0.2)
        prices = Dependency("prices", f"{server.url}/*", timeout=5.0, retry=None, adaptive_timeout=policy)
        wire.open([prices])
        for _ in range(30):
            wire.get(server.url + "/")
        time.sleep(2 * REFRESH)
        error, took = timed(lambda: wire.get(server.url + "/hang"))
        assert isinstance(error, wire.lib.TimeoutException)
        assert took < 2.0
        timeout = prices.snapshot().groups["others"].timeout
        assert timeout is not None
        assert 0.2 <= timeout < 2.0
