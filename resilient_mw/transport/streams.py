"""The bodies: of the response, which tells its call of its end exactly once, and of a request that can be sent once.

A bulkhead slot and a breaker's trial are held until the body of a delivered response has ended: read to its end, cut
off, or closed. A response that is thrown away unclosed is found by the garbage collector, which may run anywhere, also
while this very thread holds a lock: the finalizer only puts down what is left over, and the next call clears it up.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from typing import Any, Protocol

from resilient_mw.calls.events import Actions, Failure, Phase
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.transport.reading import Overdue, Reading, close_reading
from resilient_mw.transport.scope import SCOPE, Scope


class Origin(Protocol):
    """The call that a delivered response belongs to."""

    def end(self, failure: Failure | None) -> Actions:
        """Tell that the body has ended; `Expire` comes back if the caller's budget cut it off."""
        ...

    def cancel(self) -> None:
        """Tell that the caller gave up."""
        ...

    def abandon(self) -> str:
        """Leave the call to whoever comes next, and take no lock; return the name of its dependency."""
        ...

    def body_timeout(self) -> Exception:
        """Return the library's own error of a timeout in the body."""
        ...

    def expiry(self, phase: Phase) -> Exception:
        """Return the error of a deadline that passed in a phase."""
        ...


class Delivery:
    """A delivered response, seen from its call.

    Args:
        origin: the call.
        scope: the attempt.
        stream: the body that the inner transport gave.
        bounded: whether the inner transport says where it may be cancelled.
        lost: where to put the stream if it is thrown away unclosed.

    Attributes:
        closed: whether the stream has been closed.
    """

    __slots__ = ("_lost", "_origin", "_over", "bounded", "closed", "scope", "stream")

    def __init__(
        self, origin: Origin, scope: Scope, stream: Any, *, bounded: bool, lost: Callable[[Any], None]
    ) -> None:
        self._origin = origin
        self._lost = lost
        self._over = False
        self.bounded = bounded
        self.closed = False
        self.scope = scope
        self.stream = stream

    def timed_out(self) -> Exception:
        """Return the library's own error of a timeout in the body."""
        return self._origin.body_timeout()

    def ended(self) -> None:
        """Tell that the body is complete, or that it was closed early."""
        if not self._over:
            self._over = True
            self._origin.end(None)

    def failed(self, error: Exception, *, timed_out: bool) -> Exception:
        """Tell that the body was cut off; return what to raise."""
        if self._over:
            return error
        self._over = True
        actions = self._origin.end(Failure(Phase.BODY, timed_out=timed_out))
        if actions:
            return self._origin.expiry(Phase.BODY)
        told: Any = error
        told.phase = Phase.BODY
        return error

    def interrupted(self) -> None:
        """Tell that the caller gave up."""
        if not self._over:
            self._over = True
            self._origin.cancel()

    def overdue(self) -> bool:
        """Return whether the attempt is over, however fast its body still comes."""
        return self.scope.is_over()

    def forgotten(self) -> None:
        """Put down what a response leaves behind that nobody closed. Called by a finalizer: it takes no lock."""
        if not self.closed:
            self.closed = True
            self._lost(self.stream)
        if not self._over:
            self._over = True
            name = self._origin.abandon()
            if not sys.is_finalizing():
                warnings.warn(
                    f"a response of the dependency {name!r} was thrown away without being read or closed: it held a "
                    "connection and a slot until now. Use `with client.stream(...)`, or close it",
                    ResilienceWarning,
                    stacklevel=3,
                )


