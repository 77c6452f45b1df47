"""Websockets: a place for as long as one is open, a refusal before it is accepted, and a peer who leaves unseen.

No message is changed, and none is read for the application unless somebody wants to know of a disconnect that it does
not listen for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.asgi.connection import Connection, PeerGone
from resilient_mw.asgi.refusal import Refusal
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime import switch
from resilient_mw.runtime.context import CURRENT, NO_REQUEST, RequestContext, reset
from resilient_mw.runtime.protection import Protection
from resilient_mw.runtime.websockets import Websockets

TRY_AGAIN_LATER = 1013
"""The close code of a refusal (IANA registry of WebSocket close codes), where the server cannot send a response."""
DENIAL = "websocket.http.response"
"""The ASGI extension by which an application answers the handshake like any other request."""

Application = Callable[[Any, Any, Any], Awaitable[None]]


async def serve_socket(  # noqa: PLR0917  the parts of a middleware, and the three of ASGI
    app: Application,
    protection: Protection,
    refusals: Mapping[Reason, Refusal],
    start: Callable[[Any], None],
    scope: Any,
    receive: Any,
    send: Any,
) -> None:
    """Serve one websocket.

    Args:
        app: the application.
        protection: what protects it.
        refusals: the answer for every reason.
        start: binds the application's routes, if that was not done before.
        scope, receive, send: as the server gave them.
    """
    websockets = None if switch.DISABLED else protection.guard.websockets
    if websockets is None:
        await _serve_in(NO_REQUEST, app, scope, receive, send)
        return
    outer = CURRENT.get()
    if isinstance(outer, Connection) and not outer.surrounds(asyncio.current_task(), scope):
        outer = NO_REQUEST  # it leaked: a server may have made this task out of another one's
    if isinstance(outer, Connection) and outer.placed_by(websockets):
        await app(scope, receive, send)
        return
    arrival = _arrive(protection, websockets, start, scope)
    if arrival is None:
        await _serve_in(NO_REQUEST, app, scope, receive, send)
        return
    decision, entry, task = arrival
    if decision.reason is not None:
        await _refuse(protection, websockets, refusals, decision, entry, scope, receive, send)
        return
    # From here to the `try` nothing suspends: no cancellation comes between a place and its release.
    around = outer if isinstance(outer, Connection) else None
    connection = Connection(task, websockets, protection.guard.clock, scope, receive, send, around)
    await _run(connection, websockets, entry, app)


def _arrive(
    protection: Protection, websockets: Websockets, start: Callable[[Any], None], scope: Any
) -> tuple[Decision, RouteEntry, asyncio.Task[Any]] | None:
    """Decide about a websocket; None if it is to be served untouched: in shadow mode, or because our own code failed."""
    try:
        task = asyncio.current_task()
        if task is None:
            return None
        if not protection.started:
            start(scope)
        entry = protection.websocket(scope["path"], scope.get("root_path", ""), scope)
        decision = websockets.arrive(entry, protection.guard.clock.now())
        if decision.reason is not None and websockets.shadow is not None:
            websockets.shadow(entry, decision.reason)
            return None
        return decision, entry, task
    except Exception as error:  # noqa: BLE001  the application must be served whatever our own code does
        protection.guard.listeners.failed("admission of a websocket", error)
        return None


async def _run(connection: Connection, websockets: Websockets, entry: RouteEntry, app: Application) -> None:
    """Run the application with a place in hand; the place comes back on every way out."""
    give_back = websockets.end
    failed = False
    token = CURRENT.set(connection)
    try:
        await app(connection.scope, connection.receive, connection.send)
    except GeneratorExit:
        # The garbage collector ends a forgotten connection, at any allocation, also under the guard's lock.
        give_back, failed = websockets.end_later, True
        raise
    except PeerGone as gone:
        if gone.connection is not connection:
            failed = True
            raise
    except BaseException:
        failed = True
        raise
    finally:
        outcome = connection.outcome(failed=failed)
        connection.finish(partial(give_back, entry, outcome))
        reset(token)


async def _serve_in(context: RequestContext, app: Application, scope: Any, receive: Any, send: Any) -> None:
    # A server may have made this task out of a request's, with its context variables.
    token = CURRENT.set(context)
    try:
        await app(scope, receive, send)
    finally:
        reset(token)


async def _refuse(  # noqa: PLR0917  what is known of a refusal
    protection: Protection,
    websockets: Websockets,
    refusals: Mapping[Reason, Refusal],
    decision: Decision,
    entry: RouteEntry,
    scope: Any,
    receive: Any,
    send: Any,
) -> None:
    """Answer the handshake with the refusal of a request if the server can, else close before it is accepted."""
    if decision.reason is None or (await receive())["type"] != "websocket.connect":
        return  # The peer has gone: nobody reads an answer.
    if DENIAL in (scope.get("extensions") or {}):

        async def deny(message: Any) -> None:
            await send({**message, "type": f"websocket.{message['type']}"})

        figures = websockets.figures(entry) if protection.policy.debug else None
        request = {**scope, "method": "GET"}
        await refusals[decision.reason].send(request, deny, decision.retry_after, figures)  # type: ignore[arg-type]
        return
    try:
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": decision.reason.value})
    except OSError:
        pass
