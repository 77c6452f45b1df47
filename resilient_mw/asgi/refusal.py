"""Refusals as ASGI messages, prepared once so that saying no costs next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilient_mw.core.problem import problem_body, refusal_headers
from resilient_mw.core.rejection import REFUSAL_RULES, Reason

if TYPE_CHECKING:
    from asgiref.typing import ASGISendCallable, HTTPScope

RETRY_AFTER = [str(seconds).encode() for seconds in range(128)]


class Refusal:
    """The prepared answer for one reason; `begun`: to a request that the application is at work on."""

    __slots__ = ("_body", "_close", "_headers", "_status")

    def __init__(self, reason: Reason, *, begun: bool = False) -> None:
        rule = REFUSAL_RULES[reason]
        self._status = rule.status
        self._close = rule.close
        self._body = problem_body(reason)
        self._headers = [
            (name.lower().encode("ascii"), value.encode("ascii"))
            for name, value in refusal_headers(reason, None, begun=begun)
        ]

    async def send(self, scope: HTTPScope, send: ASGISendCallable, retry_after: int | None) -> None:
        """Send the answer; the connection is kept unless the reason says otherwise. A caller who has gone is no error."""
        # Lists and dicts are made anew: an outer middleware may add its headers to them.
        headers = self._headers.copy()
        if retry_after is not None:
            headers.append((b"retry-after", RETRY_AFTER[retry_after]))
        if self._close and scope.get("http_version", "1.1").startswith("1"):
            headers.append((b"connection", b"close"))
        body = b"" if scope["method"] == "HEAD" else self._body
        try:
            await send(
                {"type": "http.response.start", "status": self._status, "headers": headers, "trailers": False}
            )
            await send({"type": "http.response.body", "body": body, "more_body": False})
        except OSError:
            pass


def prepare_refusals() -> dict[Reason, Refusal]:
    """Return the answer for every reason."""
    return {reason: Refusal(reason) for reason in REFUSAL_RULES}
