from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from resilient_mw.lab.prices import PriceService, start
from resilient_mw.lab.wire import Reply, exchange, request_bytes


@asynccontextmanager
async def running(delay: float = 0.0, mode: str = "ok") -> AsyncIterator[tuple[PriceService, int]]:
    service = PriceService(delay, mode)
    server = await start(0, service)
    try:
        yield service, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def ask(port: int, method: str, target: str) -> Reply:
    return await asyncio.wait_for(exchange(port, request_bytes(method, target)), 5)


async def counts(port: int) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await ask(port, "GET", "/control/counts")).body)
    return answer


async def test_it_answers_after_the_delay() -> None:
    async with running(0.15) as (_, port):
        begin = time.monotonic()
        reply = await ask(port, "GET", "/price")
        assert time.monotonic() - begin >= 0.15
        assert (reply.status, json.loads(reply.body)["price"]) == (200, 990)


async def test_delay_and_mode_are_switched_while_it_runs_and_requests_in_hand_keep_theirs() -> None:
    async with running(0.2) as (_, port):
        early = asyncio.create_task(ask(port, "GET", "/price"))
        await asyncio.sleep(0.05)
        assert (await ask(port, "POST", "/control?delay=0&mode=error")).status == 200
        assert (await ask(port, "GET", "/price")).status == 500
        assert not early.done()
        assert (await early).status == 200
        assert (await ask(port, "POST", "/control?mode=ok")).status == 200
        assert (await ask(port, "GET", "/price")).status == 200


async def test_reset_closes_the_connection_without_an_answer() -> None:
    async with running(0, "reset") as (service, port):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await ask(port, "GET", "/price")
        assert (service.received, service.answered, service.in_flight) == (1, 0, 0)


async def test_it_counts() -> None:
    async with running(0.1) as (_, port):
        await asyncio.gather(*(ask(port, "GET", "/price") for _ in range(5)))
        seen = await counts(port)
        assert (seen["received"], seen["answered"], seen["in_flight"], seen["peak"]) == (5, 5, 0, 5)
        assert seen["last_second"] == 5
        arrivals = json.loads((await ask(port, "GET", "/control/arrivals")).body)
        assert len(arrivals) == 5
        assert all(0 <= time.monotonic() - instant < 5 for instant in arrivals)


async def test_a_caller_who_leaves_is_counted() -> None:
    async with running(30) as (service, port):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(exchange(port, request_bytes("GET", "/price")), 0.1)
        for _ in range(100):
            if service.abandoned:
                break
            await asyncio.sleep(0.01)
        assert (service.received, service.answered, service.abandoned, service.in_flight) == (1, 0, 1, 0)


async def test_a_connection_is_kept_and_requests_sent_at_once_are_answered_in_order() -> None:
    async with running(0.02) as (service, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        price = b"GET /price HTTP/1.1\r\nHost: x\r\n\r\n"
        # In two pieces that do not end where a request does.
        writer.write(price + b"GET /no HTTP/1.1\r\n")
        await asyncio.sleep(0.05)
        writer.write(b"Host: x\r\n\r\n" + price)
        statuses = []
        for _ in range(3):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            statuses.append(int(head.split(b" ")[1]))
            assert b"close" not in head
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
        assert statuses == [200, 404, 200]
        assert service.peak == 1
        writer.close()
        await writer.wait_closed()


async def test_head_and_body_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    async with running() as (service, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
        (connection,) = service.connections
        transport = connection._transport
        monkeypatch.setattr(transport, "write", lambda data: writes.append(bytes(data)), raising=False)
        writer.write(b"GET /price HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.close()
        await writer.wait_closed()
        del reader
    assert len(writes) == 1
    assert writes[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert writes[0].endswith(b"}")


@pytest.mark.parametrize(
    "query",
    ["", "delay=-1", "delay=nan", "delay=inf", "delay=3601", "delay=soon", "delay=", "mode=slow", "mode=",
     "delay=1&delay=2", "speed=1", "delay=1&speed=1", "delay=5&mode=slow"],
)  # fmt: skip
async def test_a_wrong_switch_is_refused_and_changes_nothing(query: str) -> None:
    async with running(0.25) as (service, port):
        reply = await ask(port, "POST", f"/control?{query}")
        assert reply.status == 400
        assert "error" in json.loads(reply.body)
        assert (service.delay, service.mode) == (0.25, "ok")


@pytest.mark.parametrize(
    ("method", "target"), [("GET", "/"), ("POST", "/price"), ("GET", "/control"), ("GET", "/price/x")]
)
async def test_other_addresses_are_not_found_and_not_counted(method: str, target: str) -> None:
    async with running() as (service, port):
        assert (await ask(port, method, target)).status == 404
        assert service.received == 0


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET /price\r\n\r\n", b"GET /price HTTP/1.0\r\n\r\n", b"POST /control HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
     b"POST /control HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"\r\n\r\n"],
)  # fmt: skip
async def test_what_it_does_not_speak_is_answered_once_and_the_connection_closed(
    request_bytes: bytes,
) -> None:
    async with running() as (service, port):
        reply = await asyncio.wait_for(exchange(port, request_bytes), 5)
        assert reply.status == 400
        assert reply.fields["connection"] == "close"
        assert service.received == 0


async def test_a_head_without_end_is_cut_off() -> None:
    async with running() as (_, port):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(exchange(port, b"GET /price HTTP/1.1\r\nX: " + b"x" * 20_000), 5)
