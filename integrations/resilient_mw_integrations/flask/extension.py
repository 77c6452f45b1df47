"""The Flask extension: protects applications, reads their configuration, and lists how each route is treated."""

from __future__ import annotations

from typing import Any

from flask import Flask, Response

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.core.pages import PageFunction
from resilient_mw.core.problem import refusal_answer
from resilient_mw.idempotency.protocol import IdempotencyStore
from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw.wsgi.idempotency import IdempotencyMiddleware
from resilient_mw_integrations._app_config import NAME, Extension
from resilient_mw_integrations.flask.listing import command
from resilient_mw_integrations.flask.pages import ErrorPages


class Resilience(Extension[Flask, IdempotencyStore]):
    """Protects Flask applications: `Resilience(app)`, or `init_app` for applications that a factory makes.

    Make it after other middlewares of the application (`app.wsgi_app = ...`), so that it is the outermost.
    """

    def _put_around(self, app: Flask, policy: ServerPolicy, overrides: dict[str, Any]) -> None:
        if self.keys is not None and self.store is not None:
            app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, self.keys, store=self.store)  # type: ignore[method-assign]
        app.wsgi_app = app.extensions[NAME] = ResilienceMiddleware(app.wsgi_app, policy, **overrides)  # type: ignore[method-assign]
        app.cli.add_command(command, NAME)
        app.register_error_handler(IdempotencyRefused, refused_answer)

    def _pages_of(self, app: Flask) -> PageFunction:
        return ErrorPages(app)


def refused_answer(error: IdempotencyRefused) -> Response:
    """Answer for a view whose idempotency key is refused: Flask would make an error of the view's own of it."""
    status, headers, body = refusal_answer(error.reason, error.retry_after)
    return Response(body, status, headers)
