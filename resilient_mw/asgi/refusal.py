"""Refusals as ASGI messages, prepared once so that saying no costs next to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from resilient_mw.asgi.pages import Pages
from resilient_mw.core import answer as made
from resilient_mw.core.answer import ASKING_FIELDS, PreparedAnswer
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.cors import Cors
from resilient_mw.core.problem import RefusalFigures
from resilient_mw.core.rejection import REFUSAL_RULES, Reason

if TYPE_CHECKING:
    from asgiref.typing import ASGISendCallable, HTTPScope

LAST_WITHIN = 2.0
"""Seconds that the end of a refusal gets to leave over HTTP/2."""
RETRY_AFTER = [str(seconds).encode() for seconds in range(128)]
ASKING = {name.encode("ascii"): name for name in ASKING_FIELDS}
TAKES_ANY = b"*/*"
"""The `Accept` of most callers that are programs."""


class Refusal:
    """The answer for one reason.

    Args:
        answer: what it is made of.
        pages: draws what the application says in its place; None: it says nothing.
    """

    __slots__ = ("_answer", "_body", "_close", "_headers", "_pages", "_status")

    def __init__(self, answer: PreparedAnswer[tuple[bytes, bytes]], pages: Pages | None = None) -> None:
        self._pages = pages
        rule = REFUSAL_RULES[answer.reason]
        self._status = rule.status
        self._close = rule.close
        self._answer = answer
        self._headers, self._body = answer.usual()

    async def send(
        self,
        scope: HTTPScope,
        send: ASGISendCallable,
        retry_after: int | None,
        figures: RefusalFigures | None,
        fields: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Send the answer; the connection is kept unless the reason says otherwise. A caller who has gone is no error."""
        # Lists and dicts are made anew: an outer middleware may add its headers to them.
        asked = [line for line in scope["headers"] if line[0] in ASKING]
        if figures is None and (not asked or (len(asked) == 1 and asked[0][1] == TAKES_ANY)):
            headers, body = self._headers.copy(), self._body
        else:
            names = [(ASKING[name], value.decode("latin-1")) for name, value in asked]
            headers, body = self._answer.fitting(names, figures)
        if self._pages is not None and scope["type"] == "http":
            names = [(ASKING[name], value.decode("latin-1")) for name, value in asked]
            page = await self._pages.draw(self._answer.refused(names, retry_after, scope))
            if page is not None:
                headers, body = self._answer.around(page, names), page.body
        if retry_after is not None:
            seconds = RETRY_AFTER[retry_after] if retry_after < len(RETRY_AFTER) else b"%d" % retry_after
            headers.append((b"retry-after", seconds))
        for field in fields:
            headers.append(_line(*field))
        if self._close and scope.get("http_version", "1.1").startswith("1"):
            headers.append((b"connection", b"close"))
        if scope["method"] == "HEAD":
            body = b""
        try:
            await send(
                {"type": "http.response.start", "status": self._status, "headers": headers, "trailers": False}
            )
            if scope.get("http_version") == "2":
                # A caller who takes nothing blocks this, and where he has gone, Hypercorn hangs in it for good.
                async with asyncio.timeout(LAST_WITHIN):
                    await send({"type": "http.response.body", "body": body, "more_body": False})
            else:
                await send({"type": "http.response.body", "body": body, "more_body": False})
        except OSError:
            pass


def prepare_refusals(cors: Cors, pages: Pages | None = None) -> dict[Reason, Refusal]:
    """Return the answer for every reason."""
    return {reason: Refusal(answer, pages) for reason, answer in made.prepare(cors, _line).items()}


def prepare_stopped(cors: Cors, pages: Pages | None = None) -> dict[CancelReason, Refusal]:
    """Return the answer to a request whose work was stopped, by what stopped it."""
    return {why: Refusal(answer, pages) for why, answer in made.prepare_stopped(cors, _line).items()}


def _line(name: str, value: str) -> tuple[bytes, bytes]:
    return name.lower().encode("ascii"), value.encode("latin-1")
