"""One budget, really: whatever the server does, a call ends with its deadline, and says where it was."""

from __future__ import annotations

import gc
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Phase
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.runtime.context import current
from tests.integrations.httpx_wires import KINDS, Wire, every_wire, timed
from tests.transport.tcp_server import Connection, FullBacklog, RawServer, head

BUDGET = 0.3
LATE = 1.5
"""Seconds that an overrun may take here, as a busy machine may stop us; on a quiet one it stays below 0.1. Whoever
forgets the deadline is later by far: the faults take ten seconds and more.
"""


def answers(connection: Connection) -> None:
    while connection.request():
        connection.answer()


def never_answers(connection: Connection) -> None:
    connection.request()
    connection.hang()


def drips_head(connection: Connection) -> None:
    connection.request()
    connection.drip(head(200, 2, *(f"X-{index}: {index}" for index in range(100))))


def drips_body(connection: Connection) -> None:
    connection.request()
    connection.send(head(200, 10_000))
    connection.drip(b"x" * 10_000)


def drips_chunks(connection: Connection) -> None:
    connection.request()
    connection.send(head(200, None, "Transfer-Encoding: chunked"))
    connection.drip(b"1\r\nx\r\n" * 1000)


def drips_between_chunks(connection: Connection) -> None:
    """Bytes come in all the time, and nothing of a body in them."""
    connection.request()
    connection.send(head(200, None, "Transfer-Encoding: chunked"))
    connection.drip(b"1;" + b"x" * 1000)


def stalls_in_the_body(connection: Connection) -> None:
    connection.request()
    connection.send(head(200, 10_000) + b"x" * 5000)
    connection.hang()


