"""The wait for a connection, before the pool of httpcore instead of inside it.

A request that gives up waiting in httpcore's own queue in the instant in which a connection is assigned to it leaves that
connection behind for ever, neither closed nor usable, and a pool of those serves nobody. With one deadline for whole calls
that instant is not rare: the call that held the connection and the one that waits for it often end together. Here nobody
waits in that queue: no more requests are let in than there are connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

from resilient_mw.calls.events import Phase
from resilient_mw.runtime.pool_waits import PoolWaits
from resilient_mw.transport.scope import SCOPE


class Gate:
    """Lets as many requests into a sync transport as it has connections; the others wait for their turn.

    Args:
        inner: the transport.
        connections: how many it has.
        body: makes a response body of one and of what to call when it is closed.
        late: the error of who has waited too long.
    """

    def __init__(
        self,
        inner: Any,
        connections: int,
        body: Callable[[Any, Callable[[], None]], Any],
        late: type[Exception],
    ) -> None:
        self.inner = inner
        self._connections = connections
        self._free = threading.Semaphore(connections)
        self._waits = PoolWaits()
        self._body = body
        self._late = late

    def handle_request(self, request: Any) -> Any:
        """Wait for a connection and send a request."""
        scope = SCOPE.get()
        if scope is not None:
            scope.phase = Phase.POOL
        if self._free.acquire(blocking=False):
            self._waits.passed()
        elif not self._wait(_pool_timeout(request)):
            raise self._late(f"all {self._connections} connections of the pool are in use")
        try:
            response = self.inner.handle_request(request)
        except BaseException:
            self._free.release()
            raise
        response.stream = self._body(response.stream, self._free.release)
        return response

    def _wait(self, timeout: float | None) -> bool:
        wait = self._waits.begin()
        try:
            return self._free.acquire(timeout=timeout)
        finally:
            self._waits.end(wait)

    def close(self) -> None:
        """Close the transport."""
        self.inner.close()

    def __enter__(self) -> Self:
        self.inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.inner.__exit__(kind, error, traceback)


class AsyncGate:
    """The same for an async transport."""

    def __init__(
        self,
        inner: Any,
        connections: int,
        body: Callable[[Any, Callable[[], None]], Any],
        late: type[Exception],
    ) -> None:
        self.inner = inner
        self._connections = connections
        self._free = connections
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._waits = PoolWaits()
        self._body = body
        self._late = late

    async def handle_async_request(self, request: Any) -> Any:
        """Wait for a connection and send a request."""
        scope = SCOPE.get()
        if self._free:
            self._free -= 1
            self._waits.passed()
        elif scope is None:
            await self._wait(_pool_timeout(request))
        else:
            scope.phase = Phase.POOL
            await scope.operate(self._wait, _pool_timeout(request))
        try:
            response = await self.inner.handle_async_request(request)
        except BaseException:
            self._leave()
            raise
        response.stream = self._body(response.stream, self._leave)
        return response

    async def _wait(self, timeout: float | None) -> None:  # noqa: ASYNC109  it is the library's, not ours
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        timer = asyncio.timeout(timeout)
        wait = self._waits.begin()
        try:
            async with timer:
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave()  # It was our turn in the very instant in which we gave up: somebody else's, then.
            turn.cancel()
            if isinstance(error, TimeoutError) and timer.expired():
                raise self._late(f"all {self._connections} connections of the pool are in use") from error
            raise
        finally:
            self._waits.end(wait)

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def aclose(self) -> None:
        """Close the transport."""
        await self.inner.aclose()

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.inner.__aexit__(kind, error, traceback)


class GateBody:
    """A response body that lets the next request in when it is closed.

    Args:
        stream: the body.
        leave: lets the next one in.
    """

    def __init__(self, stream: Any, leave: Callable[[], None]) -> None:
        self._stream = stream
        self._leave: Callable[[], None] | None = leave

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def close(self) -> None:
        """Close the body."""
        try:
            self._stream.close()
        finally:
            leave, self._leave = self._leave, None
            if leave is not None:
                leave()


class AsyncGateBody:
    """The same for async clients."""

    def __init__(self, stream: Any, leave: Callable[[], None]) -> None:
        self._stream = stream
        self._leave: Callable[[], None] | None = leave

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        """Close the body."""
        try:
            await self._stream.aclose()
        finally:
            leave, self._leave = self._leave, None
            if leave is not None:
                leave()


def _pool_timeout(request: Any) -> float | None:
    timeout: float | None = request.extensions.get("timeout", {}).get("pool")
    return timeout
