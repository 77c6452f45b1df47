"""Streams on every server of the matrix: they outlive the deadline, end with their caller or a gap, and hold no slot.

A row is a test that takes `server`; its handler stands in `streams.py`, with its rule.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.servers import streams
from tests.servers.conftest import SERVERS
from tests.servers.h2wire import h2_connected
from tests.servers.processes import Server, listening
from tests.servers.streams import DEADLINE, IDLE, LARGE, STREAMS
from tests.servers.wire import Wire, ask, connected

pytestmark = pytest.mark.slow

CALLERS = 20
WITHIN = 3.0
"""Seconds within which a stream whose caller has left is closed: a second, and some for a busy machine."""
SLACK = 2.0
"""Seconds within which something counts as on time on a busy machine."""
SOURCE = "tests.servers.streams"
OWN_SOURCE = Path(streams.__file__).read_bytes()


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip(request.param.split("-")[0])
    with listening(request.param, tmp_path_factory.mktemp("streams"), source=SOURCE) as running:
        yield running


async def state(server: Server) -> dict[str, float]:
    figures: dict[str, float] = (await ask(server.port, "/healthz")).json
    assert figures["errors"] == 0
    return figures


async def until(server: Server, condition: Callable[[dict[str, float]], bool], within: float) -> float:
    began = time.monotonic()
    while not condition(figures := await state(server)):
        assert time.monotonic() - began < within, figures
        await asyncio.sleep(0.02)
    return time.monotonic() - began


@asynccontextmanager
async def nothing_open(server: Server) -> AsyncIterator[Callable[[dict[str, float], str], float]]:
    """Assert that no slot is taken and no stream open afterwards; give what counts what has happened since."""
    await until(server, lambda now: now["slots"] == now["open"] == 0, 10.0)
    before = await state(server)
    yield lambda now, what: now.get(what, 0) - before.get(what, 0)
    await until(server, lambda now: now["slots"] == now["open"] == 0, 10.0)


async def begun(stack: AsyncExitStack, server: Server, path: str, count: int = 1) -> list[Wire]:
    """Open streams, until the first chunk of each is there."""
    wires = [await stack.enter_async_context(connected(server.port)) for _ in range(count)]
    for wire in wires:
        await wire.send(path)
        await asyncio.wait_for(wire.reader.readuntil(b"data: 0"), 5.0)
    return wires


async def test_a_stream_lives_on_beyond_the_deadline_and_holds_no_slot(server: Server) -> None:
    """B16: the head at once, each event when it happens; many more streams than slots."""
    async with nothing_open(server) as since, AsyncExitStack() as stack:
        wires = await begun(stack, server, "/events", 10)
        now = await state(server)
        assert (now["slots"], now["open"]) == (0, 10)
        await asyncio.sleep(1.1 * DEADLINE)
        for wire in wires:
            start = time.monotonic()
            await asyncio.wait_for(wire.reader.readuntil(b"data: 1"), 5.0)
            for _ in range(3):
                await asyncio.wait_for(wire.reader.readuntil(b"data: "), 5.0)
            assert time.monotonic() - start < 5.0
        now = await state(server)
        assert (now["open"], since(now, "closed")) == (10, 0)
        assert now["longest"] < DEADLINE, "how long streams last is in no run time"


@pytest.mark.parametrize("rudely", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("path", ["/events", "/silent"])
async def test_whoever_leaves_ends_his_stream(server: Server, path: str, rudely: bool) -> None:
    """20 of 20 within a second, whether the generator sends or waits."""
    async with nothing_open(server) as since, AsyncExitStack() as stack:
        wires = await begun(stack, server, path, CALLERS)
        await asyncio.sleep(0.1)
        assert (await state(server))["open"] == CALLERS
        for wire in wires:
            wire.leave(rudely=rudely)
        await until(server, lambda now: since(now, "closed") == CALLERS and now["open"] == 0, WITHIN)
        assert since(await state(server), "ended: client_disconnect") == CALLERS


async def test_over_the_limit_a_stream_is_refused(server: Server) -> None:
    async with nothing_open(server), AsyncExitStack() as stack:
        await begun(stack, server, "/silent", STREAMS)
        refused = await ask(server.port, "/silent")
        assert (refused.status, refused.headers["x-refusal-reason"]) == (503, "stream_limit")


async def test_an_idle_stream_is_cut_off(server: Server) -> None:
    async with nothing_open(server) as since, connected(server.port) as wire:
        await wire.send("/quiet")
        # daphne leaves the connection open when an application ends without ending its response.
        answer = await wire.read(within=4.0 if server.name == "daphne" else 5.0)
        assert (answer.status, answer.body, answer.whole) == (200, b"data: 0\n\n", False)
        if server.name != "daphne":
            assert IDLE - 0.01 <= answer.seconds < IDLE + SLACK
        now = await state(server)
        assert (since(now, "closed"), since(now, "ended: deadline")) == (1, 1)


async def test_a_slow_reader_gets_everything(server: Server) -> None:
    """He takes some in every gap; the whole takes longer than a gap and than the deadline of the head."""
    async with nothing_open(server) as since, connected(server.port) as wire:
        await wire.send("/large")
        await wire.reader.readuntil(b"\r\n\r\n")
        left, start = LARGE, time.monotonic()
        while left:
            part = await asyncio.wait_for(wire.reader.readexactly(min(left, 1_000_000)), 5.0)
            left -= len(part)
            await asyncio.sleep(0.22)
        assert time.monotonic() - start > IDLE
        assert since(await state(server), "sent") == 1


async def test_a_reader_who_takes_nothing_is_cut_off(server: Server) -> None:
    async with nothing_open(server) as since, connected(server.port) as wire:
        await wire.send("/large")
        await until(server, lambda now: since(now, "closed") == 1, IDLE + 8.0)
        now = await state(server)
        if since(now, "sent"):
            assert server.name in {"daphne", "granian"}, (
                "they take all that an application has, whoever reads"
            )
        else:
            assert since(now, "ended: deadline") == 1
        wire.leave(rudely=True)


async def test_an_upload_may_last_while_its_parts_come(server: Server) -> None:
    async with nothing_open(server), connected(server.port) as wire:
        wire._sent = time.monotonic()
        wire.writer.write(b"POST /upload HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(0.2)
            wire.writer.write(b"3\r\nabc\r\n")
        wire.writer.write(b"0\r\n\r\n")
        answer = await wire.read()
        assert (answer.status, answer.body) == (200, b"24")


async def test_an_upload_that_stalls_gets_its_504(server: Server) -> None:
    if server.name == "daphne":
        pytest.skip("it starts the application when the whole body has come")
    async with nothing_open(server), connected(server.port) as wire:
        wire._sent = time.monotonic()
        wire.writer.write(b"POST /upload HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(2):
            await asyncio.sleep(0.3)
            wire.writer.write(b"3\r\nabc\r\n")
        answer = await wire.read()
        assert (answer.status, answer.json["reason"]) == (504, "deadline_exceeded")
        assert 0.6 + DEADLINE - 0.05 <= answer.seconds < 0.6 + DEADLINE + SLACK


async def test_a_file_by_its_path(server: Server) -> None:
    async with nothing_open(server):
        answer = await ask(server.port, "/special/pathsend")
        if server.name == "granian":
            assert answer.body == OWN_SOURCE
        else:
            assert answer.body == b"the server cannot"


@pytest.mark.parametrize("kind", ["early_hint", "trailers"])
async def test_hints_and_trailers_over_http2(server: Server, kind: str) -> None:
    if server.name != "hypercorn":
        pytest.skip("it has no such extension over HTTP/2")
    async with nothing_open(server), h2_connected(server.port) as wire:
        answer = await wire.ask(f"/special/{kind}")
        assert bytes(answer.body) == (b"hinted" if kind == "early_hint" else b"trailed")
        assert answer.whole


def test_the_log_holds_no_error(server: Server) -> None:
    """After all of the above. What servers say, in one line, of a response that was cut off is how it was."""
    for line in server.logged().splitlines():
        if "returned without completing" not in line:
            for word in (
                "Traceback",
                "Error",
                "ERROR",
                "CRITICAL",
                "Exception",
                "never retrieved",
                "destroyed",
            ):
                assert word not in line, server.logged()
    assert server.process.poll() is None


@pytest.mark.parametrize("name", SERVERS)
async def test_b16_a_server_that_stops_ends_its_streams(name: str, tmp_path: Path) -> None:
    """B16: within the bound that the server was given (2 s at most here), also those that say nothing."""
    pytest.importorskip(name.split("-", maxsplit=1)[0])
    if name.startswith("hypercorn") and sys.version_info >= (3, 12):
        pytest.skip("it waits for all connections there, however long they take: pgjones/hypercorn#308")
    with listening(name, tmp_path, source=SOURCE) as server:
        async with AsyncExitStack() as stack:
            wires: list[Any] = await begun(stack, server, "/events", 2)
            wires += await begun(stack, server, "/silent", 2)
            server.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20.0):
                for wire in wires:
                    with suppress(ConnectionError):
                        while await wire.reader.read(65_536):
                            pass
        server.ended(within=20.0)
        logged = server.logged()
    if name not in {"granian", "gunicorn"}:  # they kill a worker that has not ended
        assert logged.count("a stream was closed") == 4, logged
    assert "guard" not in logged
