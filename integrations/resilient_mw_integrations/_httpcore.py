"""A network backend for httpcore and httpcore2 that holds the deadline of an attempt, whatever the server does.

httpcore reads its timeouts once and allows each for every single read or write, so a server that sends one byte a second
holds a call for as long as it likes. In sync code this backend asks the attempt's scope before each operation instead. In
async code the attempt is cancelled at its end, and the backend says where that can be done: inside its operations. (A read
that times out would be the end of a connection of HTTP/2 for everybody on it; one that is cancelled is not.)

It resolves names itself, so that the time for it is counted as its own phase, and gives each address its share of the time
that is left.

What it cannot do: interrupt name resolution in sync code (the resolver has timeouts of its own; the call ends right
after it), nor bound the reads inside TLS inside the TLS of an `https://` proxy.
"""

# ruff: noqa: ASYNC109  The interface of httpcore hands a timeout to each operation.

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import Any

from resilient_mw.calls.events import Phase
from resilient_mw.transport.scope import SCOPE, Scope
from resilient_mw_integrations._names import is_address, unique, unknown

WRITE_SIZE = 16_384
"""Bytes that are written before the time is looked at again: the library allows its timeout for every part that the
system takes, and the system takes this much at once."""
ASYNC_WRITE_SIZE = 262_144
"""Bytes that are handed to the event loop at once: it copies what it could not send, again and again."""
PREFACE = b"PRI * HTTP/2.0"
"""What a connection of HTTP/2 begins with."""
OVER = "the time of this attempt was over"


class Bounded:
    """Something that httpcore works with, around one that does the work.

    Args:
        core: httpcore or a fork of it.
        inner: its own backend or stream.
    """

    def __init__(self, core: ModuleType, inner: Any) -> None:
        self._core = core
        self._inner = inner

    def get_extra_info(self, info: str) -> Any:
        """Return what a connection knows about itself."""
        return self._inner.get_extra_info(info)


