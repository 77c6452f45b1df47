"""What users are promised, on every ASGI server of the matrix, over HTTP/1.1.

The tests of one server share its process and run one after the other; each leaves it idle. The last one reads its log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.servers.probe import MAX_WAIT
from tests.servers.processes import Server
from tests.servers.wire import Answer, ask, connected

pytestmark = pytest.mark.slow

SLACK = 2.0
"""Seconds within which something counts as on time on a busy machine; what would be late takes 30 s, or is held."""
WITHIN = 3.0
"""Seconds within which what a caller left behind is over: a second, and some for a busy machine."""
CALLERS = 20


async def state(server: Server) -> dict[str, int]:
    figures: dict[str, int] = (await ask(server.port, "/state")).json
    return figures


async def until(server: Server, condition: Callable[[dict[str, int]], bool], within: float) -> float:
    """Wait until the state of the application meets a condition; return the seconds that took."""
    began = time.monotonic()
    while True:
        figures = await state(server)
        elapsed = time.monotonic() - began
        if condition(figures):
            return elapsed
        assert elapsed < within, figures
        await asyncio.sleep(0.02)


class Change:
    """What the application counted since this was made."""

    def __init__(self, before: dict[str, int]) -> None:
        self._before = before

    def of(self, now: dict[str, int], what: str) -> int:
        return now.get(what, 0) - self._before.get(what, 0)


@asynccontextmanager
async def idle_afterwards(server: Server) -> AsyncIterator[Change]:
    """Assert that the application ends up with every slot free, nobody waiting, and no reader of ours left."""
    await until(server, lambda now: now["slots"] == now["queued"] == 0, 10.0)
    yield Change(await state(server))
    await until(server, lambda now: now["slots"] == now["queued"] == now["readers"] == 0, 10.0)
    assert (await state(server))["errors"] == 0


@asynccontextmanager
async def full(server: Server) -> AsyncIterator[None]:
    """Hold every slot meanwhile."""
    async with connected(server.port) as wire:
        await wire.send("/hold")
        await until(server, lambda now: now["slots"] == 20, 10.0)
        try:
            yield
        finally:
            await ask(server.port, "/go")
        assert (await wire.read()).body == b"held"


def report(request: pytest.FixtureRequest, what: str, seconds: float) -> None:
    print(f"{request.node.name}: {what} {seconds * 1000:.0f} ms")


def is_504_on_time(answer: Answer, budget: float) -> None:
    assert answer.status == 504
    assert answer.json["reason"] == "deadline_exceeded"
    assert "x-refusal-reason" not in answer.headers
    assert budget - 0.005 <= answer.seconds < budget + SLACK


async def test_start(server: Server) -> None:
    """B07: the lifespan reaches the application, on the servers that have one."""
    figures = await state(server)
    assert figures.get("startup", 0) == (0 if server.name == "daphne" else 1)
    assert (await ask(server.port, "/hello")).body == b"hello"


async def test_504_on_time_and_the_connection_goes_on(server: Server, request: pytest.FixtureRequest) -> None:
    async with idle_afterwards(server) as change, connected(server.port) as wire:
        for _ in range(2):
            is_504_on_time(answer := await wire.ask("/sleep", budget=300), 0.3)
            following = await wire.ask("/hello")
            assert following.body == b"hello"
            assert following.seconds < SLACK
            report(request, "504 after", answer.seconds)
            report(request, "next answer after", following.seconds)
        now = await state(server)
        assert change.of(now, "cancelled: deadline") == change.of(now, "begun") == 2


async def test_b17_504_on_time_while_a_thread_works_on(
    server: Server, request: pytest.FixtureRequest
) -> None:
    """B17: the next request on the connection is served at once, and the thread keeps its slot until it returns."""
    async with idle_afterwards(server) as change, connected(server.port) as wire:
        # The first sync endpoint imports what runs it, in the loop's thread.
        assert (await wire.ask("/thread?seconds=0")).status == 200
        is_504_on_time(answer := await wire.ask("/thread?seconds=1.5", budget=300), 0.3)
        following = await wire.ask("/hello")
        assert following.body == b"hello"
        assert following.seconds < SLACK
        now = await state(server)
        assert (now["threads"], now["slots"]) == (1, 1)
        took = await until(server, lambda now: now["slots"] == 0, 10.0)
        now = await state(server)
        assert (now["threads"], change.of(now, "thread ended"), change.of(now, "late")) == (0, 2, 1)
        report(request, "504 after", answer.seconds)
        report(request, "next answer after", following.seconds)
        report(request, "slot free after another", took)


@pytest.mark.parametrize("rudely", [False, True], ids=["FIN", "RST"])
async def test_b04_abandoned_requests_are_cancelled(
    server: Server, rudely: bool, request: pytest.FixtureRequest
) -> None:
    """B04: 20 of 20 within a second, their slots free within that second."""
    async with idle_afterwards(server) as change, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(server.port)) for _ in range(CALLERS)]
        for wire in wires:
            await wire.send("/sleep")
        await until(server, lambda now: change.of(now, "begun") == CALLERS, 10.0)
        await asyncio.sleep(0.2)
        for wire in wires:
            wire.leave(rudely=rudely)
        took = await until(
            server,
            lambda now: change.of(now, "cancelled: client_disconnect") == CALLERS and now["slots"] == 0,
            WITHIN,
        )
        report(request, "20 of 20 cancelled after", took)


async def test_abandoned_streams_end(server: Server, request: pytest.FixtureRequest) -> None:
    async with idle_afterwards(server) as change, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(server.port)) for _ in range(CALLERS)]
        for wire in wires:
            await wire.send("/stream")
            await wire.reader.readuntil(b"data: 0")
        for wire in wires:
            wire.leave()
        took = await until(
            server, lambda now: change.of(now, "stream ended") == CALLERS and now["slots"] == 0, WITHIN
        )
        report(request, "20 of 20 ended after", took)


@pytest.mark.parametrize("path", ["/background", "/framework/background"])
@pytest.mark.parametrize("rudely", [False, True], ids=["FIN", "RST"])
async def test_b01_background_work_outlives_the_connection(server: Server, rudely: bool, path: str) -> None:
    """B01: the caller reads his answer and closes at once; the work behind it is done, 20 of 20, and keeps its slot."""
    async with idle_afterwards(server) as change:

        async def call() -> None:
            async with connected(server.port) as wire:
                assert (await wire.ask(path, budget=10_000)).status == 200
                wire.leave(rudely=rudely)

        await asyncio.gather(*(call() for _ in range(CALLERS)))
        await until(server, lambda now: change.of(now, "begun") == CALLERS, 10.0)
        assert (await state(server))["slots"] == CALLERS
        await ask(server.port, "/go")
        await until(server, lambda now: change.of(now, "finished") == CALLERS, 10.0)
        now = await state(server)
        assert change.of(now, "cancelled") == 0


async def test_a_refusal_is_quick_and_keeps_the_connection(
    server: Server, request: pytest.FixtureRequest
) -> None:
    async with idle_afterwards(server), connected(server.port) as wire, connected(server.port) as waiting:
        async with full(server):
            await waiting.send("/hello")  # takes the one place in the queue
            await until(server, lambda now: now["queued"] == 1, 10.0)
            for _ in range(3):
                refused = await wire.ask("/hello")
                assert (refused.status, refused.headers["x-refusal-reason"]) == (503, "queue_full")
                assert refused.headers.get("connection", "keep-alive").lower() == "keep-alive"
                assert 1 <= int(refused.headers["retry-after"]) <= 60
                assert refused.seconds < SLACK
                report(request, "refused after", refused.seconds)
            late = await waiting.read()
            assert (late.status, late.headers["x-refusal-reason"]) == (503, "queue_timeout")
            assert MAX_WAIT - 0.005 <= late.seconds < MAX_WAIT + SLACK
        for each in (wire, waiting):
            assert (await each.ask("/hello")).body == b"hello", "on the same connections"


async def test_b26_health_answers_while_everything_is_taken(
    server: Server, request: pytest.FixtureRequest
) -> None:
    """B26: every answer is 200 and quick."""
    async with idle_afterwards(server), connected(server.port) as wire, full(server):
        slowest = 0.0
        for _ in range(12):
            checked = await wire.ask("/healthz")
            assert checked.status == 200
            slowest = max(slowest, checked.seconds)
            await asyncio.sleep(0.02)
        assert slowest < SLACK
        report(request, "slowest health answer", slowest)


async def test_a_caller_who_leaves_the_queue_is_forgotten(server: Server) -> None:
    async with idle_afterwards(server) as change, full(server):
        async with connected(server.port) as wire:
            await wire.send("/work")
            await until(server, lambda now: now["queued"] == 1, 10.0)
        assert await until(server, lambda now: now["queued"] == 0, MAX_WAIT) < MAX_WAIT - 0.3, (
            "before his wait is over"
        )
        assert change.of(await state(server), "begun") == 1


async def test_b16_events_pass_as_they_happen_and_end_at_the_deadline(
    server: Server, request: pytest.FixtureRequest
) -> None:
    """B16: the head at once, an event every 100 ms; at the deadline the connection ends without an end of the body."""
    async with idle_afterwards(server) as change, connected(server.port) as wire:
        await wire.send("/stream", budget=1500)
        # daphne leaves the connection open when an application ends without ending its response.
        answer = await wire.read(within=3.0 if server.name == "daphne" else 10.0)
        assert answer.status == 200
        assert answer.times[1] < 1.2, "not when all is over"
        assert 2 <= len(answer.times[1:]) <= 15
        assert all(0.1 * number - 0.01 <= at for number, at in enumerate(answer.times[1:]))
        assert not answer.whole
        if server.name != "daphne":
            assert 1.49 <= answer.seconds < 1.5 + SLACK
        assert change.of(await state(server), "stream ended") == 1
        report(request, "cut off after", answer.seconds)


async def test_b31_an_upload_that_stalls_gets_its_504(server: Server) -> None:
    """B31: on the servers that start the application before the body is there."""
    if server.name == "daphne":
        pytest.skip("it starts the application when the whole body has come")
    async with idle_afterwards(server), connected(server.port) as wire:
        wire._sent = time.monotonic()
        wire.writer.write(
            b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\nx-request-timeout-ms: 300\r\n\r\nabc"
        )
        is_504_on_time(await wire.read(), 0.3)


async def test_bodies_pass_both_ways(server: Server) -> None:
    body = bytes(range(256)) * 2000
    async with idle_afterwards(server), connected(server.port) as wire:
        for _ in range(2):
            answer = await wire.ask("/echo", method="POST", body=body)
            assert answer.body == body


async def test_many_callers_with_tempers(server: Server) -> None:
    """Everything at once: callers who wait, leave, are refused, expire. Every slot comes back."""

    async def call(number: int) -> None:
        async with connected(server.port) as wire:
            path = ("/work", "/hello", "/sleep", "/stream", "/thread?seconds=0.05", "/brief")[number % 6]
            await wire.send(path, budget=(None, 50, 150, 400)[number % 4])
            if number % 5 < 2:
                await asyncio.sleep(0.01 * (number % 13))
                wire.leave(rudely=number % 2 == 0)
                return
            if path == "/stream":
                await asyncio.sleep(0.2)
                return
            answer = await wire.read()
            assert answer.status in {200, 503, 504}

    async with idle_afterwards(server):
        calls: list[Any] = []
        for number in range(120):
            calls.append(asyncio.create_task(call(number)))
            await asyncio.sleep(0.005)
            if number % 6 == 2 and number % 4 in {0, 3} and number % 5 >= 2:
                calls.pop().cancel()  # a sleeper without a budget worth waiting for
        await asyncio.gather(*calls)


# -- what servers were seen to do wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/sleep", "/stream"])
async def test_who_closes_his_half_of_the_connection_has_left(server: Server, path: str) -> None:
    """No server waits for a caller who will say nothing more, but Hypercorn, which would still deliver an answer."""
    async with idle_afterwards(server) as change, AsyncExitStack() as stack:
        for number in range(5):
            wire = await stack.enter_async_context(connected(server.port))
            await wire.send(path)
            if path == "/stream":
                await wire.reader.readuntil(b"data: 0")
            else:
                await until(server, lambda now, due=number + 1: change.of(now, "begun") == due, 1.0)  # type: ignore[misc]
            wire.writer.write_eof()
        await until(
            server,
            lambda now: (
                change.of(now, "cancelled" if path == "/sleep" else "stream ended") == 5 and now["slots"] == 0
            ),
            1.0,
        )


async def test_the_disconnect_is_told_to_everybody_and_again(server: Server) -> None:
    """Hypercorn and Daphne tell it once, to one of those who ask, and Gunicorn wakes one of them."""
    async with idle_afterwards(server) as change:
        for number in range(5):
            async with connected(server.port) as wire:
                await wire.send("/listen")
                await until(server, lambda now, due=number + 1: change.of(now, "begun") == due, 1.0)  # type: ignore[misc]
                wire.leave(rudely=number % 2 == 1)
        await until(server, lambda now: change.of(now, "told") == 15 and now["slots"] == 0, 2.0)


async def test_who_leaves_behind_a_body_that_nobody_reads_is_noticed(server: Server) -> None:
    """Uvicorn would lose the body, were it asked for after the disconnect only."""
    async with idle_afterwards(server) as change:
        async with connected(server.port) as wire:
            await wire.send("/sleep", method="POST", body=b"x" * 40_000)
            await until(server, lambda now: change.of(now, "begun") == 1, 1.0)
            await asyncio.sleep(0.1)
        await until(server, lambda now: change.of(now, "cancelled: client_disconnect") == 1, 1.0)


async def test_a_second_request_on_its_way_delays_a_disconnect_to_the_deadline_at_most(
    server: Server,
) -> None:
    """Some servers see nobody leave while one request stands behind another; uvloop then raises from `send()`."""
    async with idle_afterwards(server) as change:
        async with connected(server.port) as wire:
            await wire.send("/sleep", budget=600)
            await wire.send("/hello")
            await until(server, lambda now: change.of(now, "begun") == 1, 1.0)
        await until(server, lambda now: change.of(now, "cancelled") == 1 and now["slots"] == 0, 1.0)


async def test_both_of_two_requests_in_one_go_are_answered_in_order(server: Server) -> None:
    async with idle_afterwards(server), connected(server.port) as wire:
        await wire.send("/sleep", budget=300)
        await wire.send("/hello")
        first, second = await wire.read(), await wire.read()
        assert (first.status, second.status, second.body) == (504, 200, b"hello")


@pytest.mark.parametrize("path", ["/echo", "/hello"], ids=["refused", "answered early"])
async def test_an_early_answer_in_the_middle_of_an_upload_blocks_nobody(server: Server, path: str) -> None:
    """Hypercorn reads no further after ten parts that nobody takes; the caller hangs in his upload.

    Granian and Gunicorn close the connection, as they may.
    """
    async with idle_afterwards(server), connected(server.port) as wire:
        wire._sent = time.monotonic()
        due = "x-request-timeout-ms: 0\r\n" if path == "/echo" else ""
        wire.writer.write(
            f"POST {path} HTTP/1.1\r\nhost: a\r\n{due}transfer-encoding: chunked\r\n\r\n".encode()
        )

        if server.name != "daphne":  # it begins when the whole body has come
            answer = await wire.read()
        lost = False
        async with asyncio.timeout(2.0):
            try:
                for _ in range(100):
                    wire.writer.write(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
                    await wire.writer.drain()
                wire.writer.write(b"0\r\n\r\n")
                await wire.writer.drain()
            except ConnectionError:
                lost = True
        if server.name == "daphne":
            answer = await wire.read()
        assert (answer.status, answer.whole) == (504 if path == "/echo" else 200, True)
        if server.name in {"granian", "gunicorn"}:
            return
        assert not lost
        assert (await wire.ask("/hello")).body == b"hello", "on the same connection"
    await until(server, lambda now: now["served"] == 0, 2.0)


async def test_a_refusal_instead_of_100_continue(server: Server) -> None:
    """Hypercorn and Daphne have said "continue" before anybody is asked."""
    async with idle_afterwards(server), connected(server.port) as wire:
        wire._sent = time.monotonic()
        wire.writer.write(
            b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\n"
            b"x-request-timeout-ms: 0\r\n\r\n"
        )
        head = await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n"), 2.0)
        if b" 100 " in head:
            assert server.name in {"hypercorn", "daphne"}
            wire.writer.write(b"hello")
            head = await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n"), 2.0)
        assert b" 504 " in head


async def test_a_server_that_cancels_by_itself_changes_nothing(server: Server) -> None:
    """Gunicorn cancels the request of a caller who left 3 s later, and so a clean-up that is still at work."""
    if server.name != "gunicorn":
        pytest.skip("it never does")
    async with idle_afterwards(server) as change:
        async with connected(server.port) as wire:
            await wire.send("/tidy")
            await until(server, lambda now: change.of(now, "begun") == 1, 1.0)
            await asyncio.sleep(0.1)
        await until(server, lambda now: change.of(now, "cancelled: client_disconnect") == 1, 1.0)
        assert (await state(server))["slots"] == 1, "as long as the clean-up lasts"
        await until(server, lambda now: now["slots"] == 0, 5.0)


CUT_OFF = ("returned without completing response", "returned without completing the response")
"""What servers say, in one line, of a response that was cut off at its deadline: so it was."""


def test_the_log_holds_no_error(server: Server) -> None:
    """After all of the above: no traceback, nothing that a person on call would look at."""
    logged = server.logged()
    for line in logged.splitlines():
        if not any(text in line for text in CUT_OFF):
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
