"""One budget, really, for requests, urllib3 and aiohttp: whatever the server does, a call ends with its deadline."""

from __future__ import annotations

import gc
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Phase
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.runtime.context import current
from tests.integrations.client_wires import NAMES, client, every_client, make_client, sync_clients
from tests.integrations.httpx_wires import timed
from tests.integrations.test_httpx_deadlines import (
    FAULTS,
    answers,
    certificate,
    names,
    never_answers,
    never_reads,
)
from tests.transport.tcp_server import Connection, FullBacklog, RawServer, head

__all__ = ["certificate", "client", "names"]

BUDGET = 0.3
LATE = 1.5
"""Seconds that an overrun may take here, as a busy machine may stop us; on a quiet one it stays below 0.1. Whoever
forgets the deadline is later by far: the faults take ten seconds and more.
"""


def dependency(url: str, **keywords: Any) -> Dependency:
    return Dependency("prices", match=f"{url}/*", **{"retry": None, "reserve": 0.0, **keywords})


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """Make every client's first call before the clock is watched, and keep collections away."""
    for name in NAMES:
        for made in make_client(name):
            with RawServer(answers) as server:
                made.open([dependency(server.url, total_timeout=30.0, connect_timeout=10.0, timeout=10.0)])
                assert made.get(server.url + "/")[:2] == (200, b"ok")
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def expired_in(
    phase: Phase,
    client: Any,
    call: Callable[[], object],
    *,
    budget: float = BUDGET,
    late: float = LATE,
) -> Any:
    """Make a call that must end with the deadline, in a phase and in time."""
    with current().within(budget):
        error, took = timed(call)
    print(f"\nOVERRUN {type(client).__name__} {phase} {1000 * (took - budget):.1f} ms")
    assert isinstance(error, DeadlineExceeded), repr(error)
    told: Any = error
    assert isinstance(told, client.timeout)
    assert (told.phase, told.dependency) == (phase, "prices")
    assert "http" in str(told.request.url)
    assert budget - 0.02 < took < budget + late
    return told


@every_client
@pytest.mark.parametrize("fault", FAULTS)
def test_the_deadline_holds(client: Any, fault: str) -> None:
    script, phase, request = FAULTS[fault]
    with RawServer(script) as server:
        prices = dependency(server.url)
        client.open([prices])
        data = client.large(30_000_000) if "content" in request else None
        expired_in(
            phase, client, lambda: client.request(request.get("method", "GET"), server.url + "/", data=data)
        )
        assert prices.snapshot().in_use == 0
        assert prices.snapshot().expired == {phase.value: 1}


@every_client
def test_the_deadline_of_a_small_budget_holds_where_the_body_is_read_bit_by_bit(client: Any) -> None:
    with RawServer(FAULTS["drips-body"][0]) as server:
        prices = dependency(server.url)
        client.open([prices])
        expired_in(Phase.BODY, client, lambda: client.read(client.send("GET", server.url + "/")))
        assert prices.snapshot().in_use == 0


@sync_clients
@pytest.mark.parametrize("how", ["read", "read1", "chunked", "drain"])
def test_every_way_of_reading_is_bounded(client: Any, how: str) -> None:
    with RawServer(FAULTS["drips-chunks"][0]) as server:
        prices = dependency(server.url, timeout=BUDGET)
        client.open([prices])
        response = client.send("GET", server.url + "/")
        raw = getattr(response, "raw", response)
        if how == "read1" and not hasattr(super(type(raw), raw), how):
            pytest.skip("this release of urllib3 has no such method")
        ways: dict[str, Callable[[], object]] = {
            "read": lambda: [raw.read(2) for _ in range(1000)],
            "read1": lambda: [raw.read1(2) for _ in range(1000)],
            "chunked": lambda: list(raw.read_chunked()),
            "drain": raw.drain_conn,
        }
        _, took = timed(ways[how])
        assert took < BUDGET + LATE
        assert prices.snapshot().in_use == 0


@every_client
def test_a_server_may_take_its_time_to_read(client: Any) -> None:
    def late(connection: Connection) -> None:
        connection.server.over.wait(1.4)
        connection.request()
        connection.answer()

    with RawServer(late) as server:
        client.open([dependency(server.url, connect_timeout=1.0, timeout=10.0)])
        assert client.request("PUT", server.url + "/", data=client.large(10_000_000)).status == 200
        assert len(server.requests[0].body) == 10_000_000


@every_client
def test_connecting_to_a_full_queue(client: Any) -> None:
    with FullBacklog() as url:
        client.open([dependency(url, connect_timeout=5.0)])
        expired_in(Phase.CONNECT, client, lambda: client.get(url + "/"))


@every_client
def test_connecting_has_a_timeout_of_its_own(client: Any) -> None:
    with FullBacklog() as url:
        prices = dependency(url, connect_timeout=0.05)
        client.open([prices])
        error, took = timed(lambda: client.get(url + "/"))
        assert isinstance(error, client.failure)
        assert not isinstance(error, DeadlineExceeded)
        assert prices.snapshot().expired == {}
        assert took < 0.05 + LATE


