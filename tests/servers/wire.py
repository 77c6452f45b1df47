"""A caller over a raw socket, who keeps his connection, reads slowly, or leaves."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        seconds: since the request was sent.
        whole: whether the body came to its end.
        times: when each chunk of a chunked body came, in seconds since the request was sent; the first is the head's.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float
    whole: bool
    times: list[float]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sent = 0.0
        self._heads_only = False

    async def send(
        self,
        path: str,
        *,
        budget: int | None = None,
        method: str = "GET",
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: service"]
        lines += [f"{name}: {value}" for name, value in headers]
        self._heads_only = method == "HEAD"
        if budget is not None:
            lines.append(f"x-request-timeout-ms: {budget}")
        if body:
            lines.append(f"content-length: {len(body)}")
        self._sent = time.monotonic()
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        await self.writer.drain()

    async def read(self, within: float = 10.0) -> Answer:
        """Read one answer; of a body that does not end in time, what has come."""
        status, headers = await asyncio.wait_for(self._head(), within)
        times = [self._elapsed()]
        body = bytearray()
        whole = False
        with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            async with asyncio.timeout(within - self._elapsed()):
                if headers.get("transfer-encoding") == "chunked":
                    await self._chunks(body, times)
                elif not self._heads_only:
                    body += await self.reader.readexactly(int(headers.get("content-length", 0)))
            whole = True
        return Answer(status, headers, bytes(body), self._elapsed(), whole, times)

    async def ask(self, path: str, **more: Any) -> Answer:
        await self.send(path, **more)
        return await self.read()

    def leave(self, *, rudely: bool = False) -> None:
        """Hang up, by FIN or by RST."""
        if rudely:
            raw: socket.socket = self.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()

    def _elapsed(self) -> float:
        return time.monotonic() - self._sent

    async def _head(self) -> tuple[int, dict[str, str]]:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        fields = (line.split(":", 1) for line in lines)
        return int(first.split(" ")[1]), {name.lower(): value.strip() for name, value in fields}

    async def _chunks(self, body: bytearray, times: list[float]) -> None:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            chunk = await self.reader.readexactly(size + 2)
            times.append(self._elapsed())
            body += chunk[:-2]
        await self.reader.readexactly(2)


@asynccontextmanager
async def connected(port: int, source: str | None = None) -> AsyncIterator[Wire]:
    """Connect, from an address of the loopback network if one is named."""
    local = None if source is None else (source, 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


async def ask(port: int, path: str, source: str | None = None, **more: Any) -> Answer:
    """Send one request on a connection of its own."""
    async with connected(port, source) as wire:
        return await wire.ask(path, **more)
