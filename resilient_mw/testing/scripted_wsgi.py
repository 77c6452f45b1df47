"""A WSGI server for one request, played step by step by a test."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class StartCall(NamedTuple):
    """One call of `start_response`, as the server saw it."""

    status: str
    headers: list[tuple[str, str]]
    exc_info: ExcInfo | None


class ScriptedWSGI:
    """Calls a WSGI application as a server does, one step at a time, and records what it gets.

    `wsgiref.validate` stands between the two, so that each breach of the protocol is an AssertionError.

    Args:
        app: the application, middlewares included.
        method, path, query: of the request; the path is not encoded, text beyond ASCII is sent as UTF-8.
        script_name: where the application is mounted.
        headers: request headers. Of equal names the values are joined by a comma, as servers do.
        body: the request body.
        peer: address of the peer.
        validate: False takes `wsgiref.validate` out, for applications that are wrong on purpose.
        extra: more keys for the environ.

    Attributes:
        environ: the request.
        calls: the calls of `start_response`, in order.
        chunks: the body so far: what came through `write()` and through the iterable, in order.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        method: str = "GET",
        path: str = "/",
        query: str = "",
        script_name: str = "",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        peer: str = "127.0.0.1",
        validate: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.app: WSGIApplication = validator(app) if validate else app
        self.environ = _environ(
            headers,
            body,
            REQUEST_METHOD=method,
            SCRIPT_NAME=script_name.encode().decode("latin-1"),
            PATH_INFO=path.encode().decode("latin-1"),
            QUERY_STRING=query,
            REMOTE_ADDR=peer,
        )
        self.environ.update(extra or {})
        self.calls: list[StartCall] = []
        self.chunks: list[bytes] = []
        self._iterable: Iterable[bytes] | None = None
        self._iterator: Iterator[bytes] | None = None

    def call(self) -> Self:
        """Call the application; its body is not touched yet.

        Raises:
            BaseException: what the application raises.
        """
        self._iterable = self.app(self.environ, self._start_response)
        return self

    def read(self, count: int | None = None) -> list[bytes]:
        """Take the next chunks of the body, all that are left without a `count`; return them.

        Raises:
            BaseException: what the application raises.
        """
        if self._iterator is None:
            self._iterator = iter(self._called())
        taken: list[bytes] = []
        while count is None or len(taken) < count:
            try:
                chunk = next(self._iterator)
            except StopIteration:
                break
            taken.append(chunk)
            self.chunks.append(chunk)
        return taken

    def close(self) -> None:
        """Close the body, as a server must at the end, whatever the end is.

        Raises:
            BaseException: what the application raises.
        """
        close = getattr(self._called(), "close", None)
        if close is not None:
            close()

    def run(self) -> Self:
        """Call the application, take its whole body and close it.

        Raises:
            BaseException: what the application raises.
        """
        self.call()
        try:
            self.read()
        finally:
            self.close()
        return self

    def abandon(self) -> None:
        """Drop the body without closing it, as a faulty server does. Use it with `validate=False`, which complains."""
        self._iterable = self._iterator = None

    @property
    def status(self) -> str:
        """The status line of the response.

        Raises:
            LookupError: no response was started.
        """
        return self._last().status

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers of the response, in order."""
        return self._last().headers

    @property
    def body(self) -> bytes:
        """The body so far."""
        return b"".join(self.chunks)

    def header(self, name: str) -> str | None:
        """Return the value of a response header, in any case; None if it is not there or stands twice."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        return values[0] if len(values) == 1 else None

    def _last(self) -> StartCall:
        if not self.calls:
            raise LookupError("the application has not called start_response()")
        return self.calls[-1]

    def _called(self) -> Iterable[bytes]:
        if self._iterable is None:
            raise RuntimeError("there is no body: use call() first")
        return self._iterable

    def _start_response(
        self, status: str, headers: Sequence[tuple[str, str]], exc_info: ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        # Replaced while nothing has been sent, raised afterwards, refused without exc_info: PEP 3333.
        try:
            if exc_info is not None and exc_info[1] is not None and any(self.chunks):
                raise exc_info[1].with_traceback(exc_info[2])
            if exc_info is None and self.calls:
                raise AssertionError("start_response() was called a second time without exc_info")
            self.calls.append(StartCall(status, list(headers), exc_info))
        finally:
            exc_info = None
        return self.chunks.append


def _environ(headers: Iterable[tuple[str, str]], body: bytes, **request: str) -> dict[str, Any]:
    environ: dict[str, Any] = {
        **request,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
    }
    for name, value in headers:
        key = name.upper().replace("-", "_")
        if key not in {"CONTENT_TYPE", "CONTENT_LENGTH"}:
            key = "HTTP_" + key
        environ[key] = f"{environ[key]},{value}" if key.startswith("HTTP_") and key in environ else value
    setup_testing_defaults(environ)
    return environ
