"""Refusals drawn by the application's own error handlers."""

from __future__ import annotations

import io

from flask import Flask
from flask.ctx import RequestContext
from werkzeug.exceptions import HTTPException

from resilient_mw.core.pages import RefusalPage, RefusedRequest
from resilient_mw_integrations._werkzeug_pages import error_of, page_of


class ErrorPages:
    """Asks the error handlers of one application for the pages of refusals. See `_werkzeug_pages`.

    Args:
        app: the application.
    """

    def __init__(self, app: Flask) -> None:
        self._app = app

    def __call__(self, refused: RefusedRequest) -> RefusalPage | None:
        """Return the page of a refusal; None if the application has no handler for it."""
        error = error_of(refused)
        if error is None:
            return None
        environ = {**refused.request, "wsgi.input": io.BytesIO(), "CONTENT_LENGTH": "0"}
        session = self._app.session_interface.make_null_session(self._app)
        with RequestContext(self._app, environ, session=session):
            answer = self._app.handle_http_exception(error)
            if isinstance(answer, HTTPException):
                return None
            response = self._app.make_response(answer)
            return page_of(response, response.get_data())