def never_stops(connection: Connection) -> None:
    connection.request()
    connection.send(head(200, None, "Transfer-Encoding: chunked"))
    while connection.send(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n"):
        pass


def never_reads(connection: Connection) -> None:
    connection.server.over.wait(10)


def reads_slowly(connection: Connection) -> None:
    """Often enough that no single write has to wait for long."""
    while connection.sock.recv(1_000_000) and not connection.server.over.wait(0.03):
        pass


LARGE = b"x" * 30_000_000
"""More than the buffers of both ends take."""

FAULTS: dict[str, tuple[Callable[[Connection], None], Phase, dict[str, Any]]] = {
    "never-answers": (never_answers, Phase.HEAD, {}),
    "drips-head": (drips_head, Phase.HEAD, {}),
    "drips-body": (drips_body, Phase.BODY, {}),
    "drips-chunks": (drips_chunks, Phase.BODY, {}),
    "drips-between-chunks": (drips_between_chunks, Phase.BODY, {}),
    "stalls-in-the-body": (stalls_in_the_body, Phase.BODY, {}),
    "never-stops": (never_stops, Phase.BODY, {}),
    "never-reads": (never_reads, Phase.WRITE, {"method": "PUT", "content": LARGE}),
    "reads-slowly": (reads_slowly, Phase.WRITE, {"method": "PUT", "content": LARGE}),
}


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """Make every client's first call before the clock is watched: it imports half of its library.

    A collection that looks at everything the tests have imported takes as long as these budgets, so it looks away.
    """
    for kind in KINDS:
        with RawServer(answers) as server:
            wire = Wire(kind).open(
                [dependency(server.url, total_timeout=30.0, connect_timeout=10.0, timeout=10.0)]
            )
            assert wire.get(server.url + "/").status_code == 200
            wire.shut()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def expired_in(
    phase: Phase,
    wire: Wire,
    call: Callable[[], object],
    *,
    budget: float = BUDGET,
    late: float = LATE,
) -> DeadlineExceeded:
    """Make a call that must end with the deadline, in a phase and in time."""
    with current().within(budget):
        error, took = timed(call)
    print(
        f"\nOVERRUN {wire.name} {'async' if wire.is_async else 'sync'} {phase} {1000 * (took - budget):.1f} ms"
    )
    assert isinstance(error, DeadlineExceeded), repr(error)
    told: Any = error
    assert isinstance(told, wire.lib.TimeoutException)
    assert (told.phase, told.dependency) == (phase, "prices")
    assert told.request.url.host in {"127.0.0.1", "localhost"}
    assert budget - 0.02 < took < budget + late
    return error


def dependency(url: str, **keywords: Any) -> Dependency:
    return Dependency("prices", match=f"{url}/*", **{"retry": None, "reserve": 0.0, **keywords})


@every_wire
@pytest.mark.parametrize("fault", FAULTS)
def test_the_deadline_holds(wire: Wire, fault: str) -> None:
    script, phase, request = FAULTS[fault]
    with RawServer(script) as server:
        prices = dependency(server.url)
        wire.open([prices])
        expired_in(
            phase,
            wire,
            lambda: wire.request(
                request.get("method", "GET"), server.url + "/", content=request.get("content")
            ),
        )
        owner: Any = prices.owner[0]
        assert owner.snapshot().in_use == 0
        assert owner.snapshot().expired == {phase.value: 1}
        assert not wire.pool().connections


@every_wire
def test_connecting_to_a_full_queue(wire: Wire) -> None:
    with FullBacklog() as url:
        wire.open([dependency(url, connect_timeout=5.0)])
        expired_in(Phase.CONNECT, wire, lambda: wire.get(url + "/"))


@every_wire
def test_connecting_has_a_timeout_of_its_own(wire: Wire) -> None:
    with FullBacklog() as url:
        prices = dependency(url, connect_timeout=0.05)
        wire.open([prices])
        error, took = timed(lambda: wire.get(url + "/"))
        assert isinstance(error, wire.lib.ConnectTimeout)
        assert not isinstance(error, DeadlineExceeded)
        assert "phase connect" in error.__notes__[0]
        assert "connect_timeout=0.05" in error.__notes__[0]
        assert took < 0.05 + LATE


@every_wire
def test_a_tls_handshake_that_never_ends(wire: Wire) -> None:
    with RawServer(never_reads) as server:
        url = server.url.replace("http:", "https:")
        wire.open([dependency(url, connect_timeout=5.0)])
        expired_in(Phase.TLS, wire, lambda: wire.get(url + "/"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that nobody has signed, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    )
    subprocess.run([*command.split(), "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


@every_wire
@pytest.mark.parametrize("fault", ["drips-head", "drips-body", "never-stops"])
def test_the_deadline_holds_over_tls(wire: Wire, fault: str, certificate: Path) -> None:
    script, phase, _ = FAULTS[fault]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def encrypted(connection: Connection) -> None:
        with context.wrap_socket(connection.sock, server_side=True) as connection.sock:
            script(connection)

    with RawServer(encrypted) as server:
        url = server.url.replace("http:", "https:")
        wire.open([dependency(url)])
        expired_in(phase, wire, lambda: wire.get(url + "/"), budget=1.0)


@every_wire
def test_a_tls_handshake_that_drips(wire: Wire) -> None:
    def drip(connection: Connection) -> None:
        connection.drip(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03" + b"x" * 5000)

    with RawServer(drip) as server:
        url = server.url.replace("http:", "https:")
        wire.open([dependency(url, connect_timeout=5.0)])
        expired_in(Phase.TLS, wire, lambda: wire.get(url + "/"))


@every_wire
def test_waiting_for_a_connection_of_the_pool(wire: Wire) -> None:
    with RawServer(stalls_in_the_body) as server:
        prices = dependency(server.url)
        wire.open([prices], limits=wire.lib.Limits(max_connections=1))
        first = wire.send("GET", server.url + "/first")
        expired_in(Phase.POOL, wire, lambda: wire.get(server.url + "/second"))
        wire.close(first)
        assert len(server.requests) == 1


@every_wire
def test_a_body_that_is_read_bit_by_bit_by_the_caller(wire: Wire) -> None:
    with RawServer(drips_body) as server:
        wire.open([dependency(server.url)])

        def read_some() -> None:
            wire.read(wire.send("GET", server.url + "/"))

        expired_in(Phase.BODY, wire, read_some)


@every_wire
def test_a_body_that_stalls_after_a_late_head(wire: Wire) -> None:
    def late(connection: Connection) -> None:
        connection.request()
        connection.server.over.wait(1.0)
        connection.send(head(200, 1000) + b"x")
        connection.hang()

    with RawServer(late) as server:
        wire.open([dependency(server.url)])
        expired_in(Phase.BODY, wire, lambda: wire.get(server.url + "/"), budget=1.9, late=0.9)


@every_wire
def test_a_body_of_a_transport_that_knows_no_timeouts(wire: Wire) -> None:
    """What cannot be interrupted between its parts ends after one of them."""
    bases = (wire.lib.SyncByteStream, wire.lib.AsyncByteStream)

    class Slow(*bases):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            for _ in range(500):
                Event().wait(0.02)
                yield b"x"

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for part in self:
                yield part

    wire.open(
        [dependency("http://127.0.0.1")], wire.handler(lambda request: wire.lib.Response(200, stream=Slow()))
    )
    expired_in(Phase.BODY, wire, lambda: wire.get("http://127.0.0.1/"))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the resolver answers: a list of addresses, an error, or a callable that takes its time."""
    answers: dict[str, Any] = {}
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **keywords: Any) -> Any:
        if host not in answers:
            return real(host, port, *args, **keywords)
        answer = answers[host]
        answer = answer() if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return answers


@every_wire
def test_slow_name_resolution(wire: Wire, names: dict[str, Any]) -> None:
    never = Event()

    def slow() -> list[str]:
        never.wait(BUDGET + 0.1)
        return ["127.0.0.1"]

    names["prices.test"] = slow
    with RawServer(never_answers) as server:
        url = f"http://prices.test:{server.port}"
        wire.open([dependency(url, connect_timeout=5.0)])
        with current().within(BUDGET):
            error, took = timed(lambda: wire.get(url + "/"))
        assert isinstance(error, DeadlineExceeded)
        assert getattr(error, "phase", None) == Phase.DNS
        # A thread that resolves a name cannot be interrupted: the call ends right after it.
        assert took < BUDGET + LATE + (0 if wire.is_async else 0.1)
        assert not server.requests
        never.set()


@every_wire
@pytest.mark.parametrize(
    "wrong",
    [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long"), []],
    ids=["unknown", "label", "none"],
)
def test_a_name_without_an_address(wire: Wire, names: dict[str, Any], wrong: Any) -> None:
    names["prices.test"] = wrong
    wire.open([dependency("http://prices.test")])
    with pytest.raises(wire.lib.ConnectError, match=r"prices\.test"):
        wire.get("http://prices.test/")


@every_wire
def test_the_steps_of_connecting_share_one_time(wire: Wire, names: dict[str, Any]) -> None:
    def slow() -> list[str]:
        server.over.wait(1.0)
        return ["127.0.0.1"]

    names["prices.test"] = slow
    with RawServer(never_reads) as server:
        url = f"https://prices.test:{server.port}"
        wire.open([dependency(url, connect_timeout=1.8, timeout=20.0)])
        error, took = timed(lambda: wire.get(url + "/"))
        assert isinstance(error, wire.lib.ConnectTimeout)
        assert "phase tls" in error.__notes__[0]
        assert took < 2.7  # less than both one after the other


@every_wire
def test_a_silent_address_leaves_time_for_the_next_one(wire: Wire, names: dict[str, Any]) -> None:
    with (
        FullBacklog() as silent,
        RawServer(answers, bind="127.0.0.2", port=int(silent.rpartition(":")[2])) as server,
    ):
        names["prices.test"] = ["127.0.0.1", "127.0.0.2"]
        url = f"http://prices.test:{server.port}"
        wire.open([dependency(url, connect_timeout=2.0)])
        error, took = timed(lambda: wire.get(url + "/"))
        assert error is None
        assert 0.95 < took < 1.9


@every_wire
def test_outside_any_context_a_call_has_a_total_timeout(wire: Wire) -> None:
    with RawServer(never_answers) as server:
        wire.open([dependency(server.url, total_timeout=BUDGET)])
        error, took = timed(lambda: wire.get(server.url + "/"))
        assert isinstance(error, DeadlineExceeded)
        assert took < BUDGET + LATE


@every_wire
def test_the_callers_own_timeouts_still_count(wire: Wire) -> None:
    with RawServer(never_answers) as server:
        wire.open([dependency(server.url)])
        error, took = timed(lambda: wire.get(server.url + "/", timeout=0.4))
        assert isinstance(error, wire.lib.ReadTimeout)
        assert not isinstance(error, DeadlineExceeded)
        assert took < 0.4 + LATE


@every_wire
def test_what_matches_no_dependency_is_not_bounded(wire: Wire) -> None:
    with RawServer(drips_body) as server:
        wire.open([Dependency("prices", match="http://prices.test/*")])
        with current().within(0.3):
            response = wire.send("GET", server.url + "/")
        server.over.wait(0.4)
        wire.close(response)


# -- transports of the user --------------------------------------------------------------------------------------------


@every_wire
@pytest.mark.parametrize("fault", ["drips-head", "drips-body"])
@pytest.mark.parametrize("way", ["passed", "wrapped"])
def test_an_http_transport_of_the_user_is_bounded_too(wire: Wire, fault: str, way: str) -> None:
    script, phase, _ = FAULTS[fault]
    make = wire.lib.AsyncHTTPTransport if wire.is_async else wire.lib.HTTPTransport
    with RawServer(script) as server:
        inner = make(verify=False)
        if way == "passed":
            wire.open([dependency(server.url)], inner)
        else:
            wire.client = wire.client_class(transport=inner)
            assert wire.ours.wrap(wire.client, [dependency(server.url)]) is wire.client
        expired_in(phase, wire, lambda: wire.get(server.url + "/"))
