"""Turns the response of an ASGI framework into the page of a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from resilient_mw.core.pages import RefusalPage

LARGEST = 1_048_576
"""Bytes of the largest page: what is drawn for a refusal must not be a download."""


async def page_of(
    response: Callable[[Any, Any, Any], Awaitable[None]], request: Mapping[str, Any]
) -> RefusalPage:
    """Return what a response says, which is an ASGI application: its body, its media type and its other fields.

    Raises:
        ValueError: it is too large, or no response at all.
    """
    start: dict[str, Any] = {}
    parts: list[bytes] = []
    size = 0

    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await (
                asyncio.get_running_loop().create_future()
            )  # who listens for the disconnect is to sleep, not to spin
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal size
        if message["type"] == "http.response.start":
            start.update(message)
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > LARGEST:
                raise ValueError(f"the page of a refusal is larger than {LARGEST} bytes")

    # As GET: what leaves the body away for HEAD would leave the length of the answer unknown. Without the extensions of the
    # server, nobody sends a file by its name.
    await response({**request, "method": "GET", "extensions": {}}, receive, send)
    if not start:
        raise ValueError(f"{response!r} sent no response")
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers", ())]
    media_type = next((value for name, value in fields if name.lower() == "content-type"), "text/plain")
    return RefusalPage(b"".join(parts), media_type, fields)
