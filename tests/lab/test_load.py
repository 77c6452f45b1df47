from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from resilient_mw.lab.load import Crowd, due_times
from resilient_mw.lab.records import Record
from resilient_mw.lab.step import Load
from resilient_mw.lab.wire import exchange, parse_head, request_bytes

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@asynccontextmanager
async def answering(
    answer: bytes | None, delay: float = 0.0
) -> AsyncIterator[tuple[int, list[float], list[float]]]:
    """A server that answers every connection with the same bytes, or never; tells who came and left when."""
    came: list[float] = []
    left: list[float] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(time.monotonic())
        try:
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(delay)
            if answer is not None:
                writer.write(answer)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            left.append(time.monotonic())
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], came, left
    finally:
        server.close()
        await server.wait_closed()


async def play(port: int, load: Load, length: float) -> tuple[Crowd, list[Record]]:
    crowd = Crowd(port, time.monotonic() + 0.05, [], {load.kind: 0})
    await asyncio.wait_for(crowd.arrive(load, [(length, load.rate)]), 20)
    return crowd, crowd.records


def test_requests_are_due_at_a_fixed_rate() -> None:
    assert due_times([(15, 20)]) == [number / 20 for number in range(300)]
    assert due_times([(0.5, 5)]) == [0.0, 0.2]
    assert due_times([(5, 80)])[-1] < 5


def test_the_rate_changes_from_stretch_to_stretch() -> None:
    assert due_times([(1, 2), (2, 0), (0.5, 4), (1, 1)]) == [0.0, 0.5, 3.0, 3.25, 3.5]


async def test_users_of_a_later_stretch_come_later() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (port, came, _):
        crowd = Crowd(port, time.monotonic() + 0.05, [], {"checkout": 0})
        await crowd.arrive(Load("checkout", "/", 1), [(0.1, 10), (0.4, 0), (0.1, 30)])
        assert len(crowd.records) == 4
        assert [round(record.due, 3) for record in sorted(crowd.records, key=lambda each: each.due)] == [
            0.0, 0.5, 0.533, 0.567,
        ]  # fmt: skip
        assert min(came[1:]) - crowd.start >= 0.5


async def test_requests_are_sent_when_due_whether_or_not_the_last_ones_have_finished() -> None:
    async with answering(None) as (port, came, _):
        crowd, records = await play(port, Load("checkout", "/", 20, give_up=2.5), 0.5)
        assert crowd.sent == {"checkout": 10}
        assert len(came) == 10
        assert max(came) - crowd.start < 2.4  # all were there before the first user gave up
        assert all(record.gave_up and record.outcome == "gave_up" for record in records)


async def test_users_give_up_counted_from_the_due_time_and_close_the_socket() -> None:
    async with answering(None) as (port, _, left):
        crowd, records = await play(port, Load("checkout", "/", 10, give_up=0.3), 0.2)
        async with asyncio.timeout(10):
            while len(left) < 2:  # noqa: ASYNC110  the server has no event for it
                await asyncio.sleep(0.01)
        assert len(left) == len(records) == 2
        for record, instant in zip(sorted(records, key=lambda each: each.due), sorted(left), strict=True):
            assert 0.29 < record.latency < 2.0
            assert 0.29 < instant - (crowd.start + record.due) < 2.5


async def test_latency_counts_from_the_due_time() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as (port, _, _):
        crowd = Crowd(port, time.monotonic() - 1.0, [], {"checkout": 0})  # the generator is a second behind
        await crowd.arrive(Load("checkout", "/", 10), [(0.1, 10)])
        (record,) = crowd.records
        assert record.late >= 1.0
        assert record.latency > record.late


async def test_a_request_that_is_due_too_long_ago_is_given_up_at_once() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (port, _, _):
        crowd = Crowd(port, time.monotonic() - 1.0, [], {"checkout": 0})
        await crowd.arrive(Load("checkout", "/", 10, give_up=0.5), [(0.1, 10)])
        assert crowd.records[0].gave_up


async def test_a_refusal_is_recorded_with_its_guidance() -> None:
    answer = (
        b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\nX-Refusal-Reason: queue_full\r\nContent-Length: 0\r\n\r\n"
    )
    async with answering(answer) as (port, _, _):
        _, records = await play(port, Load("checkout", "/", 10), 0.1)
        assert (records[0].status, records[0].retry_after, records[0].reason) == (503, "7", "queue_full")
        assert records[0].explained


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"],
)
async def test_a_broken_answer_counts_as_failed(answer: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        _, records = await play(server.sockets[0].getsockname()[1], Load("checkout", "/", 10), 0.1)
    assert (records[0].outcome, records[0].status) == ("failed", 0)


async def test_nobody_there_counts_as_failed(unused_tcp_port: int) -> None:
    _, records = await play(unused_tcp_port, Load("checkout", "/", 10), 0.1)
    assert records[0].outcome == "failed"


async def test_progress_counts_what_has_finished() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (port, _, _):
        crowd, _ = await play(port, Load("checkout", "/", 20), 0.2)
        assert crowd.progress() == {
            "checkout": {"sent": 4, "served": 4, "refused": 0, "failed": 0, "gave_up": 0}
        }


async def test_an_answer_without_a_length_is_read_to_its_end() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n12")
        await asyncio.sleep(0.05)
        writer.write(b"34")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        reply = await exchange(server.sockets[0].getsockname()[1], request_bytes("GET", "/"))
    assert reply.body == b"1234"


def test_request_bytes() -> None:
    assert request_bytes("GET", "/x", [("A", "b")]) == (
        b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nA: b\r\n\r\n"
    )
    assert b"\r\nContent-Length: 0\r\n" in request_bytes("POST", "/x")


def test_parse_head() -> None:
    assert parse_head(b"HTTP/1.1 204 \r\nX-A:  b \r\nx-a: c\r\n\r\n") == (204, {"x-a": "c"})
