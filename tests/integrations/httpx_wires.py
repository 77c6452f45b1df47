"""One face for four clients: httpx and httpx2, sync and async, so that each test is written once."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from time import monotonic
from typing import Any

import pytest

from resilient_mw.calls.dependency import Dependency

KINDS = [(name, mode) for name in ("httpx", "httpx2") for mode in ("sync", "async")]

every_wire = pytest.mark.parametrize("kind", KINDS, ids="-".join)


class Wire:
    """A client of one library and mode, and the transport under test in it."""

    def __init__(self, kind: tuple[str, str]) -> None:
        self.name, mode = kind
        self.is_async = mode == "async"
        self.lib: Any = importlib.import_module(self.name)
        self.ours: Any = importlib.import_module(f"resilient_mw_integrations.{self.name}")
        self.transport_class = (
            self.ours.AsyncResilientTransport if self.is_async else self.ours.ResilientTransport
        )
        self.client_class = self.lib.AsyncClient if self.is_async else self.lib.Client
        self._runner = asyncio.Runner() if self.is_async else None
        self.client: Any = None
        self.transport: Any = None

    def open(
        self,
        dependencies: Sequence[Dependency] = (),
        transport: Any = None,
        *,
        client: dict[str, Any] | None = None,
        **options: Any,
    ) -> Wire:
        """Make the client. Reading all certificates of the world takes a while, so it is left out."""
        if transport is None:
            options.setdefault("verify", False)
        self.transport = self.transport_class(dependencies, transport, **options)
        self.client = self.client_class(transport=self.transport, **(client or {}))
        return self

    def run(self, result: Any) -> Any:
        """Await what an async client returns."""
        return result if self._runner is None else self._runner.run(_awaited(result), context=copy_context())

    def get(self, url: str, **keywords: Any) -> Any:
        return self.request("GET", url, **keywords)

    def request(self, method: str, url: str, **keywords: Any) -> Any:
        return self.run(self.client.request(method, url, **keywords))

    def send(self, method: str, url: str, **keywords: Any) -> Any:
        """Return a response whose body has not been read."""
        request = self.client.build_request(method, url, **keywords)
        return self.run(self.client.send(request, stream=True))

    def read(self, response: Any) -> Any:
        return self.run(response.aread() if self.is_async else response.read())

    def close(self, response: Any) -> None:
        self.run(response.aclose() if self.is_async else response.close())

    def handler(self, answer: Callable[[Any], Any]) -> Any:
        """An in-process transport."""
        return self.lib.MockTransport(answer)

    def always(self, status: int) -> Callable[[Any], Any]:
        """What answers every request with a status."""
        return lambda request: self.lib.Response(status)

    def shut(self) -> None:
        """Close the client and the loop."""
        if self.client is not None:
            self.run(self.client.aclose() if self.is_async else self.client.close())
        if self._runner is not None:
            self._runner.close()

    def pool(self) -> Any:
        """The pool of the default transport."""
        inner = self.transport._inner
        return getattr(inner, "inner", inner)._pool


async def _awaited(result: Any) -> Any:
    return await result


@pytest.fixture
def wire(kind: tuple[str, str]) -> Iterator[Wire]:
    made = Wire(kind)
    yield made
    made.shut()


def timed(call: Callable[[], object]) -> tuple[BaseException | None, float]:
    """Return what a call raised, and how many seconds it took."""
    begin = monotonic()
    try:
        call()
    except Exception as error:  # noqa: BLE001  whatever it is, it is returned
        return error, monotonic() - begin
    return None, monotonic() - begin
