"""A caller over a real socket: one connection per request, and one who can leave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a caller got, and when: `seconds` since he asked."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-refusal-reason")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    port: int, path: str, *, budget_ms: int | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send one GET and read the whole answer."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await _send(writer, path, budget_ms, headers)
        raw = await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:])
    lower = {name.lower(): value for name, value in fields.items()}
    return Answer(int(lines[0].split(" ")[1]), lower, body, time.monotonic() - began)


async def leave(port: int, path: str, *, after: float | asyncio.Event, budget_ms: int | None = None) -> float:
    """Send one GET and hang up after some seconds, or an event, without reading; return the instant."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    await _send(writer, path, budget_ms, None)
    await (after.wait() if isinstance(after, asyncio.Event) else asyncio.sleep(after))
    hung_up = time.monotonic()
    writer.transport.abort()
    return hung_up


async def until(holds: Callable[[], object], within: float = 10.0) -> None:
    """Wait for a state of the service, however busy the machine is."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.005)


async def open_loop(
    port: int, paths: list[str], *, rate: float, budget_ms: int | None = None
) -> list[Answer]:
    """Ask for each path at a fixed rate, whether or not the last one was answered; return all answers."""
    began = time.monotonic()
    calls = []
    for number, path in enumerate(paths):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        calls.append(asyncio.create_task(ask(port, path, budget_ms=budget_ms)))
    return await asyncio.gather(*calls)


async def _send(
    writer: asyncio.StreamWriter, path: str, budget_ms: int | None, headers: Mapping[str, str] | None
) -> None:
    lines = [f"GET {path} HTTP/1.1", "Host: service", "Connection: close"]
    if budget_ms is not None:
        lines.append(f"X-Request-Timeout-Ms: {budget_ms}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    await writer.drain()
