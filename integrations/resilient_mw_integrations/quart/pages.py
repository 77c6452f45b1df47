"""Refusals drawn by the application's own error handlers."""

from __future__ import annotations

from inspect import signature
from typing import Any

from quart import Quart
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException

from resilient_mw.core.pages import RefusalPage, RefusedRequest
from resilient_mw_integrations._werkzeug_pages import error_of, page_of
from resilient_mw_integrations.quart.routes import path_below


class ErrorPages:
    """Asks the error handlers of one application for the pages of refusals. See `_werkzeug_pages`.

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
        error = error_of(refused)
        if error is None:
            return None
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
            return page_of(response, await response.get_data(as_text=False))


async def _no_push(path: str, headers: Headers) -> None:
    """Push nothing."""
