"""The answer to a refused request: RFC 9457 problem details or plain text, and the headers that explain it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from resilient_mw.core.rejection import REFUSAL_HEADER, REFUSAL_RULES, Reason, RetryAfter, problem_type

PROBLEM_MEDIA_TYPE = "application/problem+json"
TEXT_MEDIA_TYPE = "text/plain; charset=utf-8"

_as_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class RefusalFigures:
    """What a refusal says beside its reason, in debug mode only.

    Attributes:
        priority: the class of the request.
        limit: the limit that it is under: the slots, or the bound of exempt requests.
        in_flight: how much of the limit is in use.
        queue_length: requests that wait, all classes together.
        remaining_budget_ms: whole milliseconds, 0 when it is used up; None: there is no deadline.
    """

    priority: str
    limit: int
    in_flight: int
    queue_length: int
    remaining_budget_ms: int | None

    def members(self) -> dict[str, str | int]:
        """Return the figures by the names that they have in a body."""
        members: dict[str, str | int] = {
            "class": self.priority,
            "limit": self.limit,
            "in_flight": self.in_flight,
            "queue_length": self.queue_length,
        }
        if self.remaining_budget_ms is not None:
            members["remaining_budget_ms"] = self.remaining_budget_ms
        return members


def problem_body(reason: Reason) -> bytes:
    """Return the problem document of a reason, encoded once so that a refusal formats nothing."""
    rule = REFUSAL_RULES[reason]
    document = {
        "type": problem_type(reason),
        "title": rule.title,
        "status": rule.status,
        "reason": reason.value,
    }
    return _as_json(document).encode()


def with_members(body: bytes, members: Mapping[str, str | int]) -> bytes:
    """Return a problem document with more members at its end.

    Args:
        body: what `problem_body` returned.
        members: by names of ours, which need no escape.
    """
    more = "".join(f',"{name}":{_as_json(value)}' for name, value in members.items())
    return body[:-1] + more.encode() + b"}"


def text_body(reason: Reason, figures: RefusalFigures | None = None) -> bytes:
    """Return the same as plain text: one line, and one for each figure of debug mode.

    It never repeats anything that the caller sent.
    """
    rule = REFUSAL_RULES[reason]
    lines = [f"{rule.status} {rule.title} ({reason.value})"]
    if figures is not None:
        lines += [f"{name}: {value}" for name, value in figures.members().items()]
    return "".join(f"{line}\n" for line in lines).encode()


def status_line(reason: Reason) -> str:
    """Return status code and phrase as WSGI wants them: `503 Service Unavailable`."""
    status = HTTPStatus(REFUSAL_RULES[reason].status)
    return f"{status.value} {status.phrase}"


def refusal_headers(
    reason: Reason, retry_after: int | None, *, text: bool = False, vary: str = "Accept", begun: bool = False
) -> list[tuple[str, str]]:
    """Return the headers of a refusal, in title case; the type and the length of the body come first.

    Args:
        reason: why.
        retry_after: whole seconds; ignored where the table says that the reason carries no `Retry-After`.
        text: whether the body is `text_body` instead of `problem_body`.
        vary: the request fields that the answer depends on.
        begun: whether the application was at work already when it came to this: then nothing says that it was not.
    """
    rule = REFUSAL_RULES[reason]
    body = text_body(reason) if text else problem_body(reason)
    headers = [
        ("Content-Type", TEXT_MEDIA_TYPE if text else PROBLEM_MEDIA_TYPE),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("Vary", vary),
    ]
    if not rule.executed and not begun:
        headers.append((REFUSAL_HEADER, reason.value))
    if rule.retry_after is not RetryAfter.NEVER and retry_after is not None:
        headers.append(("Retry-After", str(retry_after)))
    return headers


def refusal_answer(
    reason: Reason, retry_after: int | None, *, begun: bool = False
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return status, headers and body of a refusal, for who answers in the terms of a framework. Arguments as of `refusal_headers`."""
    headers = refusal_headers(reason, retry_after, begun=begun)
    return REFUSAL_RULES[reason].status, headers, problem_body(reason)
