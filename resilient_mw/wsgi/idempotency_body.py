"""The response of work under a key: passes as it is made, is captured meanwhile, and is recorded before its last piece leaves.

Where the length of the body is known, the piece that completes it is the last one; else the end of the iteration is, before
the server can say that the response is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from resilient_mw.admission.verdict import is_bodiless
from resilient_mw.core.headers.content_length import parse_content_length

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

    from resilient_mw.idempotency.actions import Actions
    from resilient_mw.idempotency.work import Work


class Ending(Protocol):
    """Who is told how the work ends; each of them once at most."""

    def completed(self) -> None:
        """Take that the response is complete but for its last piece."""
        ...

    def failed(self, *, left: bool) -> None:
        """Take that there is no complete response.

        Args:
            left: whether the server gave it up, since its caller has gone or the server itself ends.
        """
        ...

    def forgotten(self) -> None:
        """Take that the server has dropped the response. Called by the garbage collector: no lock may be waited for."""
        ...

    def tell(self, say: Callable[[Work], Actions | None]) -> None:
        """Tell the work something, while nobody else does."""
        ...


class Answering:
    """The head and the pieces of one response.

    Args:
        method: of the request.
        start_response: the server's.
        ending: who is told.
    """

    __slots__ = (
        "_ending",
        "_length",
        "_method",
        "_over",
        "_seen",
        "_server_start",
        "_server_write",
        "_status",
    )

    def __init__(self, method: str, start_response: StartResponse, ending: Ending) -> None:
        self._method = method
        self._server_start = start_response
        self._server_write: Callable[[bytes], object] | None = None
        self._ending = ending
        self._status: str | None = None
        self._length: int | None = None
        self._seen = 0
        self._over = False

    def start_response(
        self, status: str, headers: Sequence[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        """Pass the head on, as often as the application calls this, and keep what is kept of it."""
        try:
            if exc_info is None:
                self._server_write = self._server_start(status, list(headers))
            else:
                self._server_write = self._server_start(status, list(headers), exc_info)
        finally:
            exc_info = None  # no cycle between this frame and the traceback
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        number = int(status[:3])
        self._status = status
        told = [value for name, value in headers if name.lower() == "content-length"]
        self._length = parse_content_length(told) if told else None
        self._ending.tell(lambda work: work.head(number, lines))
        return self.write

    def write(self, data: bytes) -> None:
        """Send body bytes at once: the imperative way, for applications that need it."""
        if self._server_write is None:
            raise TypeError("the server's start_response() returned no write(): return the body instead")
        self.piece(data)
        self._server_write(data)

    def piece(self, data: bytes) -> None:
        """Take a piece before it leaves."""
        self._ending.tell(lambda work: work.piece(data))
        self._seen += len(data)
        if self._length is not None and self._seen >= self._length and data:
            self.complete()

    def complete(self) -> None:
        """Have the answer recorded: nothing more comes."""
        if not self._over:
            self._over = True
            self._ending.completed()

    def fail(self, error: BaseException | None = None) -> None:
        """Take that an exception has ended the response, or that the server has given it up.

        What is no `Exception` has not failed: it was cut off, such as a thread of gunicorn's by the end of its worker.
        """
        if self._over:
            return
        if error is None and self._status is not None and is_bodiless(self._method, self._status):
            self.complete()  # such a response is complete with its head, and some servers take no more of it
            return
        self._over = True
        self._ending.failed(left=not isinstance(error, Exception))

    def forget(self) -> None:
        """Take that the server has dropped the response without closing it."""
        if not self._over:
            self._over = True
            self._ending.forgotten()


class CapturedBody:
    """The body that the server iterates and closes.

    Args:
        answering: takes the pieces.
        iterable: the application's.
    """

    __slots__ = ("_answering", "_closed", "_iterable", "_iterator")

    def __init__(self, answering: Answering, iterable: Iterable[bytes]) -> None:
        self._answering = answering
        self._iterable = iterable
        self._iterator: Iterator[bytes] | None = None
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._iterator is None:
                self._iterator = iter(self._iterable)
            chunk = next(self._iterator)
        except StopIteration:
            self._answering.complete()
            raise
        except BaseException as error:
            self._answering.fail(error)
            raise
        self._answering.piece(chunk)
        return chunk

    def close(self) -> None:
        """Close the application's iterable, once, however often the server calls this."""
        if self._closed:
            return
        self._closed = True
        try:
            close = getattr(self._iterable, "close", None)
            if close is not None:
                close()
        finally:
            self._answering.fail()

    def __del__(self) -> None:
        if not self._closed:
            self._answering.forget()
