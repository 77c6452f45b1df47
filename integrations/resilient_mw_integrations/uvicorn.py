"""Refuses in uvicorn's HTTP protocol, before the request has a task.

    uvicorn --http resilient_mw_integrations.uvicorn:RefusingProtocol app:app

What the middleware would surely refuse for load gets the same answer, counted in the same figures, as soon as its head has
been parsed. Everything else, and everything that is not certain, goes to the middleware, which stays the authority.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from typing import Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string
from uvicorn.server import ServerState

from resilient_mw.core.rejection import REFUSAL_RULES
from resilient_mw_integrations._early_refusals import Front

__all__ = ["RefusingProtocol"]


class Answered:
    """Stands where uvicorn keeps the newest request of a connection, for one that was answered by the protocol."""

    response_complete = True
    disconnected = False

    def __init__(self) -> None:
        self.message_event = self

    def set(self) -> None:
        """Wake whoever waits for a message: nobody."""


ANSWERED: Any = Answered()


class RefusingProtocol(HttpToolsProtocol):
    """uvicorn's protocol with httptools, which refuses by itself what `ResilienceMiddleware` would surely refuse for load.

    Give it to uvicorn as `--http resilient_mw_integrations.uvicorn:RefusingProtocol`, or as `http=RefusingProtocol`.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        front = _fronts.get(config)
        if front is None:
            front = _fronts[config] = Front(config.loaded_app)
        self._front = front
        self._rested: object = None
        self._rested_at = 0.0
        self._resting: TimerHandle | None = None

    def on_headers_complete(self) -> None:
        """Refuse the request, or leave it to the application."""
        if self.cycle is ANSWERED and self.transport.is_closing():
            return  # It came behind a request whose answer closes the connection.
        if not (self._front.may_refuse() and self._refuse()):
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the body of a refused request has been read to its end."""
        if self.cycle is ANSWERED:
            self._rested_at = self.loop.time()
        else:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        super().connection_lost(exc)

    def _rest(self) -> None:
        """Have the connection closed if nothing follows a refused request within the server's keep-alive timeout.

        The same bound holds for the body of that request, which is read and dropped. One timer serves many refusals:
        to set and cancel one for each would cost as much as the answer.
        """
        self._rested, self._rested_at = self.scope, self.loop.time()
        if self._resting is None:
            self._resting = self.loop.call_later(self.timeout_keep_alive, self._on_rested)

    def _on_rested(self) -> None:
        self._resting = None
        if self.scope is not self._rested or self.transport.is_closing():
            return  # Another request has begun: who answers it minds the time.
        left = self._rested_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._resting = self.loop.call_later(left, self._on_rested)
        else:
            self.transport.close()

    def _refuse(self) -> bool:
        """Refuse the request if that is certain, and if it leaves the connection in a state that is."""
        parser = self.parser
        method = parser.get_method()
        newest: Any = self.cycle
        answering = newest is not None and not newest.response_complete
        if (
            answering  # answers keep the order of requests
            or self.flow.write_paused  # the caller does not read
            or self.expect_100_continue  # whether the body will come, only he knows
            or method == b"OPTIONS"  # it may be a preflight
            or not parser.should_keep_alive()
            or parser.should_upgrade()
            or parser.get_http_version() != "1.1"
        ):
            return False
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope = self.scope
        scope["method"] = method.decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + url.path if self.root_path else url.path
        scope["query_string"] = url.query or b""
        answer = self._front.answer(scope, self.server_state.default_headers)
        if answer is None:
            return False
        reason, response = answer
        if self.access_log:
            self.access_logger.info(
                '%s - "%s %s HTTP/%s" %d',
                get_client_addr(scope),
                scope["method"],
                get_path_with_query_string(scope),
                scope["http_version"],
                REFUSAL_RULES[reason].status,
            )
        self.cycle = ANSWERED
        self.transport.write(response)
        self.server_state.total_requests += 1
        if REFUSAL_RULES[reason].close:
            self.transport.close()
        else:
            self._rest()
        return True


_fronts: WeakKeyDictionary[Config, Front] = WeakKeyDictionary()
