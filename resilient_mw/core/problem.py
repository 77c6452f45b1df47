"""The answer to a refused request: RFC 9457 problem details and the headers that explain it."""

from __future__ import annotations

import json
from http import HTTPStatus

from resilient_mw.core.rejection import REFUSAL_HEADER, REFUSAL_RULES, Reason, RetryAfter, problem_type

PROBLEM_MEDIA_TYPE = "application/problem+json"


def problem_body(reason: Reason) -> bytes:
    """Return the problem document of a reason, encoded once so that a refusal formats nothing."""
    rule = REFUSAL_RULES[reason]
    document = {
        "type": problem_type(reason),
        "title": rule.title,
        "status": rule.status,
        "reason": reason.value,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def status_line(reason: Reason) -> str:
    """Return status code and phrase as WSGI wants them: `503 Service Unavailable`."""
    status = HTTPStatus(REFUSAL_RULES[reason].status)
    return f"{status.value} {status.phrase}"


def refusal_headers(reason: Reason, retry_after: int | None, *, begun: bool = False) -> list[tuple[str, str]]:
    """Return the headers of a refusal, in title case.

    Args:
        reason: why.
        retry_after: whole seconds; ignored where the table says that the reason carries no `Retry-After`.
        begun: whether the application was at work already when it came to this: then nothing says that it was not.
    """
    rule = REFUSAL_RULES[reason]
    headers = [
        ("Content-Type", PROBLEM_MEDIA_TYPE),
        ("Content-Length", str(len(problem_body(reason)))),
        ("Cache-Control", "no-store"),
    ]
    if not rule.executed and not begun:
        headers.append((REFUSAL_HEADER, reason.value))
    if rule.retry_after is RetryAfter.DRAIN and retry_after is not None:
        headers.append(("Retry-After", str(retry_after)))
    return headers
