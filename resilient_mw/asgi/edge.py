"""What stands between an application and its exchange where the policy asks for more: bodies that are counted, heads that tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resilient_mw.asgi.exchange import HttpExchange
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import BodyTooLarge
from resilient_mw.core.headers.deadlines import format_timeout_ms

if TYPE_CHECKING:
    from asgiref.typing import ASGIReceiveEvent


class CountedBody:
    """The `receive` of an application whose request body is bounded.

    It counts what the application takes, whatever `Content-Length` said: a chunked body has none, and HTTP/2 servers
    do not all hold a body to it.
    """

    __slots__ = ("_exchange", "_left", "_most")

    def __init__(self, exchange: HttpExchange, most: int) -> None:
        self._exchange = exchange
        self._most = most
        self._left = most

    async def receive(self) -> ASGIReceiveEvent:
        """Receive as the server would.

        Raises:
            BodyTooLarge: the body is larger than allowed. The request has been brought to its end: a 413 is on its way,
                or, where the response had begun, the connection will be cut.
        """
        message = await self._exchange.receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                await self._exchange.give_up(CancelReason.BODY_TOO_LARGE)
                raise BodyTooLarge(f"the request body is larger than max_body, {self._most} bytes")
        return message


class TellingHead:
    """The `send` of an application whose caller is told what was left when the head of the response left."""

    __slots__ = ("_exchange", "_name")

    def __init__(self, exchange: HttpExchange, name: str) -> None:
        self._exchange = exchange
        self._name = name.lower().encode("ascii")

    async def send(self, message: Any) -> None:
        """Send as the server would. A field of that name that the application has set is replaced."""
        if message["type"] == "http.response.start":
            left = format_timeout_ms(self._exchange.remaining()).encode("ascii")
            others = [pair for pair in message.get("headers", ()) if bytes(pair[0]).lower() != self._name]
            message = {**message, "headers": [*others, (self._name, left)]}
        await self._exchange.send(message)
