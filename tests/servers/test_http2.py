"""What users are promised, on the servers that speak HTTP/2, over HTTP/2: requests share a connection there.

The tests of one server share its process and run one after the other; each leaves it idle. The last one reads its log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress

import pytest

from tests.servers.h2wire import H2Wire, Stream, h2_connected
from tests.servers.probe import MAX_WAIT
from tests.servers.processes import Server, listening
from tests.servers.test_matrix import CALLERS, SLACK, WITHIN, full, idle_afterwards, state, until
from tests.servers.wire import ask

pytestmark = pytest.mark.slow

PART = b"x" * 10_000


@pytest.fixture(scope="module", params=["hypercorn", "granian"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip(request.param)
    with listening(request.param, tmp_path_factory.mktemp("http2")) as running:
        yield running


def is_504_on_time(answer: Stream, budget: float) -> None:
    assert (answer.status, answer.json["reason"]) == (504, "deadline_exceeded")
    assert "x-refusal-reason" not in answer.headers
    assert budget - 0.005 <= answer.head_after < budget + SLACK


async def said_hello(wire: H2Wire) -> None:
    answer = await wire.ask("/hello")
    assert (answer.status, bytes(answer.body), answer.whole) == (200, b"hello", True)
    assert answer.seconds < SLACK


async def test_504_on_time_and_the_other_requests_go_on(server: Server) -> None:
    async with idle_afterwards(server) as change, h2_connected(server.port) as wire:
        held = wire.send("/hold")  # every slot
        await until(server, lambda now: now["slots"] == 20, 10.0)
        await wire.ask("/go")
        await wire.read(held)
        sleepers = [wire.send("/sleep", budget=budget) for budget in (300, 400)]
        other = wire.send("/work")
        await said_hello(wire)
        for sleeper, budget in zip(sleepers, (0.3, 0.4), strict=True):
            is_504_on_time(await wire.read(sleeper), budget)
            assert sleeper.whole
        assert (await wire.read(other)).status == held.status == 200
        await said_hello(wire)
        assert change.of(await state(server), "cancelled: deadline") == 2


@pytest.mark.parametrize("after", [0.0, 0.2], ids=["at once", "later"])
async def test_b04_requests_that_are_reset_are_cancelled(server: Server, after: float) -> None:
    """B04: 20 of 20 within a second, their slots free within that second; another one on their connection is served."""
    async with idle_afterwards(server) as change, h2_connected(server.port) as wire:
        streams = [wire.send("/sleep") for _ in range(CALLERS)]
        await until(server, lambda now: change.of(now, "begun") == CALLERS, 10.0)
        await asyncio.sleep(after)
        for stream in streams:
            wire.reset(stream)
        await until(
            server,
            lambda now: change.of(now, "cancelled: client_disconnect") == CALLERS and now["slots"] == 0,
            WITHIN,
        )
        await said_hello(wire)


async def test_b04_requests_of_a_lost_connection_are_cancelled(server: Server) -> None:
    """B04: 20 of 20 within a second, those of another connection go on."""
    async with idle_afterwards(server) as change, h2_connected(server.port) as staying:
        async with h2_connected(server.port) as wire:
            for _ in range(CALLERS - 1):
                wire.send("/sleep")
            await until(server, lambda now: change.of(now, "begun") == CALLERS - 1, 10.0)
            other = staying.send("/sleep", budget=3000)
            await until(server, lambda now: change.of(now, "begun") == CALLERS, 10.0)
            wire.leave()
        await until(
            server,
            lambda now: change.of(now, "cancelled: client_disconnect") == CALLERS - 1 and now["slots"] == 1,
            WITHIN,
        )
        is_504_on_time(await staying.read(other), 3.0)
        await said_hello(staying)


@pytest.mark.parametrize("way", ["reset", "leave"])
async def test_abandoned_streams_end(server: Server, way: str) -> None:
    """Also where the server hangs in `send()` once the connection is lost."""
    async with idle_afterwards(server) as change, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(h2_connected(server.port)) for _ in range(2)]
        streams = [(wire, wire.send("/stream")) for wire in wires for _ in range(CALLERS // 2)]
        for wire, stream in streams:
            await wire.received(stream, 1)
        for wire, stream in streams:
            if way == "reset":
                wire.reset(stream)
            else:
                wire.leave()
        await until(
            server, lambda now: change.of(now, "stream ended") == CALLERS and now["slots"] == 0, WITHIN
        )
        if way == "reset":
            await said_hello(wires[0])


@pytest.mark.parametrize("way", ["reset", "leave"])
async def test_a_caller_who_takes_nothing_and_leaves_holds_no_slot(server: Server, way: str) -> None:
    """The answer does not fit into what the server keeps for him, so that its `send()` waits; then he goes."""
    async with idle_afterwards(server) as change, h2_connected(server.port) as wire:
        stream = wire.send("/large")
        await wire.received(stream, 60_000)
        assert (await state(server))["slots"] == 1
        if way == "reset":
            wire.reset(stream)
        else:
            wire.leave()
        await until(server, lambda now: now["slots"] == 0, WITHIN)
        assert change.of(await state(server), "begun") == 1


@pytest.mark.parametrize("way", ["reset", "leave"])
async def test_b01_background_work_outlives_its_caller(server: Server, way: str) -> None:
    """B01: after a complete response nothing is cancelled, 20 of 20."""
    async with idle_afterwards(server) as change:

        async def call() -> None:
            async with h2_connected(server.port) as wire:
                stream = wire.send("/background", budget=10_000)
                await wire.received(stream, len(b"accepted"))
                if way == "reset":
                    with suppress(Exception):  # it may be closed already
                        wire.reset(stream)
                else:
                    wire.leave()
                await asyncio.sleep(0.05)

        await asyncio.gather(*(call() for _ in range(CALLERS)))
        await until(server, lambda now: change.of(now, "begun") == CALLERS, 10.0)
        await ask(server.port, "/go")
        await until(server, lambda now: change.of(now, "finished") == CALLERS, 10.0)
        assert change.of(await state(server), "cancelled") == 0


async def test_a_refusal_is_quick_and_keeps_the_connection(server: Server) -> None:
    async with idle_afterwards(server), h2_connected(server.port) as wire:
        async with full(server):
            waiting = wire.send("/hello")
            await until(server, lambda now: now["queued"] == 1, 10.0)
            for method in ("GET", "HEAD", "POST"):
                refused = await wire.ask("/hello", method=method)
                assert (refused.status, refused.headers["x-refusal-reason"]) == (503, "queue_full")
                assert "connection" not in refused.headers
                assert 1 <= int(refused.headers["retry-after"]) <= 60
                assert bool(refused.body) == (method != "HEAD")
                assert refused.seconds < SLACK
            late = await wire.read(waiting)
            assert (late.status, late.headers["x-refusal-reason"]) == (503, "queue_timeout")
            assert MAX_WAIT - 0.005 <= late.seconds < MAX_WAIT + SLACK
        await said_hello(wire)


@pytest.mark.parametrize(
    ("path", "budget", "status"),
    [
        ("/echo", 0, 504),  # refused on arrival
        ("/echo", 200, 504),  # in the middle of the upload
        ("/sleep", 200, 504),  # by an application that reads nothing
        ("/hello", None, 200),  # the application's own answer
    ],
)
async def test_an_answer_before_the_body_has_come_harms_no_other_request(
    server: Server, path: str, budget: int | None, status: int
) -> None:
    """Hypercorn ends the whole connection over a body that goes on, and Granian resets the one stream."""
    async with idle_afterwards(server), h2_connected(server.port) as wire:
        other = wire.send("/sleep", budget=600)
        stream = wire.send(path, method="POST", budget=budget, open_body=True)
        await wire.upload(stream, PART)
        await wire.head(stream)
        assert (stream.status, stream.head_after < 0.2 + SLACK) == (status, True)
        await wire.received(stream, int(stream.headers["content-length"]))
        for _ in range(20):
            if stream.reset is not None:
                break  # the server wants no more of it
            await wire.upload(stream, PART)
            await asyncio.sleep(0.002)
        else:
            await wire.upload(stream, PART, last=True)
        assert (await wire.read(stream, 10.0)).whole
        is_504_on_time(await wire.read(other), 0.6)
        await said_hello(wire)
        assert not wire.lost


async def test_a_request_that_waits_for_a_slot_while_its_body_comes_harms_no_other(server: Server) -> None:
    async with idle_afterwards(server), h2_connected(server.port) as wire, full(server):
        stream = wire.send("/echo", method="POST", open_body=True)
        await wire.upload(stream, PART)
        await until(server, lambda now: now["queued"] == 1, 10.0)
        await wire.head(stream)
        assert (stream.status, stream.headers["x-refusal-reason"]) == (503, "queue_timeout")
        for _ in range(20):
            if stream.reset is None:
                await wire.upload(stream, PART)
                await asyncio.sleep(0.002)
        if stream.reset is None:
            await wire.upload(stream, PART, last=True)
        assert (await wire.read(stream, 10.0)).whole
        checked = await wire.ask("/healthz")
        assert (checked.status, wire.lost) == (200, False)


async def test_refused_callers_who_have_gone_leave_nothing_behind(server: Server) -> None:
    """Hypercorn would hang for ever in the end of an answer whose connection is lost."""
    async with idle_afterwards(server):
        for _ in range(60):
            async with h2_connected(server.port) as wire:
                wire.send("/hello", budget=0)
                await wire.writer.drain()
                wire.leave()
        await until(server, lambda now: now["served"] == 0, 8.0)


async def test_b16_events_pass_as_they_happen_and_end_at_the_deadline(server: Server) -> None:
    """B16: Granian resets the stream then; Hypercorn tells nothing of an application that ends without an end."""
    async with idle_afterwards(server) as change, h2_connected(server.port) as wire:
        stream = wire.send("/stream", budget=1500)
        with suppress(TimeoutError):
            await wire.read(stream, within=3.0)
        assert stream.status == 200
        assert stream.times[0] < 1.2, "not when all is over"
        assert 2 <= len(stream.times) <= 15
        assert all(0.1 * number - 0.01 <= at for number, at in enumerate(stream.times))
        assert not stream.whole
        assert (stream.reset is not None) == (server.name == "granian")
        assert change.of(await state(server), "stream ended") == 1
        await said_hello(wire)


async def test_a_caller_is_told_again_that_he_has_gone(server: Server) -> None:
    """Hypercorn says so once only, to one of those who ask."""
    async with idle_afterwards(server) as change, h2_connected(server.port) as wire:
        for _ in range(5):
            stream = wire.send("/listen")
            await wire.writer.drain()
            await asyncio.sleep(0.1)
            wire.reset(stream)
        await until(server, lambda now: change.of(now, "told") == 15 and now["slots"] == 0, WITHIN)


async def test_uploads_arrive_whole(server: Server) -> None:
    body = bytes(range(256)) * 1000
    async with idle_afterwards(server), h2_connected(server.port) as wire:
        streams = [wire.send("/echo", method="POST", open_body=True) for _ in range(3)]
        for stream in streams:
            await wire.upload(stream, body[:100_000])
        for stream in streams:
            await wire.upload(stream, body[100_000:], last=True)
        for stream in streams:
            assert (await wire.read(stream)).whole
            assert bytes(stream.body) == body


async def test_many_callers_with_tempers(server: Server) -> None:
    """Everything at once, on few connections: callers who wait, leave, are refused, expire. Every slot comes back."""

    async def call(wire: H2Wire, number: int) -> None:
        path = ("/work", "/hello", "/stream", "/thread?seconds=0.05", "/brief")[number % 5]
        stream = wire.send(path, budget=(None, 50, 150, 400)[number % 4])
        await asyncio.sleep(0.01 * (number % 13))
        if number % 7 < 3 or path == "/stream":
            if not stream.ended:
                wire.reset(stream)
            return
        answer = await wire.read(stream)
        assert answer.status in {200, 503, 504}

    async with idle_afterwards(server), AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(h2_connected(server.port)) for _ in range(4)]
        calls = []
        began = time.monotonic()
        for number in range(120):
            calls.append(asyncio.create_task(call(wires[number % 4], number)))
            await asyncio.sleep(0.005)
        await asyncio.gather(*calls)
        assert time.monotonic() - began < 10
        for wire in wires:
            await said_hello(wire)


def test_the_log_holds_no_error(server: Server) -> None:
    """After all of the above: no traceback, nothing that a person on call would look at."""
    logged = server.logged()
    for line in logged.splitlines():
        # What was cut off at its deadline, and what was sent to those who had gone.
        if "returned without completing" not in line and "ASGI transport error" not in line:
            for word in (
                "Traceback",
                "Error",
                "ERROR",
                "CRITICAL",
                "Exception",
                "never retrieved",
                "destroyed",
                "Cannot see",
            ):
                assert word not in line, logged
    assert server.process.poll() is None
