"""Pages: what an application says in its own words where a middleware of ours answers in its place.

A page is the body of a refusal and what belongs to it. Status, reason, `Retry-After` and what forbids caches to keep the answer
stay those of the refusal, so that callers who are programs understand it all the same.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any

from resilient_mw.core.rejection import REFUSAL_HEADER, REFUSAL_RULES, Reason

OURS = frozenset(
    {
        "content-type",
        "content-length",
        "cache-control",
        "connection",
        "retry-after",
        "transfer-encoding",
        REFUSAL_HEADER.lower(),
    }
)
"""Fields that a page does not decide: they say what the refusal is, or how it is framed."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that is answered in the application's place, for who draws the page.

    Attributes:
        reason: why.
        begun: whether the application was at work on it: a deadline that passed, a body that was too large.
        wants_html: whether its `Accept` gives HTML a higher quality than a problem document: browsers do.
        retry_after: whole seconds after which to come back; None: nothing is said of it.
        request: the ASGI scope or the WSGI environ; empty for a page that is to be kept (`PreparedPages`).
    """

    reason: Reason
    begun: bool
    wants_html: bool
    retry_after: int | None
    request: Mapping[str, Any]

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return REFUSAL_RULES[self.reason].status

    @property
    def title(self) -> str:
        """What happened, in a few words, the same for all requests of one reason."""
        return REFUSAL_RULES[self.reason].title


class RefusalPage:
    """What is said in place of the problem document.

    Args:
        body: the body; text is sent in UTF-8.
        media_type: its `Content-Type`.
        headers: more header fields. Those of `OURS` are left out: the refusal decides them.

    Raises:
        ValueError: the body is neither text nor bytes, or a field is outside the grammar of HTTP.
    """

    __slots__ = ("body", "headers", "media_type")

    def __init__(
        self,
        body: str | bytes,
        media_type: str = "text/html; charset=utf-8",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.body = _as_bytes(body)
        if not media_type or not _VALUE.fullmatch(media_type):
            raise ValueError(
                f"RefusalPage.media_type={media_type!r} is not allowed: it must be such as 'text/html'"
            )
        self.media_type = media_type
        self.headers = tuple((name, value) for name, value in headers if name.lower() not in OURS)
        for name, value in self.headers:
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ValueError(
                    f"RefusalPage.headers={(name, value)!r} is not allowed: it must be a header field"
                )


PageFunction = Callable[[RefusedRequest], RefusalPage | Awaitable[RefusalPage | None] | None]
"""Draws the page of a refusal; None: it says nothing, and the problem document is sent. Only ASGI may await it."""


class PreparedPages:
    """Asks a function once for each kind of refusal, and keeps what it says: a refusal then costs nearly what it did.

    A kind is a reason, whether the work had begun, and whether HTML is wanted. The function is told nothing else.

    Args:
        function: draws the page.
    """

    def __init__(self, function: PageFunction) -> None:
        self._function = function
        self._pages: dict[tuple[Reason, bool, bool], RefusalPage | None] = {}

    def __call__(self, refused: RefusedRequest) -> RefusalPage | Awaitable[RefusalPage | None] | None:
        """Return the page of a refusal's kind."""
        kind = (refused.reason, refused.begun, refused.wants_html)
        if kind in self._pages:
            return self._pages[kind]
        page = self._function(replace(refused, retry_after=None, request={}))
        if isawaitable(page):
            return self._kept(kind, page)
        self._pages[kind] = page
        return page

    async def _kept(
        self, kind: tuple[Reason, bool, bool], drawing: Awaitable[RefusalPage | None]
    ) -> RefusalPage | None:
        page = self._pages[kind] = await drawing
        return page


def checked_page(page: object) -> RefusalPage | None:
    """Return what a function of the user's has returned.

    Raises:
        TypeError: it is no page.
    """
    if page is None or isinstance(page, RefusalPage):
        return page
    raise TypeError(f"refusal_page returned {page!r}: it must be a RefusalPage or None")


def _as_bytes(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes):
        return body
    raise ValueError(f"RefusalPage.body={body!r} is not allowed: it must be text or bytes")
