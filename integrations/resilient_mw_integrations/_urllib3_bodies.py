"""The bodies of calls through urllib3: of a response, which ends with its attempt, and of a request that can be sent once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.response import HTTPResponse

from resilient_mw.transport.scope import SCOPE
from resilient_mw.transport.streams import Delivery
from resilient_mw_integrations._facade import Nothing
from resilient_mw_integrations._urllib3_wire import ConnectTimeout, PoolTimeout

LATE: tuple[type[Exception], ...] = (ReadTimeoutError, ConnectTimeout, PoolTimeout)
"""The timeouts."""


class Wire:
    """A body that nobody has wrapped yet. Reading it sets it free for the next request; closing it closes it."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.raw.stream(16_384, decode_content=False))

    def close(self) -> None:
        let_go(self.raw)


class Place:
    """What a forgotten response leaves behind: a place in its pool. The next call gives it back."""

    def __init__(self, pool: Any, connection: Any) -> None:
        self._pool = pool
        self._connection = connection

    def close(self) -> None:
        self._pool._put_conn(self._connection)  # noqa: SLF001  as `release_conn` does


class Upload:
    """A request body that can be sent once, and that knows whether it was begun.

    Args:
        body: the caller's body: a file or an iterable.
    """

    def __init__(self, body: Any) -> None:
        self._body = body
        self.begun = False
        if hasattr(body, "read"):
            self.read = self._read

    def _read(self, size: int = -1) -> Any:
        self.begun = True
        return self._body.read(size)

    def __iter__(self) -> Iterator[Any]:
        self.begun = True
        return iter(self._body)


class Body:
    """The body of a delivered response: tells its call of its end, once.

    Args:
        delivery: the response, seen from its call.
        _errors: not used: they are urllib3's.
    """

    def __init__(self, delivery: Delivery, *_errors: object) -> None:
        raw = delivery.stream.raw
        delivery.stream = Nothing()  # It would keep itself alive.
        self.delivery = delivery
        self.request: Any = None
        self.stepping = False
        raw.resilient_body = self

    def step(self, raw: HTTPResponse, read: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Do one read."""
        delivery = self.delivery
        token = SCOPE.set(delivery.scope)
        self.stepping = True
        try:
            data = read(*args, **keywords)
            if not raw.closed and delivery.overdue():
                raise delivery.timed_out()
        except HTTPError as error:
            raised: Any = delivery.failed(error, timed_out=isinstance(error, LATE))
            let_go(raw)
            if raised is error:
                raise
            raised.request = self.request or raised.request
            raise raised from error
        except BaseException:
            delivery.interrupted()
            let_go(raw)
            raise
        finally:
            self.stepping = False
            SCOPE.reset(token)
        if raw.closed:
            self.ended()
        return data

    def ended(self) -> None:
        """Tell that the body is complete, or was closed."""
        if not self.stepping:
            self.delivery.closed = True
            self.delivery.ended()


class ResilientResponse(HTTPResponse):
    """A response of urllib3 whose body ends with its attempt, and tells its call when it has ended."""

    resilient_body: Body | None = None

    def _step(self, read: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        body = self.resilient_body
        if body is None or body.stepping:
            return read(*args, **keywords)
        return body.step(self, read, *args, **keywords)

    def read(self, *args: Any, **keywords: Any) -> bytes:
        """Read some bytes, or all."""
        data: bytes = self._step(super().read, *args, **keywords)
        return data

    def read1(self, *args: Any, **keywords: Any) -> bytes:
        """Read what is there."""
        data: bytes = self._step(super().read1, *args, **keywords)
        return data

    def read_chunked(self, *args: Any, **keywords: Any) -> Iterator[bytes]:  # type: ignore[override]
        """Read piece after piece of a chunked body."""
        pieces = super().read_chunked(*args, **keywords)
        try:
            while (piece := self._step(next, pieces, None)) is not None:
                yield piece
        finally:
            pieces.close()

    def drain_conn(self) -> None:
        """Read what is left, so that the connection can be used again."""
        self._step(super().drain_conn)

    def close(self) -> None:
        """Close the connection, and leave its place in the pool to another one."""
        super().close()
        super().release_conn()
        self._over()

    def release_conn(self) -> None:
        """Give the connection back."""
        super().release_conn()
        self._over()

    def _over(self) -> None:
        if self.resilient_body is not None:
            self.resilient_body.ended()

    def __del__(self) -> None:
        # A collection may run anywhere, also while this thread holds a lock, ours or that of the pool: none is taken.
        if self.resilient_body is not None:
            delivery = self.resilient_body.delivery
            if not delivery.closed and self._connection is not None:
                delivery.stream = Place(self._pool, self._connection)
                self._connection.close()
                self._connection = None
            delivery.forgotten()
        super().__del__()


def let_go(raw: Any) -> None:
    """Close a response whose body has not ended; give its connection back in any case."""
    if not raw.closed:
        HTTPResponse.close(raw)
    HTTPResponse.release_conn(raw)
