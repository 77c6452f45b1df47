"""Connections for urllib3 that hold the deadline of an attempt, whatever the server does.

urllib3 allows its timeouts to every single read and write, so a server that sends one byte a second holds a call for as
long as it likes. Here each operation on the socket is told what is left of the attempt (`SCOPE`) when it begins. Outside an
attempt all is as urllib3 does it.

Names are resolved here, so that the time for it is counted as its own phase, and each address gets its share of what is
left. What cannot be done: interrupt name resolution (the call ends right after it), and bound the greeting of a SOCKS
proxy as a whole.

Private names of urllib3 that are used: `_new_conn` and `_dns_host` of a connection, `_get_conn` of a pool.
"""

from __future__ import annotations

import io
import ipaddress
import socket
from collections.abc import Iterable
from contextvars import ContextVar
from http.client import HTTPResponse as Head
from types import SimpleNamespace
from typing import Any

from urllib3 import HTTPHeaderDict
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, EmptyPoolError, NameResolutionError, ReadTimeoutError

from resilient_mw.calls.events import Phase
from resilient_mw.transport.scope import SCOPE, Scope
from resilient_mw_integrations._facade import Headers, Request

WRITE_SIZE = 65_536
"""Bytes that are written before the time is looked at again. TLS allows its timeout for every part of them."""
OVER = "the time of this attempt was over"

ATTEMPT: ContextVar[Request | None] = ContextVar("resilient_mw_urllib3_attempt", default=None)
"""The request of the attempt that is being sent."""


class ConnectTimeout(ConnectTimeoutError):
    """Connecting was not over in time (`ConnectTimeoutError` alone is also the base of refused connections)."""


class WriteTimeout(ReadTimeoutError):
    """The request was not sent in time."""


class PoolTimeout(EmptyPoolError):
    """No connection of the pool became free in time."""


class BoundedConnection(HTTPConnection):
    """Connects, writes and reads within the attempt. A mixin before a connection class of urllib3."""

    def _new_conn(self) -> socket.socket:
        scope = SCOPE.get()
        if scope is None:
            return super()._new_conn()
        scope.connecting(self.timeout)
        timeout = self.timeout
        try:
            sock = self._connected(scope)
        finally:
            self.timeout = timeout
        scope.phase = (
            Phase.TLS if _is_tls(self) and not getattr(self, "_tunnel_host", None) else Phase.CONNECT
        )
        sock.settimeout(self._left_to_connect(scope))
        return sock

    def _connected(self, scope: Scope) -> socket.socket:
        """Resolve the name and connect to the first address that answers."""
        if hasattr(self, "_socks_options"):
            scope.phase = Phase.CONNECT
            self.timeout = self._left_to_connect(scope)
            return super()._new_conn()
        scope.phase = Phase.DNS
        addresses = self._addresses()
        self._left_to_connect(scope)
        scope.phase = Phase.CONNECT
        host = self._dns_host
        failed: Exception = NameResolutionError(host, self, socket.gaierror("it has no address"))
        try:
            for index, address in enumerate(addresses):
                self._dns_host = address
                left = self._left_to_connect(scope)
                self.timeout = None if left is None else left / (len(addresses) - index)
                try:
                    return super()._new_conn()
                except ConnectTimeoutError as error:  # Refused connections are one, too.
                    failed = ConnectTimeout(str(error)) if type(error) is ConnectTimeoutError else error
        finally:
            self._dns_host = host
        raise failed

    def _addresses(self) -> list[str]:
        host = self._dns_host
        try:
            ipaddress.ip_address(host.strip("[]"))
            return [host]
        except ValueError:
            pass
        try:
            found = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except UnicodeError as error:
            raise NameResolutionError(self.host, self, socket.gaierror(str(error))) from error
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def _left_to_connect(self, scope: Scope) -> float | None:
        left = scope.left_to_connect()
        if left is not None and left <= 0:
            raise ConnectTimeout(f"connecting to {self.host}: {OVER}")
        return left

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, **keywords: Any) -> None:
        """Send a request: connect first, so that the head tells the dependency what is left after it."""
        attempt = ATTEMPT.get()
        if attempt is not None:
            if self.sock is None:
                self.connect()
            headers = _told(attempt, headers)
        super().request(method, url, body, headers, **keywords)

    def send(self, data: Any) -> None:
        """Send some bytes."""
        scope = SCOPE.get()
        if scope is None or self.sock is None:
            super().send(data)
            return
        attempt = ATTEMPT.get()
        # While urllib3 writes, `self.timeout` is still that of connecting.
        base = self.timeout if attempt is None else attempt.extensions["timeout"]["write"]
        for piece in _pieces(data):
            left = scope.left(base)
            if left is not None and left <= 0:
                raise self._late()
            self.sock.settimeout(left)
            try:
                super().send(piece)
            except TimeoutError as error:
                raise self._late() from error

    def _late(self) -> WriteTimeout:
        pool: Any = self  # It is only written into the message.
        return WriteTimeout(pool, None, "sending the request was not over in time")

    def getresponse(self) -> Any:
        """Wait for the head."""
        attempt = ATTEMPT.get()
        if attempt is not None:
            attempt.extensions["trace"]("http11.receive_response_headers.started", {})
        return super().getresponse()


