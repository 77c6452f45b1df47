"""Calls to dependencies through the pools of urllib3, for the integrations of urllib3 and of requests.

A pool's `urlopen` is where both of them send one request, after redirects were followed above it. Requests of no dependency
pass as if nothing were here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPHeaderDict, PoolManager
from urllib3.exceptions import (
    ClosedPoolError,
    EmptyPoolError,
    HTTPError,
    LocationValueError,
    MaxRetryError,
    ProxyError,
    ReadTimeoutError,
    URLSchemeUnknown,
)
from urllib3.util import Retry, Timeout

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Phase
from resilient_mw.core.errors import ResilienceError
from resilient_mw.transport.library import Library
from resilient_mw.transport.scope import SCOPE
from resilient_mw.transport.sync import SyncCalls
from resilient_mw_integrations._facade import ByteStream, Headers, Request, Response, Url, shaped
from resilient_mw_integrations._urllib3_bodies import LATE, Body, ResilientResponse, Upload, Wire, let_go
from resilient_mw_integrations._urllib3_wire import (
    ATTEMPT,
    BoundedConnection,
    ConnectTimeout,
    PoolTimeout,
)

AS_THEY_ARE = (ResilienceError, EmptyPoolError, ClosedPoolError, LocationValueError)
"""Errors that urllib3 does not put into a `MaxRetryError`, and ours."""
OWN = "resilient_mw.urlopen"
"""The extension that sends the request of an attempt."""


class Urllib3Library(Library):
    """What the transports use of urllib3.

    Args:
        name: who is served.
        errors: as of `Library`.
    """

    def __init__(self, name: str, **errors: Any) -> None:
        module = shaped(
            name,
            TransportError=HTTPError,
            TimeoutException=LATE,
            PoolTimeout=PoolTimeout,
            LocalProtocolError=LocationValueError,
            UnsupportedProtocol=URLSchemeUnknown,
        )
        super().__init__(module, **errors)
        self.sync_body: Callable[..., Any] = Body
        self.sync_upload: Callable[..., Any] = Upload

    def timed_out(self, _phase: Phase | None, message: str) -> Exception:
        """Return the error of a body that took too long: the only one that is not made below."""
        nobody: Any = None  # As urllib3 does when it pickles one.
        return ReadTimeoutError(nobody, None, message)


class Urllib3Calls(SyncCalls[Request, Response]):
    """The calls of one manager of pools."""

    def __init__(self, library: Library, dependencies: Sequence[Dependency]) -> None:
        super().__init__(library, dependencies, _Sender(), bounded=True)

    def wants(self, url: Url) -> bool:
        """Return whether a request goes to one of the dependencies."""
        return self._directory.find(url) is not None


class _Sender:
    """What sends for all pools: the request says how."""

    def handle_request(self, request: Request) -> Response:
        response: Response = request.extensions[OWN](request)
        return response

    def close(self) -> None:
        """Do nothing: the manager closes its pools."""


class ResilientPool(HTTPConnectionPool):
    """A mixin before a pool of urllib3. `calls` is set by `pool_classes`."""

    calls: Urllib3Calls

    def urlopen(  # type: ignore[override]  # noqa: PLR0917  it is urllib3's
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Any = None,
        retries: Any = None,
        redirect: bool = True,
        assert_same_host: bool = True,
        timeout: Any = None,
        pool_timeout: float | None = None,
        release_conn: bool | None = None,
        chunked: bool = False,
        body_pos: Any = None,
        preload_content: bool = True,
        decode_content: bool = True,
        **response_kw: Any,
    ) -> Any:
        """Send a request; if it goes to a dependency, as a call."""
        absolute = url.lower().startswith(("http://", "https://"))  # As proxies are told.
        target = Url(url if absolute else self._absolute(url))
        send: Any = super().urlopen
        if not self.calls.wants(target):
            return send(
                method, url, body, headers, retries, redirect, assert_same_host,
                self.timeout if timeout is None else timeout,
                pool_timeout, release_conn, chunked, body_pos, preload_content, decode_content, **response_kw,
            )  # fmt: skip
        if retries is None:
            retries = self.retries
        if not isinstance(retries, Retry):
            retries = Retry.from_int(retries, redirect=redirect)
        options = {"assert_same_host": assert_same_host, "chunked": chunked, "body_pos": body_pos}
        sending = Sending(self, send, url, {**options, "decode_content": decode_content, **response_kw})
        call = Request(
            method.upper(),
            target,
            headers=Headers((self.headers if headers is None else headers).items()),
            stream=ByteStream(body)
            if body is None or isinstance(body, str | bytes | bytearray | memoryview)
            else body,
            extensions={
                OWN: sending.attempt,
                "timeout": _timeouts(
                    self._get_timeout(timeout if timeout is not None else self.timeout), pool_timeout
                ),
            },
        )
        try:
            raw: Any = self.calls.handle_request(call).original
            raw.retries = retries
            if preload_content:
                raw.read(cache_content=True, decode_content=decode_content)
        except HTTPError as error:
            if not isinstance(error, AS_THEY_ARE):
                # The error is dressed as this library does when its own retries are used up.
                try:
                    retries.new(total=retries.total and 0).increment(method, url, error=error, _pool=self)
                except MaxRetryError as dressed:
                    told: Any = dressed
                    told.phase = getattr(error, "phase", None)
                    raise
            raise
        return raw

    def _absolute(self, url: str) -> str:
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{host}{port}{url if url.startswith('/') else '/' + url}"

    def _get_conn(self, timeout: float | None = None) -> Any:
        scope = SCOPE.get()
        if scope is None:
            return super()._get_conn(timeout)
        scope.phase = Phase.POOL
        left = scope.left(timeout)
        try:
            connection = super()._get_conn(left if left is None else max(0.0, left))
        except EmptyPoolError as error:
            raise PoolTimeout(
                self, f"all {self.num_connections} connections of the pool are in use"
            ) from error
        scope.phase = None
        return connection


class Sending:
    """Sends the attempts of one request.

    Args:
        pool: the pool.
        send: its own `urlopen`.
        url: what it is to be told.
        options: what it is to be told beside.
    """

    def __init__(self, pool: Any, send: Callable[..., Any], url: str, options: dict[str, Any]) -> None:
        self._pool = pool
        self._send = send
        self._url = url
        self._options = options

    def attempt(self, request: Request) -> Response:
        """Make an attempt up to its head."""
        limits = request.extensions["timeout"]
        stream = request.stream
        headers = HTTPHeaderDict()
        for name, value in request.headers.items():
            headers.add(name, value)
        token = ATTEMPT.set(request)
        try:
            raw = self._send(
                request.method,
                self._url,
                body=stream.body if isinstance(stream, ByteStream) else stream,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=Timeout(connect=_positive(limits["connect"]), read=_positive(limits["read"])),
                pool_timeout=limits["pool"],
                preload_content=False,
                release_conn=False,
                **self._options,
            )
        except ProxyError as error:
            if isinstance(error.original_error, LATE):
                raise ConnectTimeout(str(error)) from error
            raise
        finally:
            ATTEMPT.reset(token)
        raw.__class__ = ResilientResponse
        return Response(
            raw,
            status=raw.status,
            headers=Headers(raw.headers.items()),
            stream=Wire(raw),
            is_closed=raw.closed,
            close=lambda: let_go(raw),
        )


def pool_classes(calls: Urllib3Calls, classes: dict[str, Any]) -> dict[str, Any]:
    """Return pools that make calls, from those that a manager has, by scheme."""
    made = {}
    for scheme, kind in classes.items():
        connection = type(
            kind.ConnectionCls.__name__, (BoundedConnection, kind.ConnectionCls), {"__module__": __name__}
        )
        made[scheme] = type(
            kind.__name__,
            (ResilientPool, kind),
            {"calls": calls, "ConnectionCls": connection, "__module__": __name__},
        )
    return made


def equip(calls: Urllib3Calls, manager: PoolManager) -> None:
    """Let a manager make its next pools of those that make calls.

    Raises:
        ValueError: it does so already.
    """
    classes: dict[str, Any] = manager.pool_classes_by_scheme
    if any(issubclass(kind, ResilientPool) for kind in classes.values()):
        raise ValueError(
            f"{manager!r} is wrapped already: its calls would be retried by two layers. Wrap it once"
        )
    manager.pool_classes_by_scheme = pool_classes(calls, classes)
    manager.pools.clear()


def _timeouts(timeout: Timeout, pool_timeout: float | None) -> dict[str, float | None]:
    timer = timeout.clone()
    timer.start_connect()
    connect, read = (
        Timeout.resolve_default_timeout(each) for each in (timer.connect_timeout, timer.read_timeout)
    )
    return {"connect": connect, "read": read, "write": read, "pool": pool_timeout}


def _positive(seconds: float | None) -> float | None:
    return None if seconds is None else max(seconds, 0.001)
