"""The stored answer: what is kept of a response, in which bytes stores keep it, and what is never kept.

Header lines are a list of pairs of bytes, in order and with repeats, as they were on the wire: no mapping and no parser in
between, which would join or split what may not be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

REPLAYED: Final = (b"Idempotency-Replayed", b"true")
"""The header line that a replayed answer has more than the first one."""

NEVER_KEPT: Final = frozenset(
    # Of the connection, not of the answer (RFC 9110 7.6.1).
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade "
    # Credentials and sessions: whoever holds the key must not get them.
    b"set-cookie set-cookie2 authorization www-authenticate authentication-info proxy-authenticate "
    b"proxy-authorization proxy-authentication-info clear-site-data "
    # Of the first answer's instant and place: a replay has its own.
    b"date server age via retry-after alt-svc content-length "
    # Of one request.
    b"x-request-id request-id x-correlation-id correlation-id traceparent tracestate traceresponse server-timing "
    b"x-runtime x-process-time x-response-time x-refusal-reason idempotency-replayed".split()
)
"""Lower-case names of header fields that no record keeps. The length is told anew from the body that is kept."""

_WITHOUT_BODY: Final = frozenset({204, 304})
_HEAD: Final = struct.Struct("!BHIB")
_LINE: Final = struct.Struct("!II")
_FORMAT: Final = 1

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer as a record keeps it.

    Attributes:
        status: the HTTP status code.
        headers: lines in order, names as they were written.
        body: None: it was larger than the policy keeps.
    """

    status: int
    headers: Headers = ()
    body: bytes | None = b""

    def replay_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the header lines of a replay: those that are kept, the length of the body, and `Idempotency-Replayed`."""
        lines = list(self.headers)
        if self.body is not None and self.status not in _WITHOUT_BODY:
            lines.append((b"Content-Length", b"%d" % len(self.body)))
        lines.append(REPLAYED)
        return lines


def kept_headers(lines: Iterable[tuple[bytes, bytes]], without: frozenset[bytes] = frozenset()) -> Headers:
    """Return the header lines of a response that may be kept and shown again to the same caller.

    Args:
        lines: as the application sent them.
        without: more lower-case names to leave out.
    """
    lines = [(bytes(name), bytes(value)) for name, value in lines]
    named = {
        each.strip().lower()
        for name, value in lines
        if name.lower() == b"connection"
        for each in value.split(b",")
    }
    never = NEVER_KEPT | without | named
    return tuple((name, value) for name, value in lines if name.lower() not in never)


def encode_answer(answer: StoredAnswer) -> bytes:
    """Return the bytes in which stores keep an answer."""
    body = answer.body
    parts = [_HEAD.pack(_FORMAT, answer.status, len(answer.headers), body is not None)]
    for name, value in answer.headers:
        parts += _LINE.pack(len(name), len(value)), name, value
    if body is not None:
        parts.append(body)
    return b"".join(parts)


def decode_answer(data: bytes) -> StoredAnswer:
    """Return the answer that `encode_answer` made these bytes of.

    Raises:
        ValueError: they are of another format, or cut off.
    """
    data = bytes(data)
    try:
        form, status, count, has_body = _HEAD.unpack_from(data)
        if form != _FORMAT:
            raise ValueError(
                f"a stored answer of format {form} is not known here: this version reads {_FORMAT}"
            )
        at = _HEAD.size
        lines = []
        for _ in range(count):
            name, value = _LINE.unpack_from(data, at)
            at += _LINE.size
            if at + name + value > len(data):
                raise ValueError("a stored answer is cut off in its header lines")
            lines.append((data[at : at + name], data[at + name : at + name + value]))
            at += name + value
    except struct.error as error:
        raise ValueError("a stored answer is cut off") from error
    return StoredAnswer(status, tuple(lines), data[at:] if has_body else None)


class Capture:
    """Keeps a response while it passes by, up to a limit.

    Args:
        most: bytes of body that are kept; of a larger one nothing is.
        without: lower-case names of header fields that are not kept, beside `NEVER_KEPT`.
    """

    __slots__ = ("_headers", "_most", "_pieces", "_size", "_without", "status")

    def __init__(self, most: int, without: frozenset[bytes] = frozenset()) -> None:
        self.status: int | None = None
        self._most = most
        self._without = without
        self._headers: Headers = ()
        self._pieces: list[bytes] | None = []
        self._size = 0

    def head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Take the head. A later one replaces it, as WSGI's `start_response` with `exc_info` does."""
        self.status = status
        self._headers = kept_headers(headers, self._without)

    def piece(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self._pieces is None or not data:
            return
        self._size += len(data)
        if self._size > self._most:
            self._pieces = None
        else:
            self._pieces.append(bytes(data))

    def no_body(self) -> None:
        """Note that the body goes a way on which it cannot be kept (a file that the server sends by itself)."""
        self._pieces = None

    def answer(self) -> StoredAnswer:
        """Return what was kept.

        Raises:
            RuntimeError: there was no head yet.
        """
        if self.status is None:
            raise RuntimeError("nothing was answered yet")
        return StoredAnswer(
            self.status, self._headers, None if self._pieces is None else b"".join(self._pieces)
        )
