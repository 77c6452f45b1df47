"""A client's connection, byte by byte, that can hang up wherever it likes."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

HangUp = Literal["in the request", "after the request", "in the answer"]
HANG_UPS: tuple[HangUp, ...] = ("in the request", "after the request", "in the answer")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        """Whether it is marked as somebody else's answer."""
        return self.headers.get("idempotency-replayed") == "true"

    @property
    def reason(self) -> str:
        """Why it was refused; empty if it was not, or not by the middleware."""
        if self.headers.get("content-type") != "application/problem+json":
            return ""
        return str(json.loads(self.body).get("reason", ""))


def payment_request(key: str, client: str, amount: int) -> bytes:
    """Return the bytes of a request."""
    body = b'{"amount": %d}' % amount
    head = (
        f"POST /payments HTTP/1.1\r\nHost: torture\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f'X-Client: {client}\r\nIdempotency-Key: "{key}"\r\n\r\n'
    )
    return head.encode() + body


class Wire:
    """Requests to one port, one after another, over a connection that is kept while it can be."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self,
        request: bytes,
        *,
        within: float,
        hang_up: HangUp | None = None,
        at: float = 0.0,
        patience: float = 0.0,
    ) -> Answer | None:
        """Send a request and return the answer; None: there is none.

        Args:
            request: its bytes.
            within: seconds.
            hang_up: where to leave.
            at: the part of the request that is still sent, where that is where.
            patience: seconds between the request and leaving.
        """
        whole = False
        try:
            async with asyncio.timeout(within):
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                if hang_up == "in the request":
                    writer.write(request[: int(len(request) * at)])
                    await writer.drain()
                    return None
                writer.write(request)
                await writer.drain()
                if hang_up == "after the request":
                    await asyncio.sleep(patience)
                    return None
                if hang_up == "in the answer":
                    await reader.readexactly(1)
                    return None
                answer = await _read(reader)
                whole = answer is not None
                return answer
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return None
        finally:
            if not whole:
                self.close()

    def close(self) -> None:
        """Hang up."""
        streams, self._streams = self._streams, None
        if streams is not None:
            with suppress(OSError, RuntimeError):
                streams[1].transport.abort()


async def _read(reader: asyncio.StreamReader) -> Answer | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    if "content-length" not in headers:
        return None
    body = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(head[0].split(" ")[1]), headers, body)
