"""The middleware's own answers as WSGI responses, prepared once so that saying no costs next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilient_mw.core.problem import problem_body, refusal_headers, status_line
from resilient_mw.core.rejection import Reason

if TYPE_CHECKING:
    from wsgiref.types import StartResponse


class Answer:
    """The prepared answer for one reason; `begun`: to a request that the application is at work on.

    WSGI gives an application no say over the connection (PEP 3333 forbids it hop-by-hop headers), so a reason that
    should close it cannot: the server does when it stops.
    """

    __slots__ = ("_body", "_headers", "_status")

    def __init__(self, reason: Reason, *, begun: bool = False) -> None:
        self._status = status_line(reason)
        self._headers = refusal_headers(reason, None, begun=begun)
        self._body = problem_body(reason)

    def start(self, method: str, retry_after: int | None, start_response: StartResponse) -> list[bytes]:
        """Start the response and return its body, which is empty for HEAD.

        Args:
            method: the request's method.
            retry_after: whole seconds, for the reasons that carry them.
            start_response: the server's.
        """
        headers = self._headers.copy()  # the server and outer middlewares may add to the list
        if retry_after is not None:
            headers.append(("Retry-After", str(retry_after)))
        start_response(self._status, headers)
        return [] if method == "HEAD" else [self._body]


TOO_LARGE = Answer(Reason.BODY_TOO_LARGE, begun=True)
"""In place of what an application makes of a body that was too large."""


def prepare_answers() -> dict[Reason, Answer]:
    """Return the answer for every reason."""
    return {reason: Answer(reason) for reason in Reason}
