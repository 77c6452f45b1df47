"""Requests and responses in the shape that `resilient_mw.transport` works with, for libraries of another shape.

The transports are made for httpx and know its objects by their attributes alone. What stands here has those attributes
and nothing else, so that every client makes its calls through the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any
from urllib.parse import SplitResult, urlsplit


class Url:
    """Where a request goes.

    Args:
        text: the absolute URL, its path encoded as it is sent.
    """

    __slots__ = ("_parts", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._parts: SplitResult = urlsplit(text)

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return str(other) == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def scheme(self) -> str:
        """The scheme, in lower case."""
        return self._parts.scheme

    @property
    def host(self) -> str:
        """The host."""
        return self._parts.hostname or ""

    @property
    def raw_host(self) -> bytes:
        """The host as it is sent."""
        try:
            return self.host.encode("idna")
        except UnicodeError:
            return self.host.encode("ascii", "replace")

    @property
    def port(self) -> int | None:
        """The port; None: the one that the scheme implies."""
        return self._parts.port

    @property
    def raw_path(self) -> bytes:
        """Path and query as they are sent."""
        path = self._parts.path or "/"
        query = f"?{self._parts.query}" if self._parts.query else ""
        return f"{path}{query}".encode("utf-8", "replace")


class Headers:
    """The lines of a head, in order. A name is found whatever its case.

    Args:
        lines: names and values, as text or bytes; a name may stand several times.
    """

    __slots__ = ("lines",)

    def __init__(self, lines: Iterable[tuple[Any, Any]]) -> None:
        self.lines: list[tuple[str, Any]] = [(_text(name), value) for name, value in lines]

    @property
    def raw(self) -> list[tuple[bytes, bytes]]:
        """The lines as bytes."""
        return [(_bytes(name), _bytes(value)) for name, value in self.lines]

    def get_list(self, name: str) -> list[str]:
        """Return every value of a name."""
        name = name.lower()
        return [_text(value) for key, value in self.lines if key.lower() == name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the values of a name as one, or the default."""
        values = self.get_list(name)
        return ", ".join(values) if values else default

    def items(self) -> Iterator[tuple[str, Any]]:
        """Iterate over the lines."""
        return iter(self.lines)

    def pop(self, name: str, default: Any = None) -> Any:
        """Remove every line of a name; return what they held."""
        found = self.get(name, default)
        self.lines = [line for line in self.lines if line[0].lower() != name.lower()]
        return found

    def __contains__(self, name: str) -> bool:
        return bool(self.get_list(name))

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.lines)

    def __getitem__(self, name: str) -> str:
        values = self.get_list(name)
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __setitem__(self, name: str, value: str) -> None:
        wanted = name.lower()
        for index, (key, _) in enumerate(self.lines):
            if key.lower() == wanted:
                later = [line for line in self.lines[index + 1 :] if line[0].lower() != wanted]
                self.lines[index:] = [(key, value), *later]
                return
        self.lines.append((name, value))

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.pop(name)


class ByteStream:
    """A request body that can be sent again.

    Args:
        body: as the caller gave it: bytes, text or nothing.
    """

    __slots__ = ("body",)

    def __init__(self, body: Any) -> None:
        self.body = body


class Request:
    """A request, or that of one attempt.

    Args:
        method: the method.
        url: a `Url`.
        headers: `Headers`; they are copied.
        stream: the body.
        extensions: `timeout` and `trace` as of httpx, and what the integration passes to itself.
    """

    def __init__(
        self, method: str, url: Url, *, headers: Headers, stream: Any, extensions: Mapping[str, Any]
    ) -> None:
        self.method = method
        self.url = url
        self.headers = Headers(headers.items())
        self.stream = stream
        self.extensions: dict[str, Any] = dict(extensions)

    def __getstate__(self) -> dict[str, Any]:
        # An error knows its request and must survive the way into another process; the way there need not.
        return {**vars(self), "stream": ByteStream(None), "extensions": {}}


class Response:
    """A response, as far as the transports look at it.

    Args:
        original: the library's own response.
        status: the status.
        headers: the head.
        stream: the body: it can be iterated and closed.
        is_closed: whether there is nothing to read.
        close: closes the response, or lets it go.
    """

    def __init__(
        self,
        original: Any,
        *,
        status: int,
        headers: Headers,
        stream: Any,
        is_closed: bool,
        close: Callable[[], None],
    ) -> None:
        self.original = original
        self.status_code = status
        self.headers = headers
        self.stream = stream
        self.is_closed = is_closed
        self._close = close
        self.extensions: dict[str, Any] = {}

    def close(self) -> None:
        """Close it."""
        self.is_closed = True
        self._close()

    async def aclose(self) -> None:
        """Close it, for an async client."""
        self.close()


class Nothing:
    """What is left of a body that its library closes by itself."""

    def close(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


class SyncByteStream:
    """The base that the transports' streams want."""


class AsyncByteStream:
    """The same for async clients."""


def shaped(name: str, **errors: Any) -> ModuleType:
    """Return what `Library` takes for a module: these objects, and the errors under the names of httpx."""
    module = ModuleType(name)
    names = {
        "Request": Request,
        "Headers": Headers,
        "ByteStream": ByteStream,
        "SyncByteStream": SyncByteStream,
        "AsyncByteStream": AsyncByteStream,
        **errors,
    }
    vars(module).update(names)
    return module


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8")