class BoundedHead(Head):
    """A response of `http.client` that is read within the attempt."""

    def __init__(self, sock: Any, *args: Any, **keywords: Any) -> None:
        files: Any = _Files(sock)  # It wants no more of a socket.
        super().__init__(files, *args, **keywords)


BoundedConnection.response_class = BoundedHead


class _Files:
    """What `http.client` wants of a socket."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(Reader(self._sock, self._sock.makefile(mode, buffering=0)))


class Reader(io.RawIOBase):
    """The receiving side of a connection: each read ends with the attempt that does it.

    Args:
        sock: the socket.
        raw: its unbuffered file.
    """

    def __init__(self, sock: Any, raw: Any) -> None:
        self._sock = sock
        self._raw = raw
        self._timeout: float | None = sock.gettimeout()

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read some bytes.

        Raises:
            TimeoutError: nothing came in time.
        """
        scope = SCOPE.get()
        if scope is None:
            self._sock.settimeout(self._timeout)
            got: int | None = self._raw.readinto(buffer)
            return got
        left = scope.left(self._timeout)
        if left is not None and left <= 0:
            raise TimeoutError(OVER)
        self._sock.settimeout(left)
        scope.count(0)
        got = self._raw.readinto(buffer)
        scope.count(got or 0)
        return got

    def fileno(self) -> int:
        """Return the number of the socket."""
        number: int = self._raw.fileno()
        return number

    def close(self) -> None:
        """Let go of the socket."""
        if not self.closed:
            self._raw.close()
        super().close()


def _told(attempt: Request, headers: HTTPHeaderDict) -> HTTPHeaderDict:
    """Return the head with what is left in this instant, and note that it is being written."""
    raw = Headers(headers.items()).raw
    message = SimpleNamespace(method=attempt.method.encode("latin-1", "replace"), headers=raw.copy())
    attempt.extensions["trace"]("http11.send_request_headers.started", {"request": message})
    for old, (name, value) in zip(raw, message.headers, strict=True):
        if old != (name, value):
            headers[name.decode("latin-1")] = value.decode("latin-1")  # The dictionary is this attempt's own.
    return headers


def _pieces(data: Any) -> Iterable[Any]:
    if hasattr(data, "read"):
        return iter(lambda: data.read(WRITE_SIZE), b"")
    if not isinstance(data, bytes | bytearray | memoryview):
        return (data,)
    view = memoryview(data).cast("B") if not isinstance(data, bytes) else data
    return (view[start : start + WRITE_SIZE] for start in range(0, len(view), WRITE_SIZE))


def _is_tls(connection: HTTPConnection) -> bool:
    return connection.default_port == 443