@every_client
@pytest.mark.parametrize("drips", [False, True])
def test_a_tls_handshake_that_never_ends(client: Any, drips: bool) -> None:
    def drip(connection: Connection) -> None:
        connection.drip(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03" + b"x" * 5000)

    with RawServer(drip if drips else never_reads) as server:
        url = server.url.replace("http:", "https:")
        client.open([dependency(url, connect_timeout=5.0)])
        # aiohttp connects and shakes hands in one step.
        phase = Phase.CONNECT if client.is_async else Phase.TLS
        expired_in(phase, client, lambda: client.get(url + "/"))


@every_client
@pytest.mark.parametrize("fault", ["drips-head", "drips-body", "never-stops", "never-reads"])
def test_the_deadline_holds_over_tls(client: Any, fault: str, certificate: Path) -> None:
    script, phase, request = FAULTS[fault]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def encrypted(connection: Connection) -> None:
        with context.wrap_socket(connection.sock, server_side=True) as connection.sock:
            script(connection)

    with RawServer(encrypted) as server:
        url = server.url.replace("http:", "https:")
        client.open([dependency(url)])
        data = client.large(30_000_000) if "content" in request else None
        expired_in(
            phase,
            client,
            lambda: client.request(request.get("method", "GET"), url + "/", data=data),
            budget=1.0,
        )


@every_client
def test_waiting_for_a_connection_of_the_pool(client: Any) -> None:
    with RawServer(FAULTS["stalls-in-the-body"][0]) as server:
        client.open([dependency(server.url, timeout=None, breaker=None)], 1)
        first = client.send("GET", server.url + "/first")
        expired_in(Phase.POOL, client, lambda: client.get(server.url + "/second"))
        client.close(first)
        assert len(server.requests) == 1


@every_client
def test_an_attempt_that_failed_says_in_which_phase_in_the_error_of_the_library(client: Any) -> None:
    """Also where that error is wrapped in another one on its way up."""
    with RawServer(never_answers) as server:
        client.open([dependency(server.url, timeout=0.4)])
        error, _ = timed(lambda: client.get(server.url + "/"))
        url = server.url
    assert not isinstance(error, DeadlineExceeded)
    assert getattr(error, "phase", None) == Phase.HEAD
    refused, _ = timed(lambda: client.get(url + "/"))
    assert getattr(refused, "phase", None) == Phase.CONNECT


@every_client
def test_slow_name_resolution(client: Any, names: dict[str, Any]) -> None:
    never = Event()

    def slow() -> list[str]:
        never.wait(BUDGET + 0.1)
        return ["127.0.0.1"]

    names["prices.test"] = slow
    with RawServer(never_answers) as server:
        url = f"http://prices.test:{server.port}"
        client.open([dependency(url, connect_timeout=5.0)])
        with current().within(BUDGET):
            error, took = timed(lambda: client.get(url + "/"))
        assert isinstance(error, DeadlineExceeded)
        assert getattr(error, "phase", None) == Phase.DNS
        # A thread that resolves a name cannot be interrupted: the call ends right after it.
        assert took < BUDGET + LATE + (0 if client.is_async else 0.1)
        assert not server.requests
        never.set()


@sync_clients
@pytest.mark.parametrize(
    "wrong",
    [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long"), []],
    ids=["unknown", "label", "none"],
)
def test_a_name_without_an_address(client: Any, names: dict[str, Any], wrong: Any) -> None:
    names["prices.test"] = wrong
    prices = dependency("http://prices.test")
    client.open([prices])
    with pytest.raises(client.failure, match=r"prices\.test"):
        client.get("http://prices.test/")
    assert prices.snapshot().in_use == 0


@sync_clients
def test_a_silent_address_leaves_time_for_the_next_one(client: Any, names: dict[str, Any]) -> None:
    with (
        FullBacklog() as silent,
        RawServer(answers, bind="127.0.0.2", port=int(silent.rpartition(":")[2])) as server,
    ):
        names["prices.test"] = ["127.0.0.1", "127.0.0.2"]
        url = f"http://prices.test:{server.port}"
        client.open([dependency(url, connect_timeout=2.0)])
        error, took = timed(lambda: client.get(url + "/"))
        assert error is None
        assert 0.95 < took < 1.9
        assert server.requests[0].all("host") == [f"prices.test:{server.port}"]


@every_client
def test_outside_any_context_a_call_has_a_total_timeout(client: Any) -> None:
    with RawServer(never_answers) as server:
        client.open([dependency(server.url, total_timeout=BUDGET)])
        error, took = timed(lambda: client.get(server.url + "/"))
        assert isinstance(error, DeadlineExceeded)
        assert took < BUDGET + LATE


@every_client
def test_the_callers_own_timeouts_still_count(client: Any) -> None:
    with RawServer(never_answers) as server:
        client.open([dependency(server.url)])
        error, took = timed(lambda: client.get(server.url + "/", timeout=0.4))
        assert isinstance(error, client.failure)
        assert not isinstance(error, DeadlineExceeded)
        assert took < 0.4 + LATE


@every_client
def test_a_body_that_stalls_after_a_late_head(client: Any) -> None:
    def late(connection: Connection) -> None:
        connection.request()
        connection.server.over.wait(1.0)
        connection.send(head(200, 1000) + b"x")
        connection.hang()

    with RawServer(late) as server:
        client.open([dependency(server.url)])
        expired_in(Phase.BODY, client, lambda: client.get(server.url + "/"), budget=1.9, late=0.9)


@every_client
def test_what_matches_no_dependency_is_not_bounded(client: Any) -> None:
    def late(connection: Connection) -> None:
        while connection.request():
            connection.server.over.wait(0.1)
            connection.answer()

    with RawServer(late) as server:
        client.open([Dependency("prices", match="http://prices.test/*")])
        with current().within(0.02):
            assert client.get(server.url + "/")[:2] == (200, b"ok")
        assert server.requests[0].all("x-request-timeout-ms") == []
