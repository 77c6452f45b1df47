"""Refusals drawn by the application's own error handlers."""

from __future__ import annotations

import io
from typing import Any

from flask import Flask
from flask.ctx import RequestContext
from werkzeug.exceptions import HTTPException, default_exceptions

from resilient_mw.core.pages import RefusalPage, RefusedRequest


class ErrorPages:
    """Asks the error handlers of one application for the pages of refusals.

    The handler gets Werkzeug's exception of the status (`ServiceUnavailable`, `GatewayTimeout`, ...), whose `description` says what
    happened and whose `refused` is the `RefusedRequest`. It runs in a request context, so that it can render templates and make
    URLs; but the session is empty and the body of the request is not there, since refusing must not work on them, and functions
    that the application has registered to run before and after requests do not run.

    Args:
        app: the application.
    """

    def __init__(self, app: Flask) -> None:
        self._app = app

    def __call__(self, refused: RefusedRequest) -> RefusalPage | None:
        """Return the page of a refusal; None if the application has no handler for it."""
        kind = default_exceptions.get(refused.status)
        if kind is None:
            return None
        error: Any = kind(description=refused.title)
        error.refused = refused  # for handlers that tell refusals from errors of their own
        environ = {**refused.request, "wsgi.input": io.BytesIO(), "CONTENT_LENGTH": "0"}
        session = self._app.session_interface.make_null_session(self._app)
        with RequestContext(self._app, environ, session=session):
            answer = self._app.handle_http_exception(error)
            if isinstance(answer, HTTPException):
                return None
            response = self._app.make_response(answer)
            headers = [(name, value) for name, value in response.headers if name.lower() != "set-cookie"]
            return RefusalPage(response.get_data(), response.content_type or "text/html", headers)
