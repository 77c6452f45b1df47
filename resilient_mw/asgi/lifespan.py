"""The lifespan of an application: binds its routes at the start, and lets its requests finish before it is shut down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from resilient_mw.runtime.guard import Guard

if TYPE_CHECKING:
    from asgiref.typing import (
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        ASGISendEvent,
        LifespanScope,
    )

ASYNCIO_ONLY = (
    "resilient_mw runs on asyncio only: start the server with an asyncio event loop instead of Trio"
)
LOOK_EVERY = 0.02
"""Seconds between two looks at whether anything still runs."""
CLEAN_UP_WITHIN = 1.0
"""Seconds that cancelled requests get for their clean-up before the application is shut down."""


async def serve_lifespan(  # noqa: PLR0917  the three of ASGI, and the two that they meet here
    app: Any,
    scope: LifespanScope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
    start: Callable[[LifespanScope], None],
    guard: Guard,
) -> None:
    """Serve a lifespan scope: its application is starting until it says otherwise, and stops when its requests have ended.

    A policy that does not fit the application's routes stops the start.

    Args:
        app: the application.
        scope, receive, send: of ASGI.
        start: binds the application's routes.
        guard: of its policy.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": ASYNCIO_ONLY})
        return
    lifecycle, span = guard.lifecycle, object()
    lifecycle.begins(span)

    async def receive_last() -> ASGIReceiveEvent:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await let_finish(guard, span)
        return message

    async def send_checked(message: ASGISendEvent) -> None:
        # The application's own start-up may have added routes, so they are bound when it has finished.
        if message["type"] == "lifespan.startup.complete":
            try:
                start(scope)
            except (ValueError, Warning) as error:  # a Warning: where the user made them errors
                message = {"type": "lifespan.startup.failed", "message": str(error)}
            except Exception as error:  # noqa: BLE001  a route source is a guest: without it, paths decide
                guard.listeners.failed("start", error)
            if message["type"] == "lifespan.startup.complete":
                lifecycle.started(span)
        await send(message)

    try:
        await app(scope, receive_last, send_checked)
    finally:
        lifecycle.ends(span)


async def let_finish(guard: Guard, span: object) -> None:
    """Drain before an application closes what its requests work with: wait until nothing runs or waits, or the drain is over.

    Args:
        guard: of its policy.
        span: its lifespan. While another one under the same policy goes on, nothing is done.
    """
    lifecycle = guard.lifecycle
    if not lifecycle.stopping(span):
        return
    guard.drain_with(lifecycle.drain_for_lifespans)
    guard.catch_up()  # those that the garbage collector has ended hold nothing
    while lifecycle.busy() and guard.clock.now() < lifecycle.stop_at + CLEAN_UP_WITHIN:  # noqa: ASYNC110  only here
        await asyncio.sleep(LOOK_EVERY)
