"""Bodies that are kept when they have been read to their end."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any


@functools.cache
def recorder_of(recorder: type, base: type) -> Any:
    """Return the class of a recorded body: the library insists that streams are of its own classes."""
    return type("Recorded", (recorder, base), {})


class SyncRecorded:
    """A body that is kept when it has been read to its end.

    Args:
        stream: the body.
        largest: bytes; more are not kept.
        complete: called with all of it.
    """

    def __init__(self, stream: Any, largest: int, complete: Callable[[bytes], None]) -> None:
        self._stream = stream
        self._recording = Recording(largest, complete)

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._recording.add(chunk)
            yield chunk
        self._recording.ended()

    def close(self) -> None:
        """Close the body."""
        self._stream.close()


class AsyncRecorded:
    """The same for an async client. Arguments as of `SyncRecorded`."""

    def __init__(self, stream: Any, largest: int, complete: Callable[[bytes], None]) -> None:
        self._stream = stream
        self._recording = Recording(largest, complete)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        iterator = aiter(self._stream)
        try:
            while (chunk := await anext(iterator, None)) is not None:
                self._recording.add(chunk)
                yield chunk
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()
        self._recording.ended()

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()


class Recording:
    """What has been read of a body.

    Args:
        largest: bytes; of more nothing is kept.
        complete: called with all of it.
    """

    __slots__ = ("_chunks", "_complete", "_left")

    def __init__(self, largest: int, complete: Callable[[bytes], None]) -> None:
        self._chunks: list[bytes] = []
        self._left = largest
        self._complete = complete

    def add(self, chunk: bytes) -> None:
        """Take a piece."""
        self._left -= len(chunk)
        if self._left >= 0:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    def ended(self) -> None:
        """Keep it, unless it was too large."""
        if self._left >= 0:
            self._complete(b"".join(self._chunks))
