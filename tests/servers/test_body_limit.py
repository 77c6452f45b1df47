"""A body that is too large, on a real server: the caller gets his 413, or a cut, and the slot comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.servers.bounded import LIMIT
from tests.servers.processes import Server, listening
from tests.servers.wire import Answer, Wire, ask, connected

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["uvicorn-h11", "uvicorn-httptools"])
def bounded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("uvicorn")
    with listening(
        request.param, tmp_path_factory.mktemp("bounded"), source="tests.servers.bounded"
    ) as running:
        yield running
        assert "Traceback" not in running.logged()


async def upload(wire: Wire, path: str, size: int, chunk: int = 10_000) -> Answer:
    """Send a chunked body of a size, and read the answer, which may come before its end."""
    head = f"POST {path} HTTP/1.1\r\nhost: service\r\ntransfer-encoding: chunked\r\n\r\n".encode()

    async def send() -> None:
        with suppress(ConnectionError):
            wire.writer.write(head)
            for start in range(0, size, chunk):
                part = b"x" * min(chunk, size - start)
                wire.writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await wire.writer.drain()
            wire.writer.write(b"0\r\n\r\n")
            await wire.writer.drain()

    wire._sent = time.monotonic()
    sending = asyncio.create_task(send())
    try:
        return await wire.read()
    finally:
        await asyncio.wait({sending}, timeout=5)
        sending.cancel()


async def state(server: Server) -> Any:
    return (await ask(server.port, "/healthz")).json


async def idle(server: Server) -> Any:
    for _ in range(100):
        figures = await state(server)
        if figures["slots"] == 0:
            assert figures["errors"] == 0
            return figures["ended"]
        await asyncio.sleep(0.02)
    raise AssertionError(figures)


@pytest.mark.parametrize("size", [LIMIT + 1, 20 * LIMIT])
async def test_a_chunked_body_beyond_the_limit_gets_413_and_gives_its_slot_back(
    bounded: Server, size: int
) -> None:
    before = await idle(bounded)
    for _ in range(5):  # more than there are slots
        async with connected(bounded.port) as wire:
            answer = await upload(wire, "/", size)
        assert (answer.status, answer.whole) == (413, True)
        assert answer.json["reason"] == "body_too_large"
        assert "x-refusal-reason" not in answer.headers
    after = await idle(bounded)
    assert after["body_too_large"] == before.get("body_too_large", 0) + 5


async def test_a_body_within_the_limit_of_its_route_is_read_to_its_end(bounded: Server) -> None:
    for path, size in (("/", LIMIT), ("/large", 10 * LIMIT)):
        async with connected(bounded.port) as wire:
            answer = await upload(wire, path, size)
        assert (answer.status, answer.body) == (200, str(size).encode())


async def test_a_response_that_has_begun_is_cut(bounded: Server) -> None:
    async with connected(bounded.port) as wire:
        wire.writer.write(b"POST /early HTTP/1.1\r\nhost: service\r\ntransfer-encoding: chunked\r\n\r\n")
        head = await asyncio.wait_for(wire.reader.readuntil(b"begun\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 200 ")
        rest = b""
        with suppress(ConnectionError):
            wire.writer.write(b"%x\r\n%s\r\n" % (LIMIT + 1, b"x" * (LIMIT + 1)))
            await wire.writer.drain()
            rest = await asyncio.wait_for(wire.reader.read(), 5)  # to the end of the connection
        assert rest == b""
    ended = await idle(bounded)
    assert ended["body_too_large"] >= 1


async def test_a_length_beyond_the_limit_is_refused_before_the_body_is_sent(bounded: Server) -> None:
    before = await idle(bounded)
    async with connected(bounded.port) as wire:
        wire.writer.write(f"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {LIMIT + 1}\r\n\r\n".encode())
        answer = await wire.read()
    assert (answer.status, answer.headers["x-refusal-reason"]) == (413, "body_too_large")
    assert await idle(bounded) == before
