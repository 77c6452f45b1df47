"""The fingerprint of a request: tells a repeat from another request with the same key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence

Values = Callable[[str], Sequence[str]]


class Fingerprint:
    """A streamed hash over a request's target, chosen headers and body.

    Args:
        target: the path and the query as they were sent, for the route template leaves out what is in them.
        headers: lower-case names of the header fields that count.
        values: returns the values of a field's lines.
        canonical_json: bytes of body up to which JSON is compared by its meaning: the order of members and white space do not
            count. 0: never. A longer body, and one that is no JSON, is compared by its bytes.
    """

    __slots__ = ("_buffer", "_hash", "_room", "size")

    def __init__(
        self,
        target: str = "",
        headers: Iterable[str] = (),
        values: Values | None = None,
        canonical_json: int = 0,
    ) -> None:
        self._hash = hashlib.sha256(_measured(target))
        self.size = 0
        self._room = canonical_json
        self._buffer: bytearray | None = bytearray() if canonical_json else None
        for name in sorted(headers) if headers else ():
            lines = () if values is None else values(name)
            self._add(name)
            self._hash.update(b"%d;" % len(lines))
            for line in lines:
                self._add(line)

    def update(self, piece: bytes) -> None:
        """Take a piece of the body. How it is cut into pieces does not count."""
        self.size += len(piece)
        if self._buffer is None:
            self._hash.update(piece)
        elif self.size > self._room:
            self._hash.update(b"bytes;" + self._buffer)
            self._hash.update(piece)
            self._buffer = None
        else:
            self._buffer += piece

    def digest(self) -> str:
        """Return the fingerprint of what was taken so far: 64 hexadecimal digits."""
        if self._buffer is None:
            return self._hash.hexdigest()
        whole = self._hash.copy()
        canonical = _canonical(bytes(self._buffer))
        whole.update(b"bytes;" + self._buffer if canonical is None else b"json;" + canonical)
        return whole.hexdigest()

    def _add(self, text: str) -> None:
        self._hash.update(_measured(text))


def _measured(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"%d:%b" % (len(data), data)


def _canonical(body: bytes) -> bytes | None:
    """Return JSON with sorted members and no white space; None where the body is none, or one that can be read two ways.

    Numbers stay as they are written: 1.0 and 1 are not the same text, and nothing is lost in a float.
    """
    try:
        document = json.loads(body, object_pairs_hook=_once, parse_float=_Number, parse_int=_Number)
        return _written(document).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return None


class _Number(str):
    __slots__ = ()


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member stands twice")
    return members


def _written(value: object) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_written(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)
