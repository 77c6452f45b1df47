"""The answer to a request whose idempotency key the application itself refuses."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.core.problem import refusal_answer


async def idempotency_refused(_: Request, error: Exception) -> Response:
    """Answer for an endpoint that `idempotent()` has stopped.

    An exception handler, to be added where the middleware is put around the application instead of being added to it:
    `app.add_exception_handler(IdempotencyRefused, idempotency_refused)`. There Starlette answers 500 before the middleware sees it.

    Raises:
        Exception: `error`, if it is another one.
    """
    if not isinstance(error, IdempotencyRefused):
        raise error
    status, headers, body = refusal_answer(error.reason, error.retry_after)
    return Response(body, status, dict(headers))
