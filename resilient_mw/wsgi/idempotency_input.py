"""The request body of a request with a key: a part of it is read before the application, and all of it is hashed as it passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resilient_mw.core.headers.content_length import parse_content_length
from resilient_mw.idempotency.fingerprint import Fingerprint
from resilient_mw.wsgi.input import Lines

if TYPE_CHECKING:
    from wsgiref.types import InputStream, WSGIEnvironment

PIECE: Final = 65_536
"""Bytes that are read at once where there is no better number."""
ENDLESS: Final = 1 << 62


class HashedInput(Lines):
    """Stands in for `wsgi.input`, and hashes what is read. It has what PEP 3333 asks for and nothing else.

    Args:
        stream: the server's.
        fingerprint: has the head of the request already.
        length: bytes of the body; None: the stream says itself where it ends.

    Attributes:
        complete: whether the body was seen to its end.
        gone: whether it ended too early: the caller has left.
    """

    __slots__ = ("_fingerprint", "_kept", "_left", "_stream", "_told", "complete", "gone")

    def __init__(self, stream: InputStream, fingerprint: Fingerprint, length: int | None) -> None:
        self._stream = stream
        self._fingerprint = fingerprint
        self._told = length is not None
        self._left = ENDLESS if length is None else length
        self._kept = b""
        self.complete = length == 0
        self.gone = False

    def fetch(self, most: int) -> str | None:
        """Read up to so many bytes, keep them for the application, and return the fingerprint if that was all."""
        parts = []
        while not self._ended and self._fingerprint.size <= most:
            parts.append(self._next(most + 1 - self._fingerprint.size))
        self._kept = b"".join(parts)
        return self.digest()

    def drain(self) -> str | None:
        """Read what is left, keep nothing, and return the fingerprint; None: the caller has left."""
        while not self._ended:
            self._next(PIECE)
        return self.digest()

    def digest(self) -> str | None:
        """Return the fingerprint, if the body was seen to its end."""
        return self._fingerprint.digest() if self.complete else None

    def read(self, size: int | None = -1) -> bytes:
        """Read `size` bytes, fewer only at the end; all if it is negative or None, as files do."""
        size = -1 if size is None else size
        parts = [self._take(len(self._kept) if size < 0 else size)]
        missing = ENDLESS if size < 0 else size - len(parts[0])
        while missing > 0 and not self._ended:
            part = self._next(min(missing, PIECE) if size < 0 else missing)
            missing -= len(part)
            parts.append(part)
        return b"".join(parts)

    def readline(self, size: int | None = -1) -> bytes:
        """Read a line, or up to `size` bytes of it."""
        size = -1 if size is None else size
        end = self._kept.find(b"\n") + 1
        line = self._take(min(end or len(self._kept), len(self._kept) if size < 0 else size))
        missing = ENDLESS if size < 0 else size - len(line)
        if end or missing <= 0 or self._ended:
            return line
        most = min(missing, self._left)
        # A limit larger than any line: some streams know of no other "none" than -1.
        return line + self._seen(self._stream.readline(most if most < ENDLESS else -1))

    @property
    def _ended(self) -> bool:
        return self.complete or self.gone

    def _take(self, size: int) -> bytes:
        taken, self._kept = self._kept[:size], self._kept[size:]
        return taken

    def _next(self, size: int) -> bytes:
        return self._seen(self._stream.read(min(size, self._left)))

    def _seen(self, data: bytes) -> bytes:
        self._fingerprint.update(data)
        if self._told:
            self._left -= len(data)
            self.complete = self._left <= 0
            self.gone = not data and not self.complete
        else:
            self.complete = not data
        return data


def hashed_input(environ: WSGIEnvironment, fingerprint: Fingerprint) -> HashedInput:
    """Return the request body, hashed as it is read, and put it into the environ unless there is none."""
    told = environ.get("CONTENT_LENGTH")
    length = parse_content_length((told,)) if told else None
    if length is None:
        # PEP 3333: without a length there is no body, unless the server says that it knows where the stream ends.
        chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
        if not told and not chunked and not environ.get("wsgi.input_terminated"):
            length = 0
    body = HashedInput(environ["wsgi.input"], fingerprint, length)
    if length != 0:
        environ["wsgi.input"] = body
    return body
