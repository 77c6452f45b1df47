"""Hands the key of a request over to a handler that takes it in a transaction of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.idempotency.actions import Actions, Refuse
from resilient_mw.runtime.handed import HANDED, Handed


async def hand_over(handed: Handed, app: Any, scope: Any, receive: Any, send: Any) -> Actions:
    """Run the handler.

    Args:
        handed: what it finds.
        app: the application.
        scope, receive, send: of the request.

    Returns:
        `Refuse`, where it has refused the key before it had answered anything.
    """
    sending = _Sending(send)
    token = HANDED.set(handed)
    try:
        await app(scope, receive, sending)
    except IdempotencyRefused as error:
        if sending.started:
            raise
        return (Refuse(error.reason, error.retry_after),)
    finally:
        try:
            HANDED.reset(token)
        except ValueError:
            pass  # The garbage collector ends a forgotten request, in whatever context it runs.
    return ()


class _Sending:
    """A `send` that notes whether it was used."""

    __slots__ = ("_send", "started")

    def __init__(self, send: Callable[[Any], Awaitable[None]]) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Any) -> None:
        self.started = True
        await self._send(message)
