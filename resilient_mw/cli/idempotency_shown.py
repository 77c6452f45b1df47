"""Records of idempotency keys, as text for people and as JSON for programs."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from resilient_mw.cli.words import clean, counted, span, table
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.record import Record, State

FORMAT = 1
"""The version of the JSON form: fields may be added under the same number, and none changes."""
DIGITS = 12
"""Digits of a record's key that the table shows: enough to name it."""
CELL, LINE = 40, 200
"""Characters of a cell of the table, and of a header line."""


def page_as_text(records: Sequence[Record], after: str | None) -> Iterator[str]:
    """Yield the lines of a page of records.

    Args:
        records: of the page.
        after: where the next one begins; None: there is none.
    """
    if records:
        yield from table(
            ("record", "state", "age", "lease", "expires in", "method", "route", "caller", "key"),
            [_row(each) for each in records],
        )
    else:
        yield "no records"
    if after is not None:
        yield f"there may be more: --after {after}"


def page_as_json(records: Sequence[Record], after: str | None) -> dict[str, Any]:
    """Return a page of records as plain values."""
    return {"format": FORMAT, "records": [_plain(each) for each in records], "next": after}


def record_as_text(record: Record, *, answer: bool, most: int) -> Iterator[str]:
    """Yield the lines that show one record.

    Args:
        record: with its answer.
        answer: whether that is shown, or only how large it is.
        most: bytes of its body that are shown.
    """
    about = record.about
    yield f"record       {record.record}"
    yield f"state        {_state(record)}"
    yield f"attempt      fence {record.fence}, begun {span(record.age)} ago"
    yield f"expires      in {span(record.expires_in)}"
    yield f"request      {clean(about.method, CELL) or '?'} {clean(about.route, LINE) or '?'}"
    yield f"key          {clean(about.key, 255) or '?'}"
    if about.caller:
        yield f"caller       {clean(about.caller, LINE)}"
    yield f"fingerprint  {record.fingerprint or 'not known'}"
    if record.answer is not None:
        yield from _answer(record.answer, shown=answer, most=most)


def record_as_json(record: Record, *, answer: bool, most: int) -> dict[str, Any]:
    """Return one record as plain values; arguments as of `record_as_text`."""
    content = {"format": FORMAT, **_plain(record), "answer": None}
    kept = record.answer
    if kept is None:
        return content
    told: dict[str, Any] = {"status": kept.status, "bytes": None if kept.body is None else len(kept.body)}
    if answer:
        told["headers"] = [
            [clean(name.decode("latin-1"), LINE), clean(value.decode("latin-1"), LINE)]
            for name, value in kept.headers
        ]
        body = None if kept.body is None else kept.body[:most]
        text = None if body is None else _text(body, cut=len(kept.body or b"") > most)
        told["body"] = text
        if body is not None and text is None:
            told["body_base64"] = base64.b64encode(body).decode("ascii")
        told["truncated"] = kept.body is not None and len(kept.body) > most
    return {**content, "answer": told}


def _row(record: Record) -> tuple[str, ...]:
    about = record.about
    return (
        record.record[:DIGITS],
        record.state.value,
        span(record.age),
        span(record.lease_left) if record.state is State.RUNNING else "-",
        span(record.expires_in),
        clean(about.method, CELL),
        clean(about.route, CELL),
        clean(about.caller, CELL),
        clean(about.key, CELL),
    )


def _plain(record: Record) -> dict[str, Any]:
    about = record.about
    return {
        "record": record.record,
        "state": record.state.value,
        "fence": record.fence,
        "age": round(record.age, 3),
        "lease_left": round(record.lease_left, 3),
        "expires_in": round(record.expires_in, 3),
        "fingerprint": record.fingerprint,
        "method": about.method,
        "route": about.route,
        "caller": about.caller,
        "key": about.key,
    }


def _state(record: Record) -> str:
    if record.state is State.RUNNING:
        return f"running: an attempt is at work, its lease ends in {span(record.lease_left)} unless it is renewed"
    if record.state is State.UNKNOWN:
        return "unknown: it was begun, and nobody knows whether it was done. Find out before you release it"
    return "completed: repeats get its answer"


def _answer(answer: StoredAnswer, *, shown: bool, most: int) -> Iterator[str]:
    size = "body not kept" if answer.body is None else f"{len(answer.body):,} bytes"
    more = "" if shown else " (--answer shows it)"
    yield f"answer       {answer.status}, {counted(len(answer.headers), 'header line')}, {size}{more}"
    if not shown:
        return
    for name, value in answer.headers:
        yield f"  {clean(name.decode('latin-1'), LINE)}: {clean(value.decode('latin-1'), LINE)}"
    if not answer.body:
        return
    cut = len(answer.body) > most
    text = _text(answer.body[:most], cut=cut)
    yield ""
    if text is None:
        yield f"  {len(answer.body):,} bytes that are no text; --json has them in base64"
        return
    for line in text.splitlines():
        yield f"  {clean(line, most)}"
    if cut:
        yield f"  ... {len(answer.body) - most:,} bytes more: --bytes"


def _text(body: bytes, *, cut: bool) -> str | None:
    """Return a body as text; None if it is none. A character that was cut at the end does not count."""
    for end in range(4 if cut else 1):
        try:
            return body[: len(body) - end].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return None
