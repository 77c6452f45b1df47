"""What sends for a client: the default pool, or what can be made of a transport that is there already.

A transport that somebody else has made is given our network backend and our gate where it lets itself be given them. That
touches private names (`_pool` and three of its attributes); where they are missing, the transport stays as it is, and the
user of a sync client is warned.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from resilient_mw.calls.dependency import Dependency, check_dependencies
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw_integrations._httpcore import AsyncBackend, SyncBackend
from resilient_mw_integrations._httpx_gate import AsyncGate, Gate
from resilient_mw_integrations._httpx_parted import AsyncPartedPools, PartedPools
from resilient_mw_integrations._httpx_pools import AsyncPool, Kit, Pool, limits_of, with_one_context


def sync_inner(
    kit: Kit,
    transport: Any,
    options: Mapping[str, Any],
    dependencies: Sequence[Dependency],
    *,
    parted: bool,
) -> tuple[Any, bool]:
    """Return what sends for a sync client, and whether each of its operations is bounded.

    Args:
        kit: the library and its core.
        transport: what the user gave; None: a pool is made.
        options: for that pool.
        dependencies: who shares it.
        parted: whether each of them gets one of its own instead.

    Raises:
        ValueError: there is a transport, and options for another one.
    """
    if transport is None:
        if options.get("http2"):
            _warn_of_http2()
        connections = _connections(kit, options)
        _warn_of_size(dependencies, connections, parted=parted)
        if parted:
            shared = with_one_context(kit, options)
            return PartedPools(dependencies, lambda: _gated(kit, Pool(kit, shared), connections)), True
        return _gated(kit, Pool(kit, options), connections), True
    _without(options, transport, parted=parted)
    if isinstance(transport, kit.module.HTTPTransport) and bound(kit, transport):
        if getattr(transport._pool, "_http2", False):  # noqa: SLF001  see the module
            _warn_of_http2()
        _warn_of_size(dependencies, _connections_of(transport), parted=False)
        return _gated(kit, transport, _connections_of(transport)), True
    if not isinstance(transport, kit.module.MockTransport | kit.module.WSGITransport):
        # Those two run in the caller's own thread: their time is the time of his own code.
        _warn(transport)
    return transport, False


def async_inner(
    kit: Kit,
    transport: Any,
    options: Mapping[str, Any],
    dependencies: Sequence[Dependency],
    *,
    parted: bool,
) -> tuple[Any, bool]:
    """Return the same for an async client. What cannot be bounded is cancelled, so there is no warning of it."""
    if transport is None:
        connections = _connections(kit, options)
        _warn_of_size(dependencies, connections, parted=parted)
        if parted:
            shared = with_one_context(kit, options)
            return AsyncPartedPools(
                dependencies, lambda: _gated(kit, AsyncPool(kit, shared), connections)
            ), True
        return _gated(kit, AsyncPool(kit, options), connections), True
    _without(options, transport, parted=parted)
    if isinstance(transport, kit.module.AsyncHTTPTransport) and bound(kit, transport):
        _warn_of_size(dependencies, _connections_of(transport), parted=False)
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


def _without(options: Mapping[str, Any], transport: Any, *, parted: bool) -> None:
    if options:
        raise ValueError(
            f"{', '.join(options)}: not allowed together with transport={transport!r}: give them to that transport"
        )
    if parted:
        raise ValueError(
            f"pool_per_dependency=True is not allowed together with transport={transport!r}, which is one for all of them: "
            "leave transport=None"
        )


def _warn_of_size(dependencies: Sequence[Dependency], connections: int | None, *, parted: bool) -> None:
    """Warn of a pool that is smaller than what the bulkheads let through: its bound is felt before theirs, by all."""
    if connections is None:
        return
    places = {
        each.name: each.most_attempts
        for each in check_dependencies(dependencies)
        if each.most_attempts is not None
    }
    groups = [{name: places[name]} for name in places] if parted else [places]
    for group in groups:
        total = sum(group.values())
        if total > connections:
            named = ", ".join(f"{name!r} {most}" for name, most in group.items())
            part = "" if parted else ", or part it with pool_per_dependency=True"
            warnings.warn(
                f"the pool has {connections} connections, and the bulkheads of the dependencies that share it let {total} "
                f"attempts through ({named}): the pool fills first, and who waits for it is not refused at once. Give it "
                f"limits=Limits(max_connections={total}), or make the bulkheads smaller{part}",
                ResilienceWarning,
                stacklevel=4,
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


def wrap_transports(client: Any, ours: type[Any], dependencies: Sequence[Dependency]) -> None:
    """Put transports of ours between a client and its own: there is no public way, so private names are touched.

    Args:
        client: the client, sync or async.
        ours: the class of transports for it.
        dependencies: whom they call.

    Raises:
        ValueError: the client is wrapped already.
    """
    transports = [client._transport, *client._mounts.values()]  # noqa: SLF001
    if any(isinstance(transport, ours) for transport in transports):
        raise ValueError(
            f"{client!r} is wrapped already: its calls would be retried by two layers. Wrap it once"
        )
    made = {id(transport): ours(dependencies, transport) for transport in transports if transport is not None}
    client._transport = made[id(client._transport)]  # noqa: SLF001
    for pattern, transport in client._mounts.items():  # noqa: SLF001
        if transport is not None:
            client._mounts[pattern] = made[id(transport)]  # noqa: SLF001
