"""The Quart extension: protects applications and reads their configuration."""

from __future__ import annotations

from typing import Any

from quart import Quart, Response

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.core.pages import PageFunction
from resilient_mw.core.problem import refusal_answer
from resilient_mw.idempotency.protocol import AsyncIdempotencyStore, IdempotencyStore
from resilient_mw_integrations._app_config import NAME, Extension
from resilient_mw_integrations.quart.pages import ErrorPages


class Resilience(Extension[Quart, AsyncIdempotencyStore | IdempotencyStore]):
    """Protects Quart applications: `Resilience(app)`, or `init_app` for applications that a factory makes.

    Quart runs a view in a task of its own and cancels it when the caller leaves. The middleware leaves that to Quart, and ends a
    request whose time is over in the same way.

    Make it after other middlewares of the application (`app.asgi_app = ...`), so that it is the outermost.
    """

    def _put_around(self, app: Quart, policy: ServerPolicy, overrides: dict[str, Any]) -> None:
        if self.keys is not None and self.store is not None:
            app.asgi_app = IdempotencyMiddleware(app.asgi_app, self.keys, store=self.store)  # type: ignore[method-assign]
        app.asgi_app = app.extensions[NAME] = ResilienceMiddleware(app.asgi_app, policy, **overrides)  # type: ignore[method-assign]
        app.register_error_handler(IdempotencyRefused, refused_answer)

    def _pages_of(self, app: Quart) -> PageFunction:
        return ErrorPages(app)


async def refused_answer(error: IdempotencyRefused) -> Response:
    """Answer for a view whose idempotency key is refused: Quart would make an error of the view's own of it."""
    status, headers, body = refusal_answer(error.reason, error.retry_after)
    return Response(body, status, dict(headers))
