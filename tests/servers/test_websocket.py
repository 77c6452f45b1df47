"""Websockets on real servers: refusals that a peer can read, and places that come back when he has vanished."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.servers.processes import Server, listening
from tests.servers.sockets import LIMIT
from tests.servers.wire import ask

SERVERS = ["uvicorn-wsproto", "uvicorn-websockets", "hypercorn", "granian", "gunicorn", "daphne"]
DENIES = {"uvicorn-wsproto", "uvicorn-websockets", "hypercorn", "granian"}
"""Servers with the extension `websocket.http.response`. The others answer an early close with 403."""
WITHIN = 2.0
"""Seconds within which the place of a peer who has vanished is free."""
SEND_ONLY_WITHIN = 1.0 + WITHIN
"""The same where the application only sends: half a second passes before anybody listens."""
TEXT, CLOSE = 1, 8


class Peer:
    """A websocket client that can do what no library would."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def shake_hands(self, path: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1", "Host: service", "Connection: Upgrade", "Upgrade: websocket",
            "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}",
        ]  # fmt: skip
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *fields = head.split("\r\n")[:-2]
            self.status = int(first.split(" ")[1])
            self.headers = {
                name.lower(): value.strip() for name, value in (field.split(":", 1) for field in fields)
            }
            if self.status != 101:
                if self.headers.get("transfer-encoding") == "chunked":
                    while size := int(await self.reader.readuntil(b"\r\n"), 16):
                        self.body += (await self.reader.readexactly(size + 2))[:-2]
                else:
                    self.body = await self.reader.readexactly(int(self.headers.get("content-length", 0)))

    def say(self, text: str) -> None:
        self._frame(TEXT, text.encode())

    def _frame(self, kind: int, payload: bytes) -> None:
        mask = b"\x01\x02\x03\x04"
        masked = bytes(byte ^ mask[number % 4] for number, byte in enumerate(payload))
        self.writer.write(struct.pack("!BB", 0x80 | kind, 0x80 | len(payload)) + mask + masked)

    async def hear(self) -> tuple[int, bytes]:
        """Read one short frame: its kind and its content."""
        async with asyncio.timeout(10):
            head, length = await self.reader.readexactly(2)
            return head & 0x0F, await self.reader.readexactly(length)

    async def leave(self, how: str) -> None:
        """Close as the protocol wants it, hang up, or reset the connection."""
        if how == "close":
            self._frame(CLOSE, struct.pack("!H", 1001))
            while (await self.hear())[0] != CLOSE:
                pass
        if how == "reset":
            raw: socket.socket = self.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()


@asynccontextmanager
async def peer(server: Server, path: str) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        made = Peer(reader, writer)
        await made.shake_hands(path)
        yield made
    finally:
        writer.close()


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip(request.param.split("-")[0])
    if request.param == "uvicorn-websockets":
        pytest.importorskip("websockets")
    with listening(
        request.param, tmp_path_factory.mktemp("sockets"), source="tests.servers.sockets"
    ) as running:
        yield running


async def state(server: Server) -> dict[str, Any]:
    return dict((await ask(server.port, "/state")).json)


async def until(server: Server, condition: Callable[[dict[str, Any]], bool], within: float) -> float:
    """Wait for a condition of the state; return how long it took."""
    began = time.monotonic()
    while not condition(now := await state(server)):
        assert time.monotonic() - began < within, (now, server.logged()[-3000:])
        await asyncio.sleep(0.02)
    return time.monotonic() - began


@asynccontextmanager
async def clean(server: Server) -> AsyncIterator[None]:
    """Assert that no place is taken afterwards, no reader left, and nothing in the log."""
    await until(server, lambda now: now["open"] == 0, 5.0)
    logged = len(server.logged())
    yield
    await until(server, lambda now: now["open"] == now["tasks"] == now["errors"] == 0, 5.0)
    assert "Traceback" not in server.logged()[logged:], server.logged()[logged:]


async def test_over_the_limit_a_peer_learns_why(server: Server) -> None:
    async with clean(server):
        held = [peer(server, "/listen") for _ in range(LIMIT)]
        opened = [await each.__aenter__() for each in held]
        assert [each.status for each in opened] == [101] * LIMIT
        begun = (await state(server))["begun"]
        for _ in range(3):
            async with peer(server, "/listen") as refused:
                if server.name in DENIES:
                    assert refused.status == 503
                    assert refused.headers["x-refusal-reason"] == "websocket_limit"
                    assert 1 <= int(refused.headers["retry-after"]) <= 60
                    assert refused.headers["content-type"] == "application/problem+json"
                    assert json.loads(refused.body)["reason"] == "websocket_limit"
                else:
                    assert refused.status == 403
        async with peer(server, "/monitor") as exempt:
            assert exempt.status == 101
        assert (await state(server))["begun"] == begun + 1
        opened[0].say("hello")
        assert await opened[0].hear() == (TEXT, b"hello")
        # Requests have limits of their own.
        assert (await ask(server.port, "/hello")).status == 200
        for each in held:
            await each.__aexit__(None, None, None)


@pytest.mark.parametrize("how", ["close", "hang up", "reset"])
@pytest.mark.parametrize("path", ["/listen", "/tick", "/work"])
async def test_the_place_of_a_peer_who_vanished_is_free(
    server: Server, request: pytest.FixtureRequest, path: str, how: str
) -> None:
    """20 of 20, whether the application listens, only sends, or waits to be told."""
    times = 20 if path == "/listen" else 4
    slowest = 0.0
    async with clean(server):
        before = (await state(server))["gone"]
        for _ in range(times):
            async with peer(server, path) as gone:
                assert gone.status == 101
                if path == "/tick":
                    await gone.hear()
                await gone.leave(how)
                took = await until(
                    server,
                    lambda now: now["open"] == 0,
                    3 * (SEND_ONLY_WITHIN if path == "/tick" else WITHIN),
                )
                slowest = max(slowest, took)
        await until(server, lambda now: now["gone"] - before == times, 10.0)
    print(f"{request.node.name}: free after {slowest * 1000:.0f} ms at most")
    assert slowest < (SEND_ONLY_WITHIN if path == "/tick" else WITHIN)


async def test_z_draining_opens_none_and_leaves_the_open_ones_alone(server: Server) -> None:
    """The last one: nothing takes it back."""
    async with clean(server), peer(server, "/listen") as opened:
        await ask(server.port, "/drain")
        async with peer(server, "/listen") as refused:
            assert refused.status == (503 if server.name in DENIES else 403)
            if server.name in DENIES:
                assert refused.headers["x-refusal-reason"] == "draining"
        opened.say("still there")
        assert await opened.hear() == (TEXT, b"still there")
