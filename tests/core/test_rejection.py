"""Refusal reasons: one complete table, and the answer that is made from it."""

from __future__ import annotations

import json
import re

import pytest

from resilient_mw.core.problem import PROBLEM_MEDIA_TYPE, problem_body, refusal_headers, status_line
from resilient_mw.core.rejection import REFUSAL_HEADER, REFUSAL_RULES, Reason, RetryAfter, problem_type

SHED = {
    "queue_full",
    "pushed_out",
    "tenant_share",
    "queue_timeout",
    "predicted_late",
    "exempt_limit",
    "draining",
    "overloaded",
    "websocket_limit",
    "stream_limit",
}
WRONG = {"body_too_large"}
MISSING = {"dependency_unavailable"}
LIMITED = {"quota_exceeded": 429, "quota_unknown": 503}
OUTGOING = {"circuit_open", "bulkhead_full", "throttled"}
IDEMPOTENCY = {
    "idempotency_key_missing": (400, RetryAfter.NEVER),
    "idempotency_key_invalid": (400, RetryAfter.NEVER),
    "idempotency_key_reused": (422, RetryAfter.NEVER),
    "idempotency_in_progress": (409, RetryAfter.RUN),
    "idempotency_body_not_kept": (409, RetryAfter.NEVER),
    "idempotency_unknown": (409, RetryAfter.NEVER),
    "idempotency_store_unavailable": (503, RetryAfter.RUN),
    "idempotency_too_many": (429, RetryAfter.QUOTA),
    "idempotency_no_caller": (400, RetryAfter.NEVER),
}
LATE = {"expired_on_arrival", "insufficient_budget", "expired_in_queue", "deadline_exceeded"}


def test_every_reason_has_a_rule_and_there_are_no_others() -> None:
    assert set(REFUSAL_RULES) == set(Reason)
    assert {reason.value for reason in Reason} == (
        SHED | LATE | OUTGOING | WRONG | MISSING | set(LIMITED) | set(IDEMPOTENCY)
    )


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        REFUSAL_RULES[Reason.DRAINING] = REFUSAL_RULES[Reason.QUEUE_FULL]  # type: ignore[index]


@pytest.mark.parametrize("reason", Reason)
def test_overload_is_503_with_retry_after_and_a_deadline_is_504_without(reason: Reason) -> None:
    rule = REFUSAL_RULES[reason]
    if reason.value in SHED:
        assert (rule.status, rule.retry_after) == (503, RetryAfter.DRAIN)
    elif reason.value in MISSING:
        assert (rule.status, rule.retry_after) == (503, RetryAfter.TRIAL)
    elif reason.value in OUTGOING:
        assert (rule.status, rule.retry_after) == (503, RetryAfter.NEVER)
    elif reason.value in LIMITED:
        assert (rule.status, rule.retry_after) == (LIMITED[reason.value], RetryAfter.QUOTA)
    elif reason.value in IDEMPOTENCY:
        assert (rule.status, rule.retry_after) == IDEMPOTENCY[reason.value]
    elif reason.value in WRONG:
        assert (rule.status, rule.retry_after) == (413, RetryAfter.NEVER)
    else:
        assert (rule.status, rule.retry_after) == (504, RetryAfter.NEVER)
    assert rule.close is (reason is Reason.DRAINING)


@pytest.mark.parametrize("reason", Reason)
def test_the_problem_document_is_valid_and_explains_itself(reason: Reason) -> None:
    body = problem_body(reason)
    document = json.loads(body)
    assert set(document) == {"type", "title", "status", "reason"}
    assert document["type"] == problem_type(reason)
    assert re.fullmatch(r"urn:[a-z0-9][a-z0-9-]{0,31}:[a-z:_-]+", document["type"])
    assert document["status"] == REFUSAL_RULES[reason].status
    assert document["reason"] == reason.value
    assert document["title"]
    assert body.isascii()


def test_titles_and_types_are_told_apart() -> None:
    assert len({rule.title for rule in REFUSAL_RULES.values()}) == len(Reason)
    assert len({problem_type(reason) for reason in Reason}) == len(Reason)


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("retry_after", [None, 7])
def test_the_headers_of_a_refusal(reason: Reason, retry_after: int | None) -> None:
    pairs = refusal_headers(reason, retry_after)
    headers = dict(pairs)
    assert len(headers) == len(pairs), "no field twice"
    assert headers["Content-Type"] == PROBLEM_MEDIA_TYPE == "application/problem+json"
    assert headers["Content-Length"] == str(len(problem_body(reason)))
    assert headers["Cache-Control"] == "no-store"
    told = {name for name, (_, source) in IDEMPOTENCY.items() if source is not RetryAfter.NEVER}
    expected = (
        "7" if reason.value in SHED | MISSING | set(LIMITED) | told and retry_after is not None else None
    )
    assert headers.get("Retry-After") == expected
    assert all(name == name.title() and value.isascii() and value.isprintable() for name, value in pairs)


@pytest.mark.parametrize("reason", Reason)
def test_work_that_may_have_begun_is_not_said_to_be_refused(reason: Reason) -> None:
    """A client may repeat whatever carries the header, also a POST."""
    headers = dict(refusal_headers(reason, 1))
    executed = (
        reason.value in {"deadline_exceeded", *OUTGOING} or IDEMPOTENCY.get(reason.value, (0,))[0] == 409
    )
    assert REFUSAL_RULES[reason].executed is executed
    assert headers.get(REFUSAL_HEADER) == (None if executed else reason.value)
    assert REFUSAL_HEADER not in dict(refusal_headers(reason, 1, begun=True))


def test_status_lines() -> None:
    assert status_line(Reason.QUEUE_FULL) == "503 Service Unavailable"
    assert status_line(Reason.DEADLINE_EXCEEDED) == "504 Gateway Timeout"
