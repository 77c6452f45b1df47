"""Where a call died: an attribute of every error of an attempt, the library's own as well, and a count."""

from __future__ import annotations

import socket
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Phase
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.runtime.context import current
from tests.integrations.httpx_wires import Wire, every_wire, timed
from tests.transport.tcp_server import Connection, RawServer, head


def _never_answers(connection: Connection) -> None:
    connection.request()
    connection.hang()


def _stalls_in_the_body(connection: Connection) -> None:
    connection.request()
    connection.send(head(200, 10_000) + b"x" * 5000)
    connection.hang()


def _cuts_the_body_off(connection: Connection) -> None:
    connection.request()
    connection.send(head(200, 10_000) + b"x" * 5000)


def _hangs_up(connection: Connection) -> None:
    connection.request()


def _dependency(url: str, **fields: Any) -> Dependency:
    return Dependency("prices", f"{url}/*", **{"retry": None, "reserve": 0.0, **fields})


@every_wire
@pytest.mark.parametrize(
    ("script", "phase", "outcome"),
    [
        (_never_answers, Phase.HEAD, "timeout"),
        (_stalls_in_the_body, Phase.BODY, "body"),
        (_cuts_the_body_off, Phase.BODY, "body"),
        (_hangs_up, Phase.HEAD, "error"),
    ],
)
def test_a_failed_attempt_says_its_phase(
    wire: Wire, script: Callable[[Connection], None], phase: Phase, outcome: str
) -> None:
    """No deadline is near: the dependency's own timeout ends the attempt, or the peer does."""
    with RawServer(script) as server:
        prices = _dependency(server.url, timeout=0.15)
        wire.open([prices])
        error, _ = timed(lambda: wire.get(server.url + "/"))
        told: Any = error
        assert not isinstance(error, DeadlineExceeded)
        assert isinstance(error, wire.lib.TransportError)
        assert told.phase is phase
        assert prices.snapshot().attempts == {outcome: 1}
        assert prices.snapshot().expired == {}


@every_wire
def test_a_refused_connection_says_its_phase(wire: Wire) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        wire.open([_dependency(url)])
        error, _ = timed(lambda: wire.get(url + "/"))
    told: Any = error
    assert isinstance(error, wire.lib.ConnectError)
    assert told.phase is Phase.CONNECT


@every_wire
def test_name_resolution_that_outlives_the_deadline_is_counted(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, never = socket.getaddrinfo, Event()

    def slow(host: Any, *rest: Any, **named: Any) -> Any:
        if host in ("prices.test", b"prices.test"):
            never.wait(0.25)
            host = "127.0.0.1"
        return resolve(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with RawServer(_never_answers) as server:
        url = f"http://prices.test:{server.port}"
        prices = _dependency(url, connect_timeout=5.0)
        wire.open([prices])
        with current().within(0.15):
            error, _ = timed(lambda: wire.get(url + "/"))
        assert isinstance(error, DeadlineExceeded)
        assert prices.snapshot().expired == {Phase.DNS.value: 1}
        never.set()
