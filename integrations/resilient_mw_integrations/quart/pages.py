"""Refusals drawn by the application's own error handlers."""

from __future__ import annotations

from inspect import signature
from typing import Any

from quart import Quart
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException, default_exceptions

from resilient_mw.core.pages import RefusalPage, RefusedRequest
from resilient_mw_integrations.quart.routes import path_below


class ErrorPages:
    """Asks the error handlers of one application for the pages of refusals.

    The handler gets Werkzeug's exception of the status (`ServiceUnavailable`, `GatewayTimeout`, ...), whose `description` says what
    happened and whose `refused` is the `RefusedRequest`. It runs in a request context, so that it can render templates and make
    URLs; but the session is empty and the body of the request is not there, since refusing must not work on them, and functions
    that the application has registered to run before and after requests do not run.

    Args:
        app: the application.
    """

    def __init__(self, app: Quart) -> None:
        self._app = app
        # Since 0.23 the handler is given the context, which is one of another class.
        self._told_context = len(signature(app.handle_http_exception).parameters) == 2

    async def __call__(self, refused: RefusedRequest) -> RefusalPage | None:
        """Return the page of a refusal; None if the application has no handler for it."""
        app = self._app
        kind = default_exceptions.get(refused.status)
        if kind is None:
            return None
        error: Any = kind(description=refused.title)
        error.refused = refused  # for handlers that tell refusals from errors of their own
        scope: Any = refused.request
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        request = app.request_class(
            scope["method"],
            scope.get("scheme", "http"),
            path_below(scope),
            scope["query_string"],
            Headers(headers),
            scope.get("root_path", ""),
            scope["http_version"],
            scope=scope,
            send_push_promise=_no_push,
        )
        request.body.set_complete()
        session = await app.ensure_async(app.session_interface.make_null_session)(app)
        context: Any = type(app.request_context(request))(app, request=request, session=session)
        handle: Any = app.handle_http_exception
        async with context:
            answer = await (handle(context, error) if self._told_context else handle(error))
            if isinstance(answer, HTTPException):
                return None
            response: Any = await app.make_response(answer)
            fields = [(name, value) for name, value in response.headers if name.lower() != "set-cookie"]
            body = await response.get_data(as_text=False)
            return RefusalPage(body, response.content_type or "text/html", fields)


async def _no_push(path: str, headers: Headers) -> None:
    """Push nothing."""
