"""Refusals drawn by the exception handlers of a Starlette or FastAPI application."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from resilient_mw.core.pages import RefusalPage, RefusedRequest
from resilient_mw_integrations._asgi_pages import page_of


class RequestRefused(HTTPException):
    """What the exception handlers are told of a request that is answered in the application's place. Never raised.

    Attributes:
        refused: what is known of it: reason, title, whether the work had begun.
    """

    def __init__(self, refused: RefusedRequest) -> None:
        super().__init__(refused.status, detail=refused.title)
        self.refused = refused


def handled_by(app: Starlette) -> Callable[[RefusedRequest], Awaitable[RefusalPage | None]]:
    """Return a `refusal_page` that asks the exception handlers of an application.

    Its handler is chosen as for an exception of the application's own: one for the status (503, 504, 429, 413), else the
    one for `RequestRefused`, else the one for `HTTPException`. Without any, the problem document is sent. A handler that is
    not async runs in a thread of the usual pool, as in Starlette, and has to get one in time.

    Args:
        app: the application, or one of those that it mounts; FastAPI's as well.
    """

    async def page(refused: RefusedRequest) -> RefusalPage | None:
        handler = _handler(app, refused.status)
        if handler is None:
            return None
        scope = {"app": app, "state": {}, **refused.request}
        request, error = Request(scope), RequestRefused(refused)
        if inspect.iscoroutinefunction(handler):
            response = await handler(request, error)
        else:
            response = await run_in_threadpool(handler, request, error)
        return await page_of(response, scope)

    return page


def _handler(app: Starlette, status: int) -> Any:
    """Return the handler of the user's for a refusal of this status; None if there is none but the framework's own."""
    handlers: dict[Any, Any] = dict(app.exception_handlers)
    found = handlers.get(status)
    for kind in RequestRefused.__mro__:
        if found is not None:
            break
        found = handlers.get(kind)
    return None if getattr(found, "__module__", "").startswith(FRAMEWORKS) else found


FRAMEWORKS = ("starlette.", "fastapi.")
"""Where the handlers stand that were there before the user's: they say less than the problem document."""
