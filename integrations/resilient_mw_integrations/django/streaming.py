"""Bodies that Django streams after `ResilienceMiddleware` has returned: their deadline, and `current()` while they are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import budget


def within_deadline(response: Any, seconds: float, ended: Callable[[], object] | None) -> None:
    """Have a streamed response end at its deadline.

    Args:
        response: a `StreamingHttpResponse`.
        seconds: what is left.
        ended: called when the stream has ended, however it does: where a stream fails, Django closes no response.
    """
    until = MONOTONIC.now() + seconds
    if response.is_async:
        response.streaming_content = _async_chunks(aiter(response.streaming_content), until, ended)
    else:
        response.streaming_content = _chunks(iter(response.streaming_content), until, ended)


async def _async_chunks(
    chunks: AsyncIterator[bytes], until: float, ended: Callable[[], object] | None
) -> AsyncIterator[bytes]:
    try:
        while True:
            # Entered for each step: a scope around a `yield` would cancel whoever sends the chunk.
            async with budget(max(0.0, until - MONOTONIC.now())):
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
            yield chunk
    finally:
        try:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()
        finally:
            if ended is not None:
                ended()


def _chunks(chunks: Iterator[bytes], until: float, ended: Callable[[], object] | None) -> Iterator[bytes]:
    try:
        while True:
            with budget(max(0.0, until - MONOTONIC.now())) as left:
                left.check()
                try:
                    chunk = next(chunks)
                except StopIteration:
                    return
            yield chunk
    finally:
        if ended is not None:
            ended()
