"""One inner transport for each dependency, so that none can use up the connections of another; one more for all the rest.

They are opened and closed together with the transport around them, each once, whatever becomes of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any, Self

from resilient_mw.calls.dependency import Dependency
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw.transport.prepare import Directory


class _Parts:
    """Knows which transport a request goes through.

    Args:
        dependencies: each gets a transport of its own.
        make: makes a transport.

    Raises:
        ValueError: the dependencies do not go together.
    """

    def __init__(self, dependencies: Sequence[Dependency], make: Callable[[], Any]) -> None:
        self._directory = Directory(dependencies)
        self._own: dict[DependencyOwner, Any] = {owner_of(each): make() for each in dependencies}
        self._rest = make()

    def of(self, request: Any) -> Any:
        """Return the transport of a request."""
        owner = self._directory.find(request.url)
        return self._rest if owner is None else self._own[owner]

    def all(self) -> list[Any]:
        """Return every transport, once."""
        return [*self._own.values(), self._rest]


class PartedPools(_Parts):
    """The inner transports of a sync client."""

    def handle_request(self, request: Any) -> Any:
        """Send a request through the transport of its dependency."""
        return self.of(request).handle_request(request)

    def close(self) -> None:
        """Close all of them; the error of one does not keep another open."""
        with ExitStack() as stack:
            for each in self.all():
                stack.callback(each.close)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in self.all():
                stack.enter_context(each)
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            for each in self.all():
                stack.callback(each.__exit__, kind, error, traceback)


class AsyncPartedPools(_Parts):
    """The inner transports of an async client."""

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request through the transport of its dependency."""
        return await self.of(request).handle_async_request(request)

    async def aclose(self) -> None:
        """Close all of them; the error of one does not keep another open."""
        async with AsyncExitStack() as stack:
            for each in self.all():
                stack.push_async_callback(each.aclose)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for each in self.all():
                await stack.enter_async_context(each)
            stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        async with AsyncExitStack() as stack:
            for each in self.all():
                stack.push_async_callback(each.__aexit__, kind, error, traceback)
