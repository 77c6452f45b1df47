"""Chooses the answer to a refused request: what it is made of is prepared, what the request asks for selects.

Both shells use this, so that they say the same. They differ in the form of a header line only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.cors import Cors
from resilient_mw.core.headers.accept import prefers_html, prefers_plain_text
from resilient_mw.core.headers.correlation import parse_request_id, parse_traceparent
from resilient_mw.core.pages import RefusalPage, RefusedRequest
from resilient_mw.core.problem import RefusalFigures, problem_body, refusal_headers, text_body, with_members
from resilient_mw.core.rejection import Reason

ACCEPT, ORIGIN, TRACEPARENT, REQUEST_ID = "accept", "origin", "traceparent", "x-request-id"
ASKING_FIELDS = (ACCEPT, ORIGIN, TRACEPARENT, REQUEST_ID)
"""Lower-case names of the request fields that a refusal depends on. Without any of them it is the usual one."""
LENGTH = 1
"""The place of the body's length in `refusal_headers`. Its type stands before it."""

Line = TypeVar("Line")
"""A header line in the form of a shell."""


class PreparedAnswer(Generic[Line]):
    """The answer for one reason, made once in both media types.

    Args:
        reason: why.
        cors: who may read it.
        by_origin: the lines of `cors.by_origin` in the shell's form.
        line: makes a header line of the shell's form out of a name in title case and a value.
        begun: whether it answers a request that the application is at work on.

    Attributes:
        reason: why.
        begun: see above.
    """

    __slots__ = ("_body", "_by_origin", "_headers", "_line", "_text_body", "_text_headers", "begun", "reason")

    def __init__(
        self,
        reason: Reason,
        cors: Cors,
        by_origin: Mapping[str, list[Line]],
        line: Callable[[str, str], Line],
        *,
        begun: bool = False,
    ) -> None:
        self.reason = reason
        self.begun = begun
        self._by_origin = by_origin
        self._line: Callable[[str, str], Line] = line
        self._body = problem_body(reason)
        self._text_body = text_body(reason)
        self._headers: list[Line] = self._prepared(cors, text=False, begun=begun)
        self._text_headers: list[Line] = self._prepared(cors, text=True, begun=begun)

    def usual(self) -> tuple[list[Line], bytes]:
        """Return headers and body for a request that has none of `ASKING_FIELDS`. The list is the caller's own."""
        return self._headers.copy(), self._body

    def fitting(
        self, fields: Iterable[tuple[str, str]], figures: RefusalFigures | None
    ) -> tuple[list[Line], bytes]:
        """Return headers and body for a request.

        Args:
            fields: its field lines of `ASKING_FIELDS`, as (lower-case name, value). Several of one name are one value,
                joined by commas, as servers join them.
            figures: what debug mode says.
        """
        asked = _joined(fields)
        formatted = figures is not None
        if ACCEPT in asked and prefers_plain_text(asked[ACCEPT]):
            headers, body = self._text_headers.copy(), self._text_body
            if figures is not None:
                body = text_body(self.reason, figures)
        else:
            headers, body = self._headers.copy(), self._body
            members: dict[str, str | int] = {} if figures is None else figures.members()
            if TRACEPARENT in asked or REQUEST_ID in asked:
                instance = instance_of(asked.get(TRACEPARENT, ""), asked.get(REQUEST_ID, ""))
                if instance is not None:
                    members["instance"] = instance
            if members:
                body, formatted = with_members(body, members), True
        if formatted:
            headers[LENGTH] = self._line("Content-Length", str(len(body)))
        if ORIGIN in asked:
            headers += self._by_origin.get(asked[ORIGIN], ())
        return headers, body

    def refused(
        self, fields: Iterable[tuple[str, str]], retry_after: int | None, request: Mapping[str, Any]
    ) -> RefusedRequest:
        """Return what the application is told of a request to whose refusal it draws the page; arguments as of `fitting`."""
        wants_html = prefers_html(_joined(fields).get(ACCEPT, ""))
        return RefusedRequest(self.reason, self.begun, wants_html, retry_after, request)

    def around(self, page: RefusalPage, fields: Iterable[tuple[str, str]]) -> list[Line]:
        """Return the headers of an answer whose body is the application's own; arguments as of `fitting`."""
        lines = (
            ("Content-Type", page.media_type),
            ("Content-Length", str(len(page.body))),
            *page.headers,
        )
        made = [self._line(*each) for each in lines]
        headers = [*made[: LENGTH + 1], *self._headers[LENGTH + 1 :], *made[LENGTH + 1 :]]
        return headers + self._by_origin.get(_joined(fields).get(ORIGIN, ""), [])

    def _prepared(self, cors: Cors, *, text: bool, begun: bool) -> list[Line]:
        lines = (*refusal_headers(self.reason, None, text=text, vary=cors.vary, begun=begun), *cors.always)
        return [self._line(*each) for each in lines]


def prepare(cors: Cors, line: Callable[[str, str], Line]) -> dict[Reason, PreparedAnswer[Line]]:
    """Return the answer for every reason.

    Args:
        cors: who may read them.
        line: makes a header line of the shell's form out of a name in title case and a value.
    """
    by_origin = _by_origin(cors, line)
    return {reason: PreparedAnswer(reason, cors, by_origin, line) for reason in Reason}


def prepare_stopped(cors: Cors, line: Callable[[str, str], Line]) -> dict[CancelReason, PreparedAnswer[Line]]:
    """Return the answer to a request whose work was stopped, by what stopped it. Arguments as of `prepare`.

    Of the other reasons nobody is told: the caller has gone, or somebody else answers him.
    """
    by_origin = _by_origin(cors, line)
    return {
        why: PreparedAnswer(reason, cors, by_origin, line, begun=True)
        for why, reason in (
            (CancelReason.DEADLINE, Reason.DEADLINE_EXCEEDED),
            (CancelReason.BODY_TOO_LARGE, Reason.BODY_TOO_LARGE),
            (CancelReason.SHUTDOWN, Reason.DRAINING),
        )
    }


def _by_origin(cors: Cors, line: Callable[[str, str], Line]) -> dict[str, list[Line]]:
    return {origin: [line(*each) for each in lines] for origin, lines in cors.by_origin.items()}


def instance_of(traceparent: str, request_id: str) -> str | None:
    """Return what names this request in logs: its trace, else its id; None if neither field is valid."""
    trace = parse_traceparent(traceparent)
    return parse_request_id(request_id) if trace is None else f"urn:trace:{trace}"


def _joined(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    asked: dict[str, str] = {}
    for name, value in fields:
        asked[name] = f"{asked[name]},{value}" if name in asked else value
    return asked
