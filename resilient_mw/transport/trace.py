"""Follows an attempt through the library: the `trace` extension of httpcore, which httpx passes on.

It tells where the attempt is, and it is the last place before the head of the request is written: there the deadline
header is brought up to date, so that waiting for a connection, resolving, connecting and TLS are not given to the
dependency. A transport that does not trace is served as well: the header then is as old as the attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from resilient_mw.calls.events import Phase
from resilient_mw.transport.scope import Scope

PHASES = {
    "connect_tcp.started": Phase.CONNECT,
    "connect_unix_socket.started": Phase.CONNECT,
    "setup_socks5_connection.started": Phase.CONNECT,
    "start_tls.started": Phase.TLS,
    "send_connection_init.started": Phase.TLS,  # The preface of HTTP/2: nothing of the request yet.
    "send_request_headers.started": Phase.WRITE,
    "receive_response_headers.started": Phase.HEAD,
}


class Trace:
    """One attempt's trace.

    Args:
        scope: where the phase is noted.
        header: the field to bring up to date, as it is sent and in lower case; None: none.
        allowance: returns its value in this instant.
        outer: the caller's own trace, which is called as well.
    """

    __slots__ = ("_allowance", "_header", "_outer", "_scope")

    def __init__(
        self,
        scope: Scope,
        header: tuple[bytes, bytes] | None,
        allowance: Callable[[], str | None],
        outer: Callable[..., Any] | None,
    ) -> None:
        self._scope = scope
        self._header = header
        self._allowance = allowance
        self._outer = outer

    def sync(self, event: str, info: Mapping[str, Any]) -> None:
        """Take an event of a sync client."""
        self._note(event, info)
        if self._outer is not None:
            self._outer(event, info)

    async def aio(self, event: str, info: Mapping[str, Any]) -> None:
        """Take an event of an async client."""
        self._note(event, info)
        if self._outer is not None:
            told: Awaitable[object] = self._outer(event, info)
            await told

    def _note(self, event: str, info: Mapping[str, Any]) -> None:
        phase = PHASES.get(event.partition(".")[2])
        if phase is None:
            return
        request = info.get("request")
        if getattr(request, "method", None) == b"CONNECT":
            phase = Phase.CONNECT  # The tunnel of a proxy: the dependency has not seen anything.
        if phase is Phase.CONNECT:
            self._scope.connected = True
        self._scope.phase = phase
        if phase is Phase.WRITE and self._header is not None:
            self._bring_up_to_date(self._header, getattr(request, "headers", None))

    def _bring_up_to_date(self, header: tuple[bytes, bytes], headers: object) -> None:
        if not isinstance(headers, list):
            return
        for index, (name, _) in enumerate(headers):
            if name.lower() == header[1]:
                allowance = self._allowance()
                if allowance is not None:
                    headers[index] = (name, allowance.encode("ascii"))
