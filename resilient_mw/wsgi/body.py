"""The response body that the server iterates and closes: the run ends when it is closed, and not before.

Every body is wrapped but one: what `wsgi.file_wrapper` made reaches the server as it is, for the server knows it again and
sends the file by itself; only its `close()` is ours. The application's own iterable is never asked for its length or its
truth: an empty one is an answer like any other.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import IdempotencyRefused, RequestCancelled
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.context import CURRENT
from resilient_mw.wsgi.answers import Answer, start_for_nobody
from resilient_mw.wsgi.run import Run

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication, WSGIEnvironment


def open_body(
    run: Run, app: WSGIApplication, environ: WSGIEnvironment, stopped: Mapping[CancelReason | Reason, Answer]
) -> Iterable[bytes]:
    """Call the application up to its first body bytes, start the response, and return the body for the server.

    Calling and the first step are one: nothing may be sent before the first bytes anyway, and a server that takes the
    head as soon as the application has returned finds it there.

    Args:
        run: the record of the request. Its slots are given back if this raises.
        app: the application.
        environ: the request.
        stopped: the answer in place of one that comes after the deadline, or to a body that was too large; and to one whose key
            the application itself refuses.

    Raises:
        BaseException: what the application raises.
    """
    body: Body | None = None
    no: tuple[Answer, int | None] | None = None
    # Set and reset in this frame, here and around each later step: the context never outlives the step on this
    # thread, whatever the server does with the body.
    token = CURRENT.set(run.context)
    try:
        result = app(environ, run.start_response)
        # (A run that passes the response whole is a body.)
        if type(result) in PLAIN and len(result) == 1 and run.passes_whole(result):  # type: ignore[arg-type]
            return run  # type: ignore[return-value]
        body = body_of(run, environ, result)
        body.advance()
        late = run.over()
        if not run.started:
            if not late:
                run.start()
        elif late and not run.complete:
            raise run.cut_off()
    except BaseException as error:
        expired = run.is_expiry(error)
        if body is None:
            body = Body(run, ())
        no = None if expired else _refusal(run, error, stopped)
        if not expired and no is None:
            body.close()
            raise
        late = True
    finally:
        CURRENT.reset(token)
    if late and not run.started:
        try:
            body.replace(_instead(run, environ, stopped) if no is None else _refused(run, environ, *no))
        except BaseException:
            body.close()
            raise
    return body.for_server()


def body_of(run: Run, environ: WSGIEnvironment, result: Iterable[bytes]) -> Body:
    """Return the body of a run for what its application has returned."""
    if type(result) in PLAIN and len(result) == 1:  # type: ignore[arg-type]
        return SingleBody(run, result)
    wrapper = environ.get("wsgi.file_wrapper")
    if isinstance(wrapper, type) and isinstance(result, wrapper) and run.hands_files_over():
        return FileBody(run, result)
    return Body(run, result)


def _refusal(
    run: Run, error: BaseException, stopped: Mapping[CancelReason | Reason, Answer]
) -> tuple[Answer, int | None] | None:
    """Return what answers a request whose key its application refuses, with a response still to start; None: it has failed."""
    if not isinstance(error, IdempotencyRefused) or run.started:
        return None
    return stopped[error.reason], error.retry_after


def _refused(run: Run, environ: WSGIEnvironment, answer: Answer, retry_after: int | None) -> list[bytes]:
    """Start the answer of ours to a request whose work is not done a second time; return its body."""
    run.failed = False
    body = answer.start(run.method, environ, retry_after, run.start_anew(), None)
    run.start()
    run.complete = True
    run.context.complete(started=True)
    return body


def _instead(
    run: Run, environ: WSGIEnvironment, stopped: Mapping[CancelReason | Reason, Answer]
) -> list[bytes]:
    """Start the answer of ours to a request that was over first; return its body."""
    server_start = run.replace()
    reason = run.context.reason
    if reason is CancelReason.CLIENT_DISCONNECT:
        return start_for_nobody(server_start)
    answer = stopped.get(reason or CancelReason.DEADLINE, stopped[CancelReason.DEADLINE])
    return answer.start(run.method, environ, None, server_start, run.figures())


class Body:
    """Passes the application's chunks on, with the request's context in place while it makes them."""

    __slots__ = ("_chunk", "_iterable", "_iterator", "_run")

    def __init__(self, run: Run, iterable: Iterable[bytes]) -> None:
        self._run = run
        self._iterable = iterable
        self._iterator: Iterator[bytes] | None = None
        self._chunk: bytes | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = self._chunk
        if chunk is not None:
            self._chunk = None
            return chunk
        iterator = self._iterator
        if iterator is None:
            raise StopIteration
        run = self._run
        run.resume()
        token = CURRENT.set(run.context)
        try:
            chunk = next(iterator, END)  # to catch its StopIteration would cost more than all the rest
            late = run.over()
            if chunk is not END:
                if late:
                    raise run.cut_off()
                run.look()
        except BaseException as error:
            run.is_expiry(error)
            self.close()
            if type(error) is RequestCancelled and run.context.reason is CancelReason.CLIENT_DISCONNECT:
                # What servers know as the end of a connection, and do not log as an error of the application.
                raise ConnectionResetError(errno.ECONNRESET, "the caller has gone") from error
            raise
        finally:
            CURRENT.reset(token)
        if chunk is END:
            self._complete()
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Close the application's iterable and end the run. Once, however often the server calls it."""
        run = self._run
        if run.closed:
            return
        run.closed = True
        iterable, self._iterable = self._iterable, ()
        self._chunk = self._iterator = None
        if not run.complete and not run.failed:
            # The server gave the response up, so the caller has gone; unless the run was cancelled before.
            run.context.cancel(CancelReason.CLIENT_DISCONNECT)
        try:
            close = self._close_of(iterable)
            if close is not None:
                token = CURRENT.set(run.context)
                try:
                    close()
                finally:
                    CURRENT.reset(token)
        except BaseException:
            run.failed = True
            raise
        finally:
            run.end()

    def __del__(self) -> None:
        # May run in any thread, at any allocation, also while this thread holds a lock of ours: so it takes none, and
        # the next request does the rest.
        run = self._run
        if not run.closed:
            run.abandoned.append(run)

    def advance(self) -> None:
        """Take chunks from the application until one says something, or all have been taken."""
        self._iterator = iterator = iter(self._iterable)
        run = self._run
        for chunk in iterator:
            # An empty chunk before the response has started may not be passed on, and nothing is known yet.
            if run.started or chunk != b"":
                self._chunk = chunk
                return
            if run.over():
                return
        self._complete()

    def for_server(self) -> Iterable[bytes]:
        """Return what the server is to iterate and close."""
        return self

    def _close_of(self, iterable: Iterable[bytes]) -> Callable[[], object] | None:
        return getattr(iterable, "close", None)

    def replace(self, chunks: list[bytes]) -> None:
        """Give the server these chunks in place of the application's, whose iterable is still to be closed."""
        self._iterator = None
        self._chunk = chunks[0] if chunks else None

    def _complete(self) -> None:
        self._iterator = None
        self._run.complete = True
        self._run.context.complete(started=self._run.started)


