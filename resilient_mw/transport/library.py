"""The client library that a transport is made for: httpx or a fork of it, known only as the module that is passed in.

`import httpx` may give httpx2 (`httpx2.alias_httpx()`), and the two share no class: everything is taken from the module,
nothing is compared by name.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import ModuleType
from typing import Any

from resilient_mw.calls.events import UNSENT, Phase
from resilient_mw.calls.fields import Line
from resilient_mw.transport.streams import AsyncBody, AsyncUpload, SyncBody, SyncUpload


class Library:
    """The names that the transports use of one library, and the errors and streams that are made for it.

    Args:
        module: httpx or a fork of it.
        expired: makes the error of a deadline: (message, phase, dependency).
        refused: makes the error of a refusal: (message, reason, dependency, retry_in).
        too_small: the same where the budget is too small to begin.
        closed: makes the error of a transport that was closed: (message, dependency).
    """

    def __init__(
        self,
        module: ModuleType,
        *,
        expired: Callable[..., Exception],
        refused: Callable[..., Exception],
        too_small: Callable[..., Exception],
        closed: Callable[..., Exception],
    ) -> None:
        self.module = module
        self.name = module.__name__
        self.expired, self.refused, self.too_small, self.closed = expired, refused, too_small, closed
        self._headers, self._request = module.Headers, module.Request
        self._open = keeps_lines(module)
        self.lines: Callable[[Any], list[Line]] = attrgetter("_list") if self._open else lines_of
        """Return the header fields of a request: name, name in lower case, value. Not to be changed."""
        self.origin: Callable[[Any], tuple[Any, ...]] = origin_of(module)
        """Return what a URL says of scheme, host and port, in whatever form."""
        self.transport_error: type[Exception] = module.TransportError
        self.timeout: type[Exception] = module.TimeoutException
        self.mistakes: tuple[type[Exception], ...] = (module.LocalProtocolError, module.UnsupportedProtocol)
        """Errors of the caller: they say nothing about the dependency, and would come again."""
        self.bytes_stream: type = module.ByteStream
        # The library insists that streams are of its own classes.
        self.sync_body: Callable[..., SyncBody] = type("Body", (SyncBody, module.SyncByteStream), {})
        self.async_body: Callable[..., AsyncBody] = type(
            "Body",
            (AsyncBody, module.AsyncByteStream),
            {"closes_nothing": getattr(module.AsyncByteStream, "aclose", None)},
        )
        self.sync_upload: Callable[..., SyncUpload] = type("Upload", (SyncUpload, module.SyncByteStream), {})
        self.async_upload: Callable[..., AsyncUpload] = type(
            "Upload", (AsyncUpload, module.AsyncByteStream), {}
        )

    def copy(self, request: Any, lines: list[Line], stream: Any, extensions: dict[str, Any]) -> Any:
        """Return a copy of a request with header fields, body and extensions of its own, which are not copied again."""
        if not self._open:
            fields = [(name, value) for name, _, value in lines]
            kept = {"headers": self.module.Headers(fields), "stream": stream, "extensions": extensions}
            return self._request(request.method, request.url, **kept)
        headers = _new(self._headers)
        headers._list = lines  # noqa: SLF001  see `keeps_lines`
        headers._encoding = None  # noqa: SLF001
        copy = _new(self._request)
        copy.method = request.method
        copy.url = request.url
        copy.headers = headers
        copy.extensions = extensions
        copy.stream = stream
        return copy

    def timed_out(self, phase: Phase | None, message: str) -> Exception:
        """Return the library's own error for a timeout in a phase."""
        name = "ReadTimeout"
        if phase is Phase.POOL:
            name = "PoolTimeout"
        elif phase in UNSENT:
            name = "ConnectTimeout"
        elif phase is Phase.WRITE:
            name = "WriteTimeout"
        error: Exception = getattr(self.module, name)(message)
        return error


_new: Callable[[Any], Any] = object.__new__


def lines_of(headers: Any) -> list[Line]:
    """Return the header fields of a request of a library that shows no more than it has to."""
    return [(name, name.lower(), value) for name, value in headers.raw]


def origin_of(module: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gets scheme, host and port of a URL: at once, where they are kept where both libraries keep them."""
    known = attrgetter("scheme", "raw_host", "port")
    url = getattr(module, "URL", str)("http://a:1/")
    parts = getattr(url, "_uri_reference", None)
    if parts is not None and tuple(getattr(parts, name, None) for name in ("scheme", "host", "port")) == (
        "http",
        "a",
        1,
    ):
        return attrgetter("_uri_reference.scheme", "_uri_reference.host", "_uri_reference.port")
    return known


def keeps_lines(module: Any) -> bool:
    """Return whether a library's requests are made of what both are made of today, so that they may be copied by hand.

    Their constructors look at each header field several times, which costs more than all the rest of a call. Asked once; a
    library that answers otherwise is used through its constructors.
    """
    stream = module.ByteStream(b"")
    request = module.Request("GET", "http://a/", headers={"B-c": "d"}, stream=stream, extensions={})
    of_request = {"method", "url", "headers", "extensions", "stream"}
    of_headers = getattr(request.headers, "__dict__", {}).keys()
    kept = vars(request).keys() == of_request and of_headers == {"_list", "_encoding"}
    return kept and bool(request.headers._list == [(b"B-c", b"b-c", b"d")])  # noqa: SLF001
