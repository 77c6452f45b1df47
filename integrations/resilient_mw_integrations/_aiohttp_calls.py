"""Calls to dependencies through a middleware of aiohttp: attempts, and where they are.

aiohttp cancels cleanly in every place, so an attempt ends by cancelling it.

Private names of aiohttp that are used where they are there: `_traces` of a request (phases before the head; without them
they are guessed from the error), `_writer` of a response, and `_retry_connection` of a session (see `keep_from_repeating`).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from copy import copy
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.http import RawResponseMessage
from aiohttp.tracing import Trace

from resilient_mw.calls.events import Phase
from resilient_mw.transport.library import Library
from resilient_mw.transport.scope import SCOPE, Scope
from resilient_mw_integrations._aiohttp_bodies import Body, Wire
from resilient_mw_integrations._facade import ByteStream, Headers, Request, Response, shaped

OWN = "resilient_mw.send"
"""The extension that sends the request of an attempt."""
IDEMPOTENT = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"})


class PoolTimeout(aiohttp.ConnectionTimeoutError):
    """No connection of the connector became free in time."""


class AiohttpLibrary(Library):
    """What the transports use of aiohttp. Arguments as of `Library`."""

    def __init__(self, **errors: Any) -> None:
        module = shaped(
            "aiohttp",
            TransportError=aiohttp.ClientError,
            TimeoutException=aiohttp.ServerTimeoutError,
            PoolTimeout=PoolTimeout,
            LocalProtocolError=aiohttp.InvalidURL,
            UnsupportedProtocol=aiohttp.NonHttpUrlClientError,
        )
        super().__init__(module, **errors)
        self.async_body: Callable[..., Any] = Body
        self.async_upload: Callable[..., Any] = Upload

    def timed_out(self, phase: Phase | None, message: str) -> Exception:
        """Return the library's own error for a timeout in a phase."""
        if phase is Phase.POOL:
            return PoolTimeout(message)
        if phase in {Phase.DNS, Phase.CONNECT, Phase.TLS}:
            return aiohttp.ConnectionTimeoutError(message)
        return aiohttp.SocketTimeoutError(message)


class Upload:
    """A request body that can be sent once.

    Args:
        body: the caller's body.

    Attributes:
        begun: whether it was.
    """

    def __init__(self, body: Any) -> None:
        self.body = body
        self.begun = False


class Sender:
    """What sends: the request says how. The session closes its connector."""

    async def handle_async_request(self, request: Request) -> Response:
        """Make an attempt up to its head."""
        response: Response = await request.extensions[OWN](request)
        return response

    async def aclose(self) -> None:
        """Do nothing."""


class Sending:
    """Sends the attempts of one request.

    Args:
        asked: aiohttp's request.
        handler: sends it.
    """

    def __init__(self, asked: Any, handler: Callable[[Any], Any]) -> None:
        self._asked = asked
        self._handler = handler
        self._original = Headers(asked.headers.items())

    async def attempt(self, request: Request) -> Response:
        """Make an attempt up to its head, with a copy of aiohttp's request: another one may be under way."""
        scope = SCOPE.get()
        if scope is None:
            raise RuntimeError("an attempt is made inside its scope")
        asked = copy(self._asked)
        asked.headers = self._asked.headers.copy()
        _write(asked, self._original, request.headers)
        traces = getattr(asked, "_traces", None)
        timer = asyncio.timeout(None)
        connecting = Connecting(scope, timer, request.extensions["timeout"]["connect"])
        trace = Trace(getattr(asked, "_session", None), TRACES, connecting)  # type: ignore[arg-type]
        if isinstance(traces, list):
            traces.append(
                trace
            )  # The list is the session's own for this request, so all attempts hear of all.
        else:
            connecting.begin()
        send = asked.send
        asked.send = lambda connection: self._send(asked, send, connection, request, connecting)
        try:
            async with timer:
                answer = await self._handler(asked)
        except TimeoutError as error:
            if not timer.expired() or isinstance(error, aiohttp.ClientError):
                self._note(error, scope)
                raise
            raise aiohttp.ConnectionTimeoutError("connecting was not over in time") from error
        except aiohttp.ClientError as error:
            self._note(error, scope)
            raise
        finally:
            del asked.send
            if isinstance(traces, list) and trace in traces:
                traces.remove(trace)
        return Response(
            answer,
            status=answer.status,
            headers=Headers(answer.headers.items()),
            stream=Wire(answer),
            is_closed=answer.closed or answer.status == 101,
            close=answer.release,
        )

    async def _send(
        self, asked: Any, send: Callable[..., Any], connection: Any, request: Request, connecting: Connecting
    ) -> Any:
        """Send the request over a connection: the last instant at which its head can be changed."""
        connecting.end()
        if isinstance(request.stream, Upload):
            request.stream.begun = True
        message = SimpleNamespace(method=request.method.encode(), headers=request.headers.raw)
        await request.extensions["trace"]("http11.send_request_headers.started", {"request": message})
        _write(asked, request.headers, Headers(message.headers))
        answer = await send(connection)
        writer = getattr(answer, "_writer", None)
        if writer is None:
            connecting.scope.phase = Phase.HEAD
        else:
            writer.add_done_callback(connecting.written)
        return answer

    def _note(self, error: Exception, scope: Scope) -> None:
        """Note what an error says about where the attempt was."""
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            scope.phase = Phase.DNS
        elif isinstance(error, aiohttp.ClientSSLError):
            scope.phase = Phase.TLS
        elif isinstance(error, aiohttp.ClientConnectorError):
            scope.phase = Phase.CONNECT
        elif isinstance(error, aiohttp.ConnectionTimeoutError):
            scope.phase = scope.phase or Phase.CONNECT
        elif isinstance(error, aiohttp.ServerDisconnectedError):
            if not isinstance(error.message, RawResponseMessage):
                scope.count(0)  # Not one byte of an answer.
        elif isinstance(error, aiohttp.ClientOSError):
            scope.count(0)


