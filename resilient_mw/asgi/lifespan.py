"""Lifespan: the application's routes are bound when its start-up has finished, and a policy that does not fit stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from resilient_mw.runtime.flush import Listeners

if TYPE_CHECKING:
    from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, LifespanScope

ASYNCIO_ONLY = (
    "resilient_mw runs on asyncio only: start the server with an asyncio event loop instead of Trio"
)


async def serve_lifespan(  # noqa: PLR0917  the three of ASGI, and the two that they meet here
    app: Any,
    scope: LifespanScope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
    start: Callable[[LifespanScope], None],
    listeners: Listeners,
) -> None:
    """Serve a lifespan scope.

    Args:
        app: the application.
        scope, receive, send: of ASGI.
        start: binds the application's routes.
        listeners: are told if that fails.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": ASYNCIO_ONLY})
        return

    async def send_checked(message: ASGISendEvent) -> None:
        # The application's own start-up may have added routes, so they are bound when it has finished.
        if message["type"] == "lifespan.startup.complete":
            try:
                start(scope)
            except (ValueError, Warning) as error:  # a Warning: where the user made them errors
                message = {"type": "lifespan.startup.failed", "message": str(error)}
            except Exception as error:  # noqa: BLE001  a route source is a guest: without it, paths decide
                listeners.failed("start", error)
        await send(message)

    await app(scope, receive, send_checked)
