"""Transports for httpx2: retries, breaker, bulkhead and one deadline around the calls to your dependencies.

Example:
    import httpx2
    from resilient_mw import Dependency
    from resilient_mw_integrations.httpx2 import ResilientTransport

    prices = Dependency("prices", match="http://prices/*")
    client = httpx2.Client(transport=ResilientTransport([prices]))

Requests that match no dependency pass as if the transport were not there, and get no header of ours; each hop of a
redirect is looked at anew. A call gets what is left of the request that it is made for (`current()`, `budget()`), outside
of both the dependency's `total_timeout`.

Without a transport of yours the deadline holds whatever the server does, in sync code as well, with the exception of name
resolution in sync code, which cannot be interrupted. An `HTTPTransport` of yours is bounded the same way, from the next
connection on. Any other transport of a sync client can be told a timeout for each of its reads, but not stopped between
them: `ResilienceWarning`. So can HTTP/2 in sync code, where calls wait for each other. In-process transports
(`MockTransport`, `WSGITransport`, `ASGITransport`) need no warning: their time is that of the caller's own code.

Attempts over a connection that can be cancelled are cancelled without harm to the pool. Outside asyncio there is no async
transport (`UnsupportedEventLoop`). Proxies of the environment are not used, as with every transport that is given to
`httpx2.Client`; `wrap()` keeps those of an existing client.

A transport is closed with the one around it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, TypeVar, Unpack

import httpcore2
import httpx2

from resilient_mw.calls.dependency import Dependency
from resilient_mw.transport import errors
from resilient_mw.transport.aio import AsyncCalls
from resilient_mw.transport.library import Library
from resilient_mw.transport.sync import SyncCalls
from resilient_mw_integrations._httpx_inner import async_inner, sync_inner, wrap_transports
from resilient_mw_integrations._httpx_pools import Kit

__all__ = [
    "AsyncResilientTransport",
    "BudgetTooSmall",
    "CallExpired",
    "CallRefused",
    "ResilientTransport",
    "TransportClosed",
    "TransportOptions",
    "wrap",
]


class CallExpired(errors.Expired, httpx2.TimeoutException):
    """The deadline passed before the call was over: `DeadlineExceeded` and `httpx2.TimeoutException` at once."""


class CallRefused(errors.Refused, httpx2.TransportError):
    """The circuit is open or the bulkhead full: `resilient_mw.CallRefused` and `httpx2.TransportError` at once."""


class BudgetTooSmall(CallRefused, httpx2.TimeoutException):
    """Too little of the budget was left to begin: `resilient_mw.CallRefused` and `httpx2.TimeoutException` at once."""


class TransportClosed(errors.Closed, httpx2.TransportError):
    """The transport was closed while a call waited for its next attempt."""


class TransportOptions(TypedDict, total=False):
    """What the default inner transport can be told, as of `httpx2.HTTPTransport`. Retries are the dependency's matter."""

    verify: ssl.SSLContext | str | bool
    cert: str | tuple[str, str] | tuple[str, str, str] | None
    trust_env: bool
    http1: bool
    http2: bool
    limits: httpx2.Limits
    proxy: httpx2.Proxy | httpx2.URL | str | None
    uds: str | None
    local_address: str | None
    socket_options: Iterable[Any] | None


KIT = Kit(httpx2, httpcore2)
LIBRARY = Library(
    httpx2, expired=CallExpired, refused=CallRefused, too_small=BudgetTooSmall, closed=TransportClosed
)


class ResilientTransport(SyncCalls[httpx2.Request, httpx2.Response], httpx2.BaseTransport):
    """A transport for `httpx2.Client`. See the module.

    Args:
        dependencies: who is called; the first one that matches a request is the one.
        transport: what sends; None: a pool of connections that holds the deadline.
        pool_per_dependency: whether each dependency gets a pool of its own, and all other requests one more, so that a
            dependency that hangs does not use up the connections of another. The options hold for each of them.
        options: for that pool.

    Raises:
        ValueError: the dependencies do not go together, or there are options for a transport of yours.

    A `ResilienceWarning` says when a pool is smaller than the bulkheads of the dependencies that share it.
    """

    def __init__(
        self,
        dependencies: Sequence[Dependency],
        transport: httpx2.BaseTransport | None = None,
        *,
        pool_per_dependency: bool = False,
        **options: Unpack[TransportOptions],
    ) -> None:
        inner, bounded = sync_inner(KIT, transport, options, dependencies, parted=pool_per_dependency)
        super().__init__(LIBRARY, dependencies, inner, bounded=bounded)


class AsyncResilientTransport(AsyncCalls[httpx2.Request, httpx2.Response], httpx2.AsyncBaseTransport):
    """A transport for `httpx2.AsyncClient`, on asyncio. Arguments as of `ResilientTransport`."""

    def __init__(
        self,
        dependencies: Sequence[Dependency],
        transport: httpx2.AsyncBaseTransport | None = None,
        *,
        pool_per_dependency: bool = False,
        **options: Unpack[TransportOptions],
    ) -> None:
        inner, bounded = async_inner(KIT, transport, options, dependencies, parted=pool_per_dependency)
        super().__init__(LIBRARY, dependencies, inner, bounded=bounded)


ClientT = TypeVar("ClientT", httpx2.Client, httpx2.AsyncClient)


def wrap(client: ClientT, dependencies: Sequence[Dependency]) -> ClientT:
    """Put the dependencies between an existing client and its transports, mounted ones too; return the same client.

    Raises:
        ValueError: the dependencies do not go together, or the client is wrapped already.
    """
    if isinstance(client, httpx2.AsyncClient):
        wrap_transports(client, AsyncResilientTransport, dependencies)
    else:
        wrap_transports(client, ResilientTransport, dependencies)
    return client