def _write(asked: Any, before: Headers, now: Headers) -> None:
    """Write what has changed into aiohttp's request: the rest may have been changed by it."""
    for name in dict.fromkeys(name.lower() for name in now):
        values = now.get_list(name)
        if values != before.get_list(name):
            asked.headers.popall(name, None)
            for value in values:
                asked.headers.add(name, value)


class Connecting:
    """An attempt before its head is sent.

    Args:
        scope: the attempt.
        timer: ends it.
        timeout: seconds for connecting; None: no bound.
    """

    def __init__(self, scope: Scope, timer: asyncio.Timeout, timeout: float | None) -> None:
        self.scope = scope
        self._timer = timer
        self._timeout = timeout

    def begin(self) -> None:
        """Note that a connection is being made."""
        self.scope.connecting(self._timeout)
        self.scope.phase = Phase.CONNECT
        if self._timeout is not None:
            self._timer.reschedule(asyncio.get_running_loop().time() + self._timeout)

    def end(self) -> None:
        """Note that there is one."""
        if not self._timer.expired():
            self._timer.reschedule(None)

    def written(self, task: asyncio.Future[Any]) -> None:
        """Note that the body of the request has been sent."""
        if self.scope.phase is Phase.WRITE and not task.cancelled():
            self.scope.phase = Phase.HEAD


def _traces() -> aiohttp.TraceConfig:
    """Return what tells where an attempt is. Its context is a `Connecting`."""
    config = aiohttp.TraceConfig()

    def own(note: Callable[[Connecting], None]) -> Any:
        async def told(_session: Any, connecting: Any, _told: Any) -> None:
            if (
                SCOPE.get() is connecting.scope
            ):  # All attempts of one request are told of each other's events.
                note(connecting)

        return told

    def phase(value: Phase | None) -> Any:
        return own(lambda connecting: setattr(connecting.scope, "phase", value))

    config.on_connection_queued_start.append(phase(Phase.POOL))
    config.on_connection_queued_end.append(phase(None))
    config.on_connection_create_start.append(own(Connecting.begin))
    config.on_dns_resolvehost_start.append(phase(Phase.DNS))
    config.on_dns_resolvehost_end.append(phase(Phase.CONNECT))
    config.freeze()
    return config


TRACES = _traces()


def stream_of(request: Any) -> Any:
    """Return the body of a request: one that can be sent again, or not."""
    body = request.body
    again = not body or isinstance(body, bytes | bytearray | aiohttp.BytesPayload)
    return ByteStream(body) if again else body


def keep_from_repeating(request: Any) -> None:
    """Keep a session from sending a request again by itself, over and above what the dependency allows.

    aiohttp does so once when a connection that it had kept turns out to be closed. Here the dependency's retries do.
    """
    session: Any = getattr(request, "_session", None)
    if getattr(session, "_retry_connection", False):
        session._retry_connection = False  # noqa: SLF001  there is no public way, see the module
        _patient.add(session)


_patient: weakref.WeakSet[Any] = weakref.WeakSet()
"""Sessions that would have sent a request again."""


async def pass_on(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a request of no dependency as aiohttp would without us."""
    try:
        return await handler(request)
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        again = request.method in IDEMPOTENT and getattr(request, "_session", None) in _patient
        if (
            not again
            or isinstance(error, aiohttp.ClientConnectorError)
            or not isinstance(stream_of(request), ByteStream)
        ):
            raise
    return await handler(request)
