"""The default inner transports for httpx and httpx2, on the public names of httpcore alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any, Self

from resilient_mw_integrations._httpcore import AsyncBackend, SyncBackend
from resilient_mw_integrations._httpx_gate import AsyncGateBody, GateBody

ERRORS = (
    "ConnectError",
    "ConnectTimeout",
    "LocalProtocolError",
    "NetworkError",
    "PoolTimeout",
    "ProtocolError",
    "ProxyError",
    "ReadError",
    "ReadTimeout",
    "RemoteProtocolError",
    "TimeoutException",
    "UnsupportedProtocol",
    "WriteError",
    "WriteTimeout",
)


class Kit:
    """A client library and the core under it.

    Args:
        module: httpx or a fork of it.
        core: the httpcore that belongs to it.
    """

    def __init__(self, module: ModuleType, core: ModuleType) -> None:
        self.module = module
        self.core = core
        self.names: Mapping[type[Exception], str] = {getattr(core, name): name for name in ERRORS}
        self.sync_stream: type = type("PoolBody", (PoolBody, module.SyncByteStream), {})
        self.async_stream: type = type("AsyncPoolBody", (AsyncPoolBody, module.AsyncByteStream), {})
        self.sync_gate_body: type = type("GateBody", (GateBody, module.SyncByteStream), {})
        self.async_gate_body: type = type("AsyncGateBody", (AsyncGateBody, module.AsyncByteStream), {})

    @contextmanager
    def mapped(self) -> Iterator[None]:
        """Raise the library's errors for those of its core."""
        try:
            yield
        except Exception as error:
            for kind in type(error).__mro__:
                if kind in self.names:
                    raise getattr(self.module, self.names[kind])(str(error)) from error
            raise

    def request(self, request: Any) -> Any:
        """Return the core's request for one of the library."""
        url = request.url
        return self.core.Request(
            method=request.method,
            url=self.core.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )

    def response(self, answer: Any, stream: Any) -> Any:
        """Return the library's response for one of its core."""
        return self.module.Response(
            status_code=answer.status, headers=answer.headers, stream=stream, extensions=answer.extensions
        )


class Pool:
    """The default inner transport of a sync client.

    Args:
        kit: the library and its core.
        options: see `TransportOptions`.
    """

    def __init__(self, kit: Kit, options: Mapping[str, Any]) -> None:
        self._kit = kit
        self._pool = _pool(kit, "", SyncBackend(kit.core, kit.core.SyncBackend()), options)

    def handle_request(self, request: Any) -> Any:
        """Send a request over a connection of the pool."""
        with self._kit.mapped():
            answer = self._pool.handle_request(self._kit.request(request))
        return self._kit.response(answer, self._kit.sync_stream(self._kit, answer.stream))

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.__exit__(kind, error, traceback)


class AsyncPool:
    """The default inner transport of an async client. Arguments as of `Pool`."""

    def __init__(self, kit: Kit, options: Mapping[str, Any]) -> None:
        self._kit = kit
        self._pool = _pool(kit, "Async", AsyncBackend(kit.core, kit.core.AnyIOBackend()), options)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request over a connection of the pool."""
        with self._kit.mapped():
            answer = await self._pool.handle_async_request(self._kit.request(request))
        return self._kit.response(answer, self._kit.async_stream(self._kit, answer.stream))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._pool.__aexit__(kind, error, traceback)


class PoolBody:
    """A response body with the library's errors."""

    def __init__(self, kit: Kit, stream: Any) -> None:
        self._kit = kit
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with self._kit.mapped():
            yield from self._stream

    def close(self) -> None:
        """Give the connection back to the pool, or close it if the body was not read to its end."""
        self._stream.close()


class AsyncPoolBody:
    """The same for async clients."""

    def __init__(self, kit: Kit, stream: Any) -> None:
        self._kit = kit
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._kit.mapped():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        """Give the connection back to the pool, or close it if the body was not read to its end."""
        await self._stream.aclose()


def limits_of(kit: Kit, options: Mapping[str, Any]) -> Any:
    """Return the limits of the default pool, by default those of the library."""
    return options.get("limits") or kit.module.Limits(max_connections=100, max_keepalive_connections=20)


def with_one_context(kit: Kit, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of several pools, with certificates that are read once for all of them."""
    return {**options, "verify": _context(kit, options), "cert": None}


def _context(kit: Kit, options: Mapping[str, Any]) -> Any:
    return kit.module.create_ssl_context(
        verify=options.get("verify", True),
        cert=options.get("cert"),
        trust_env=options.get("trust_env", True),
    )


def _pool(kit: Kit, kind: str, backend: Any, options: Mapping[str, Any]) -> Any:
    """Return a pool of connections, through a proxy or not. `kind` is `Async` or nothing."""
    module, core = kit.module, kit.core
    limits = limits_of(kit, options)
    settings: dict[str, Any] = {
        "ssl_context": _context(kit, options),
        "max_connections": limits.max_connections,
        "max_keepalive_connections": limits.max_keepalive_connections,
        "keepalive_expiry": limits.keepalive_expiry,
        "http1": options.get("http1", True),
        "http2": options.get("http2", False),
        "network_backend": backend,
    }
    direct = {name: options[name] for name in ("uds", "local_address", "socket_options") if name in options}
    proxy = options.get("proxy")
    if proxy is None:
        return getattr(core, f"{kind}ConnectionPool")(**settings, **direct)
    if not isinstance(proxy, module.Proxy):
        proxy = module.Proxy(url=proxy)
    settings["proxy_url"] = core.URL(
        scheme=proxy.url.raw_scheme, host=proxy.url.raw_host, port=proxy.url.port, target=proxy.url.raw_path
    )
    settings["proxy_auth"] = proxy.raw_auth
    if proxy.url.scheme in {"socks5", "socks5h"}:
        return getattr(core, f"{kind}SOCKSProxy")(**settings)
    settings["proxy_headers"] = proxy.headers.raw
    settings["proxy_ssl_context"] = proxy.ssl_context
    return getattr(core, f"{kind}HTTPProxy")(**settings, **direct)
