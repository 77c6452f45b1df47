"""The Quart extension: protects applications and reads their configuration."""

from __future__ import annotations

from typing import Unpack

from quart import Quart, Response

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overrides import PolicyOverrides
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.core.problem import refusal_answer
from resilient_mw.idempotency.policy import IdempotencyPolicy
from resilient_mw.idempotency.protocol import AsyncIdempotencyStore, IdempotencyStore
from resilient_mw_integrations._app_config import NAME, Extension
from resilient_mw_integrations.quart.pages import ErrorPages


class Resilience(Extension):
    """Protects Quart applications: `Resilience(app)`, or `init_app` for applications that a factory makes.

    Quart runs a view in a task of its own and cancels it when the caller leaves. The middleware leaves that to Quart, and ends a
    request whose time is over in the same way.

    One object may protect several applications. They share one limit and one queue if they are given a policy and neither their
    configuration nor `error_pages` makes a difference; else each has its own.

    Make it after other middlewares of the application (`app.asgi_app = ...`), so that it is the outermost.

    Args:
        app: the application; None: call `init_app`.
        policy: the policy. None: one is loaded from `app.config`, a file and the environment, in this order.
        error_pages: whether refusals and 504s are drawn by the application's own error handlers, those of 503, 504, 429 and so on,
            where it has them.
        idempotency: the policy of idempotency keys; None: they are not looked at.
        store: where their records are.
        **overrides: fields of `ServerPolicy` that nothing outside the code changes.

    Raises:
        TypeError: an override names no field of the policy.
        ValueError: a value is not allowed; the text names its source, the field and the range.
    """

    def __init__(
        self,
        app: Quart | None = None,
        policy: ServerPolicy | None = None,
        *,
        error_pages: bool = False,
        idempotency: IdempotencyPolicy | None = None,
        store: IdempotencyStore | AsyncIdempotencyStore | None = None,
        **overrides: Unpack[PolicyOverrides],
    ) -> None:
        super().__init__(policy, ErrorPages if error_pages else None, overrides, idempotency, store)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Quart) -> None:
        """Protect an application.

        Raises:
            RuntimeError: it is protected already.
            ValueError: its configuration is not allowed.
        """
        policy, overrides = self.values_for(app)
        if self.keys is not None and self.store is not None:
            app.asgi_app = IdempotencyMiddleware(app.asgi_app, self.keys, store=self.store)  # type: ignore[method-assign]
        app.asgi_app = app.extensions[NAME] = ResilienceMiddleware(app.asgi_app, policy, **overrides)  # type: ignore[method-assign]
        app.register_error_handler(IdempotencyRefused, refused_answer)
        self.protects(app)


async def refused_answer(error: IdempotencyRefused) -> Response:
    """Answer for a view whose idempotency key is refused: Quart would make an error of the view's own of it."""
    status, headers, body = refusal_answer(error.reason, error.retry_after)
    return Response(body, status, dict(headers))
