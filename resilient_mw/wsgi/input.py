"""The request body of an application under a bound: `wsgi.input`, counted as it is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import BodyTooLarge
from resilient_mw.runtime.thread_context import ThreadContext

if TYPE_CHECKING:
    from wsgiref.types import InputStream


class Lines(ABC):
    """What PEP 3333 asks of `wsgi.input` beside `read` and `readline`, made of these."""

    __slots__ = ()

    def readlines(self, hint: int | None = -1) -> list[bytes]:
        """Read lines: all, or until they have `hint` bytes together. Errors as of `readline`."""
        lines: list[bytes] = []
        size = 0
        for line in self:
            lines.append(line)
            size += len(line)
            if hint is not None and 0 < hint <= size:
                break
        return lines

    def __iter__(self) -> Iterator[bytes]:
        while line := self.readline():
            yield line

    @abstractmethod
    def readline(self, size: int | None = -1) -> bytes:
        """Read a line, or up to `size` bytes of it."""


class CountedInput(Lines):
    """Stands in for `wsgi.input` where no `Content-Length` bounds the body.

    It has what PEP 3333 asks for and nothing else: a method of the server's stream that went past it would not be counted.

    Args:
        stream: the server's.
        most: bytes that the application may read.
        context: the request, which is cancelled when there are more.
    """

    __slots__ = ("_context", "_left", "_most", "_stream")

    def __init__(self, stream: InputStream, most: int, context: ThreadContext) -> None:
        self._stream = stream
        self._most = most
        self._left = most
        self._context = context

    def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes; all if it is negative or None, as files do.

        Raises:
            BodyTooLarge: the body is larger than allowed.
        """
        if size is not None and size >= 0:
            return self._counted(self._stream.read(min(size, self._left + 1)))
        parts = []
        while part := self._counted(self._stream.read(self._left + 1)):
            parts.append(part)
        return b"".join(parts)

    def readline(self, size: int | None = -1) -> bytes:
        """Read a line, or up to `size` bytes of it.

        Raises:
            BodyTooLarge: the body is larger than allowed.
        """
        most = self._left + 1
        return self._counted(self._stream.readline(most if size is None or size < 0 else min(size, most)))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left >= 0:
            return data
        self._left = -1  # nothing more of it is read, and whoever tries is told again
        self._context.cancel(CancelReason.BODY_TOO_LARGE)
        raise BodyTooLarge(f"the request body is larger than max_body, {self._most} bytes")