class SyncBody:
    """The body of a response for a sync client.

    Args:
        delivery: the response, seen from its call.
        failure: the class of the library's errors.
        timeout: the class of its timeouts.
    """

    def __init__(self, delivery: Delivery, failure: type[Exception], timeout: type[Exception]) -> None:
        self._delivery = delivery
        self._failure = failure
        self._timeout = timeout

    def __iter__(self) -> Iterator[bytes]:
        delivery = self._delivery
        iterator = iter(delivery.stream)
        with closing(iterator) if hasattr(iterator, "close") else nullcontext():
            while True:
                token = SCOPE.set(delivery.scope)
                try:
                    chunk: bytes | None = next(iterator, None)
                    if chunk is not None and delivery.overdue():
                        raise delivery.timed_out()
                except self._failure as error:
                    raised = delivery.failed(error, timed_out=isinstance(error, self._timeout))
                    self.close()
                    if raised is error:
                        raise
                    raise raised from error
                except BaseException:
                    delivery.interrupted()
                    self.close()
                    raise
                finally:
                    SCOPE.reset(token)
                if chunk is None:
                    delivery.ended()
                    return
                yield chunk

    def close(self) -> None:
        """Close the body, read to its end or not."""
        delivery = self._delivery
        try:
            if not delivery.closed:
                delivery.closed = True
                delivery.stream.close()
        finally:
            delivery.ended()

    def __del__(self) -> None:
        delivery = getattr(self, "_delivery", None)
        if delivery is not None:
            delivery.forgotten()


class AsyncBody:
    """The body of a response for an async client. Arguments as of `SyncBody`.

    Attributes:
        closes_nothing: the library's own `aclose` of streams that have nothing to close.
    """

    closes_nothing: Any = None

    def __init__(self, delivery: Delivery, failure: type[Exception], timeout: type[Exception]) -> None:
        self._delivery = delivery
        self._failure = failure
        self._timeout = timeout
        self._reading = Reading(delivery.stream, delivery.scope, bounded=delivery.bounded)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        delivery = self._delivery
        try:
            while True:
                try:
                    chunk = await self._next()
                except self._failure as error:
                    raised = delivery.failed(error, timed_out=isinstance(error, self._timeout))
                    await self.aclose()
                    if raised is error:
                        raise
                    raise raised from error
                except BaseException:
                    delivery.interrupted()
                    await self.aclose()
                    raise
                if chunk is None:
                    delivery.ended()
                    return
                yield chunk
        except GeneratorExit:
            await self.aclose()  # Whoever read has stopped in the middle.
            raise

    async def _next(self) -> bytes | None:
        delivery = self._delivery
        try:
            reading = self._reading
            chunk = await (reading.next(delivery.scope.left()) if delivery.bounded else reading.next_here())
        except Overdue as error:
            raise delivery.timed_out() from error
        if chunk is not None and delivery.overdue():
            raise delivery.timed_out()
        return chunk

    async def aclose(self) -> None:
        """Close the body, read to its end or not. A cancellation does not keep the connection from being closed."""
        delivery = self._delivery
        try:
            if not delivery.closed:
                delivery.closed = True
                nothing = getattr(type(delivery.stream), "aclose", None) is type(self).closes_nothing
                if not (nothing and self._reading.complete):
                    await close_reading(self._reading)
        finally:
            delivery.ended()

    def __del__(self) -> None:
        delivery = getattr(self, "_delivery", None)
        if delivery is not None:
            delivery.forgotten()


class SyncUpload:
    """A request body that can be sent once, and that knows whether it was begun.

    Args:
        stream: the caller's body.
    """

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._stream = stream
        self.begun = False

    def __iter__(self) -> Iterator[bytes]:
        self.begun = True
        return iter(self._stream)

    def close(self) -> None:
        """Close the caller's body where it can be closed."""
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()


class AsyncUpload:
    """The same for an async client.

    Args:
        stream: the caller's body.
    """

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream
        self.begun = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.begun = True
        iterator = aiter(self._stream)
        while True:
            scope = SCOPE.get()
            part = await (anext(iterator, None) if scope is None else scope.operate(anext, iterator, None))
            if part is None:
                return
            yield part

    async def aclose(self) -> None:
        """Close the caller's body where it can be closed."""
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()