class SingleBody(Body):
    """The body of an application that returned its only chunk in a list: servers use the length as content length."""

    __slots__ = ()

    def __iter__(self) -> Iterator[bytes]:
        # Nothing of the application is left to run, so nothing of ours has to stand between.
        return iter(() if self._chunk is None else (self._chunk,))

    def __len__(self) -> int:
        return 1

    def advance(self) -> None:
        """Take the chunk."""
        (self._chunk,) = self._iterable
        self._complete()


class FileBody(Body):
    """The end of a file that the server sends by itself: in place of the `close()` of what `wsgi.file_wrapper` made.

    Once the server has it, nobody sees how far it is: the response is complete when it is handed over, and takes its slot until
    it is closed.
    """

    __slots__ = ("_close", "_replaced")

    def advance(self) -> None:
        """Take nothing: that the file is there is all there is to know."""
        self._close: Callable[[], object] | None = getattr(self._iterable, "close", None)
        self._replaced = False

    def for_server(self) -> Iterable[bytes]:
        """Return the file, if its end can be learned of."""
        file = self._iterable
        if self._replaced:
            return self
        try:
            file.close = self.close  # type: ignore[attr-defined]
        except (AttributeError, TypeError):  # a type of C
            self._iterator = iter(file)
            return self
        self._complete()
        return file

    def replace(self, chunks: list[bytes]) -> None:
        """Give the server these chunks in place of the file."""
        super().replace(chunks)
        self._replaced = True

    def _close_of(self, iterable: Iterable[bytes]) -> Callable[[], object] | None:  # noqa: ARG002  it has ours now
        return self._close


PLAIN = (list, tuple)
END: Final[Any] = object()
"""What stands for the chunk after the last one."""
