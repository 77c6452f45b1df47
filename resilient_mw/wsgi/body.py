"""The response body that the server iterates and closes: the run ends when it is closed, and not before.

Every body is wrapped, also what `wsgi.file_wrapper` made: a server that got it bare could send the file faster, but
it would tell nobody when the slot is free. The application's own iterable is never asked for its length or its truth:
an empty one is an answer like any other.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import RequestCancelled
from resilient_mw.runtime.context import CURRENT
from resilient_mw.wsgi.answers import Answer, start_for_nobody
from resilient_mw.wsgi.run import Run

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication, WSGIEnvironment


def open_body(
    run: Run, app: WSGIApplication, environ: WSGIEnvironment, stopped: Mapping[CancelReason, Answer]
) -> Body:
    """Call the application up to its first body bytes, start the response, and return the body for the server.

    Calling and the first step are one: nothing may be sent before the first bytes anyway, and a server that takes the
    head as soon as the application has returned finds it there.

    Args:
        run: the record of the request. Its slots are given back if this raises.
        app: the application.
        environ: the request.
        stopped: the answer in place of one that comes after the deadline, or to a body that was too large.

    Raises:
        BaseException: what the application raises.
    """
    body: Body | None = None
    # Set and reset in this frame, here and around each later step: the context never outlives the step on this
    # thread, whatever the server does with the body.
    token = CURRENT.set(run.context)
    try:
        result = app(environ, run.start_response)
        body = SingleBody(run, result) if type(result) in PLAIN and len(result) == 1 else Body(run, result)  # type: ignore[arg-type]
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
        if not expired:
            body.close()
            raise
        late = True
    finally:
        CURRENT.reset(token)
    if late and not run.started:
        try:
            server_start = run.replace()
            reason = run.context.reason
            if reason is CancelReason.CLIENT_DISCONNECT:
                body.replace(start_for_nobody(server_start))
            else:
                answer = stopped.get(reason or CancelReason.DEADLINE, stopped[CancelReason.DEADLINE])
                body.replace(answer.start(run.method, environ, None, server_start, run.figures()))
        except BaseException:
            body.close()
            raise
    return body


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
            chunk = next(iterator)
            if run.over():
                raise run.cut_off()
            run.look()
        except StopIteration:
            run.over()
            self._complete()
            raise
        except BaseException as error:
            run.is_expiry(error)
            self.close()
            if type(error) is RequestCancelled and run.context.reason is CancelReason.CLIENT_DISCONNECT:
                # What servers know as the end of a connection, and do not log as an error of the application.
                raise ConnectionResetError(errno.ECONNRESET, "the caller has gone") from error
            raise
        finally:
            CURRENT.reset(token)
        return chunk

    def close(self) -> None:
        """Close the application's iterable and end the run. Once, however often the server calls it."""
        run = self._run
        if run.closed:
            return
        run.closed = True
        self._chunk = self._iterator = None
        if not run.complete and not run.failed:
            # The server gave the response up, so the caller has gone; unless the run was cancelled before.
            run.context.cancel(CancelReason.CLIENT_DISCONNECT)
        try:
            close = getattr(self._iterable, "close", None)
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


PLAIN = (list, tuple)
