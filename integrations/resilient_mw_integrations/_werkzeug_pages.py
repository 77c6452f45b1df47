"""Refusals drawn by the error handlers of an application: what Flask and Quart have in common.

A handler runs in a request context, so that it can render templates and make URLs; but the session is empty and the body of the
request is not there, since refusing must not work on them, and functions that the application has registered to run before and
after requests do not run.
"""

from __future__ import annotations

from typing import Any

from werkzeug.exceptions import HTTPException, default_exceptions

from resilient_mw.core.pages import RefusalPage, RefusedRequest


def error_of(refused: RefusedRequest) -> HTTPException | None:
    """Return what the handler of a refusal gets: Werkzeug's exception of the status (`ServiceUnavailable`, `GatewayTimeout`, ...).

    Its `description` says what happened, and its `refused` is the `RefusedRequest`.

    Returns:
        The exception; None: Werkzeug has none for this status.
    """
    kind = default_exceptions.get(refused.status)
    if kind is None:
        return None
    error: Any = kind(description=refused.title)
    error.refused = refused  # for handlers that tell refusals from errors of their own
    made: HTTPException = error
    return made


def page_of(response: Any, body: bytes) -> RefusalPage:
    """Return what a handler has answered, without cookies: they would be those of a session that is not there."""
    fields = [(name, value) for name, value in response.headers if name.lower() != "set-cookie"]
    return RefusalPage(body, response.content_type or "text/html", fields)
