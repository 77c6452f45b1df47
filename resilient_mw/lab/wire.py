"""One HTTP/1.1 exchange over a raw socket: for the users of the load, and for questions to a dependency."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

HOST = "127.0.0.1"

WIRE_ERRORS = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)
"""What an exchange raises when the other side is not there, hangs up, or answers something else than HTTP."""


class Reply(NamedTuple):
    """An answer; names of header fields are in lower case, and of equal names the last one counts."""

    status: int
    fields: dict[str, str]
    body: bytes


def request_bytes(method: str, target: str, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return a request without a body that asks for the connection to be closed after the answer."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {HOST}", "Connection: close"]
    if method != "GET":
        lines.append("Content-Length: 0")
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return status and fields of an answer's head.

    Raises:
        ValueError: this is no HTTP/1.1 answer.
    """
    status_line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    version, _, rest = status_line.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{status_line!r} is no HTTP/1.1 status line")
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    return int(rest[:3]), fields


async def exchange(port: int, request: bytes) -> Reply:
    """Send a request on a connection of its own and return the whole answer.

    However this ends, by cancellation too, the socket is closed at once.

    Raises:
        OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError: `WIRE_ERRORS`.
    """
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request)
        status, fields = parse_head(await reader.readuntil(b"\r\n\r\n"))
        length = fields.get("content-length")
        body = await (reader.read() if length is None else reader.readexactly(int(length)))
        return Reply(status, fields, body)
    finally:
        writer.transport.abort()