class SyncBackend(Bounded):
    """Connects within the deadline, in sync code."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> SyncStream:
        """Resolve a name and connect to the first address that answers."""
        scope = SCOPE.get()
        if scope is None:
            return SyncStream(
                self._core, self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
            )
        scope.connecting(timeout)
        scope.phase = Phase.DNS
        addresses = self._resolve(host, port)
        _check(self._core, scope)
        scope.phase = Phase.CONNECT
        failed: Exception = self._core.ConnectError(f"{host!r} has no address")
        for index, address in enumerate(addresses):
            try:
                share = _share(self._core, scope, len(addresses) - index)
                stream = self._inner.connect_tcp(address, port, share, local_address, socket_options)
                return SyncStream(self._core, stream)
            except (self._core.ConnectError, self._core.ConnectTimeout) as error:
                failed = error
        raise failed

    def _resolve(self, host: str, port: int) -> list[str]:
        if is_address(host):
            return [host]
        try:
            return unique(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            raise self._core.ConnectError(unknown(host, error)) from error

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> SyncStream:
        """Connect to a socket of this machine."""
        scope = SCOPE.get()
        if scope is not None:
            scope.connecting(timeout)
            timeout = _share(self._core, scope, 1)
        return SyncStream(self._core, self._inner.connect_unix_socket(path, timeout, socket_options))

    def sleep(self, seconds: float) -> None:
        """Wait between two attempts to connect, if the library was told to make some."""
        self._inner.sleep(_pause(seconds))


class SyncStream(Bounded):
    """A connection whose operations end with the attempt that does them.

    Attributes:
        shared: whether it is one of HTTP/2, whose streams belong to several attempts.
    """

    shared = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read some bytes."""
        scope = SCOPE.get()
        if scope is not None:
            scope.wire = self
            scope.count(0)
            timeout = _left(scope, timeout, self._core.ReadTimeout)
        data: bytes = self._inner.read(max_bytes, timeout)
        if scope is not None:
            scope.count(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all bytes."""
        if buffer.startswith(PREFACE):
            self.shared = True
        scope = SCOPE.get()
        if scope is None:
            self._inner.write(buffer, timeout)
            return
        scope.wire = self
        for start in range(0, len(buffer), WRITE_SIZE):
            part = buffer[start : start + WRITE_SIZE]
            self._inner.write(part, _left(scope, timeout, self._core.WriteTimeout))

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> SyncStream:
        """Make it a TLS connection."""
        scope = SCOPE.get()
        if scope is not None:
            timeout = _left_for_tls(self._core, scope, timeout)
        return SyncStream(self._core, self._inner.start_tls(ssl_context, server_hostname, timeout))


class AsyncBackend(Bounded):
    """Connects within the deadline, in async code."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncStream:
        """Resolve a name and connect to the first address that answers."""
        scope = SCOPE.get()
        if scope is None:
            stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
            return AsyncStream(self._core, stream)
        scope.connecting(timeout)
        scope.phase = Phase.DNS
        addresses = await self._resolve(host, port, scope)
        scope.phase = Phase.CONNECT
        failed: Exception = self._core.ConnectError(f"{host!r} has no address")
        for index, address in enumerate(addresses):
            try:
                share = _share(self._core, scope, len(addresses) - index)
                connect = self._inner.connect_tcp
                stream = await scope.operate(connect, address, port, share, local_address, socket_options)
                return AsyncStream(self._core, stream)
            except (self._core.ConnectError, self._core.ConnectTimeout) as error:
                failed = error
        raise failed

    async def _resolve(self, host: str, port: int, scope: Scope) -> list[str]:
        if is_address(host):
            return [host]
        resolve = asyncio.get_running_loop().getaddrinfo
        timer = asyncio.timeout(scope.left_to_connect())
        try:
            async with timer:
                return unique(await scope.operate(partial(resolve, host, port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError.
            if timer.expired():
                raise self._core.ConnectTimeout(OVER) from error
            raise self._core.ConnectError(unknown(host, error)) from error

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> AsyncStream:
        """Connect to a socket of this machine."""
        scope = SCOPE.get()
        if scope is not None:
            scope.connecting(timeout)
            timeout = _share(self._core, scope, 1)
            stream = await scope.operate(self._inner.connect_unix_socket, path, timeout, socket_options)
        else:
            stream = await self._inner.connect_unix_socket(path, timeout, socket_options)
        return AsyncStream(self._core, stream)

    async def sleep(self, seconds: float) -> None:
        """Wait between two attempts to connect, if the library was told to make some."""
        await self._inner.sleep(_pause(seconds))


class AsyncStream(Bounded):
    """A connection in whose operations an attempt can be cancelled."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read some bytes."""
        scope = SCOPE.get()
        if scope is None:
            data: bytes = await self._inner.read(max_bytes, timeout)
            return data
        scope.count(0)
        data = await scope.operate(self._inner.read, max_bytes, timeout)
        scope.count(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all bytes."""
        scope = SCOPE.get()
        if scope is None:
            await self._inner.write(buffer, timeout)
            return
        for start in range(0, len(buffer), ASYNC_WRITE_SIZE):
            await scope.operate(self._inner.write, buffer[start : start + ASYNC_WRITE_SIZE], timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> AsyncStream:
        """Make it a TLS connection."""
        scope = SCOPE.get()
        if scope is None:
            return AsyncStream(self._core, await self._inner.start_tls(ssl_context, server_hostname, timeout))
        left = _left_for_tls(self._core, scope, timeout)
        try:
            stream = await scope.operate(self._inner.start_tls, ssl_context, server_hostname, left)
        except asyncio.CancelledError:
            await self._inner.aclose()  # Nobody else knows this connection yet.
            raise
        return AsyncStream(self._core, stream)


def _pause(seconds: float) -> float:
    scope = SCOPE.get()
    left = None if scope is None else scope.left_to_connect(seconds)
    return seconds if left is None else max(0.0, left)


def _left(scope: Scope, timeout: float | None, late: type[Exception]) -> float | None:
    left = scope.left(timeout)
    if left is not None and left <= 0:
        raise late(OVER)
    return left


def _check(core: ModuleType, scope: Scope) -> None:
    left = scope.left_to_connect()
    if left is not None and left <= 0:
        raise core.ConnectTimeout(OVER)


def _share(core: ModuleType, scope: Scope, addresses: int) -> float | None:
    """Return the time for the next of so many addresses, so that one that is silent leaves some to the others."""
    _check(core, scope)
    left = scope.left_to_connect()
    return None if left is None else left / addresses


def _left_for_tls(core: ModuleType, scope: Scope, timeout: float | None) -> float | None:
    scope.phase = Phase.TLS
    _check(core, scope)
    return scope.left_to_connect(timeout)
