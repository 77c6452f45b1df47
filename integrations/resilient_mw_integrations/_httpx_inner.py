"""What sends for a client: the default pool, or what can be made of a transport that is there already.

A transport that somebody else has made is given our network backend and our gate where it lets itself be given them. That
touches private names (`_pool` and three of its attributes); where they are missing, the transport stays as it is, and the
user of a sync client is warned.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from resilient_mw.core.errors import ResilienceWarning
from resilient_mw_integrations._httpcore import AsyncBackend, SyncBackend
from resilient_mw_integrations._httpx_gate import AsyncGate, Gate
from resilient_mw_integrations._httpx_pools import AsyncPool, Kit, Pool, limits_of


def sync_inner(kit: Kit, transport: Any, options: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return what sends for a sync client, and whether each of its operations is bounded.

    Raises:
        ValueError: there is a transport, and options for another one.
    """
    if transport is None:
        if options.get("http2"):
            _warn_of_http2()
        return _gated(kit, Pool(kit, options), _connections(kit, options)), True
    _without(options, transport)
    if isinstance(transport, kit.module.HTTPTransport) and bound(kit, transport):
        if getattr(transport._pool, "_http2", False):  # noqa: SLF001  see the module
            _warn_of_http2()
        return _gated(kit, transport, _connections_of(transport)), True
    if not isinstance(transport, kit.module.MockTransport | kit.module.WSGITransport):
        # Those two run in the caller's own thread: their time is the time of his own code.
        _warn(transport)
    return transport, False


def async_inner(kit: Kit, transport: Any, options: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the same for an async client. What cannot be bounded is cancelled, so there is no warning."""
    if transport is None:
        return _gated(kit, AsyncPool(kit, options), _connections(kit, options)), True
    _without(options, transport)
    if isinstance(transport, kit.module.AsyncHTTPTransport) and bound(kit, transport):
        return _gated(kit, transport, _connections_of(transport)), True
    return transport, False


def _gated(kit: Kit, transport: Any, connections: int | None) -> Any:
    """Put a gate before a transport with so many connections; None: each request gets one without waiting."""
    if connections is None:
        return transport
    if hasattr(transport, "handle_async_request"):
        return AsyncGate(transport, connections, kit.async_gate_body, kit.module.PoolTimeout)
    return Gate(transport, connections, kit.sync_gate_body, kit.module.PoolTimeout)


def bound(kit: Kit, transport: Any) -> bool:
    """Give a transport of the library our network backend; return whether its reads are bounded from now on.

    Connections that are open already stay as they are. Requests without a dependency are not affected.
    """
    pool = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    if isinstance(backend, SyncBackend | AsyncBackend):
        return True
    if pool is None or not isinstance(backend, kit.core.NetworkBackend | kit.core.AsyncNetworkBackend):
        return False
    make = SyncBackend if isinstance(backend, kit.core.NetworkBackend) else AsyncBackend
    pool._network_backend = make(kit.core, backend)  # noqa: SLF001  there is no public way, see the module
    return True


def _connections_of(transport: Any) -> int | None:
    pool = transport._pool  # noqa: SLF001  there is no public way, see the module
    connections = getattr(pool, "_max_connections", None)
    many = getattr(pool, "_http2", True) or connections == sys.maxsize
    return None if many else connections


def _connections(kit: Kit, options: Mapping[str, Any]) -> int | None:
    """Return how many requests can be under way at once. Over HTTP/2 one connection serves many."""
    return None if options.get("http2") else limits_of(kit, options).max_connections


def _without(options: Mapping[str, Any], transport: Any) -> None:
    if options:
        raise ValueError(
            f"{', '.join(options)}: not allowed together with transport={transport!r}: give them to that transport"
        )


def _warn_of_http2() -> None:
    warnings.warn(
        "over HTTP/2 in sync code a call may have to wait for another one that reads from the same connection, beyond its "
        "own deadline, and one that runs out of time takes the others on its connection with it. Use HTTP/1.1, or the async "
        "client",
        ResilienceWarning,
        stacklevel=4,
    )


def _warn(transport: Any) -> None:
    kind = type(transport)
    warnings.warn(
        f"the deadline does not bound what {kind.__module__}.{kind.__qualname__} does as a whole: each of its reads may take "
        "what was left at the beginning, so a server that sends one byte after the other can hold a call. Leave "
        "transport=None, pass an HTTPTransport, or use the async client",
        ResilienceWarning,
        stacklevel=4,
    )


def wrap_transports(client: Any, ours: type, make: Callable[[Any], Any]) -> None:
    """Replace the transports of a client: there is no public way, so private names are touched.

    Raises:
        ValueError: the client is wrapped already.
    """
    transports = [client._transport, *client._mounts.values()]  # noqa: SLF001
    if any(isinstance(transport, ours) for transport in transports):
        raise ValueError(
            f"{client!r} is wrapped already: its calls would be retried by two layers. Wrap it once"
        )
    made = {id(transport): make(transport) for transport in transports if transport is not None}
    client._transport = made[id(client._transport)]  # noqa: SLF001
    for pattern, transport in client._mounts.items():  # noqa: SLF001
        if transport is not None:
            client._mounts[pattern] = made[id(transport)]  # noqa: SLF001
