"""The part of the report about idempotency keys, as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from resilient_mw.cli.explained_keys import OFF, KeysReport, KeysRow
from resilient_mw.cli.words import seconds, span, table
from resilient_mw.core.routes import UNMATCHED

SEEN_BY = {"process": "each process has its own", "machine": "one for each machine", "network": "one for all"}


def keys_as_text(keys: KeysReport) -> Iterator[str]:
    """Yield the lines about one middleware."""
    yield f"idempotency keys ({keys.protocol.upper()})"
    yield ""
    if not keys.routes_known:
        yield "  no route source knows the application; these are the rules of the policy"
    yield from table(
        (
            "methods",
            "route",
            "key",
            "repeat",
            "unknown",
            "lease",
            "kept",
            "answers to",
            "JSON to",
            "store away",
            "from",
        ),
        [_row(each) for each in keys.routes],
    )
    quoted = ", quoted only" if keys.strict else ""
    yield f"  key            in {keys.header}{quoted}, of {keys.caller or 'one tenant'}"
    yield f"  store          {keys.store} ({SEEN_BY.get(keys.shared, keys.shared)}), asked for {seconds(keys.store_timeout)} at most"
    yield f"  repeats        wait {seconds(keys.max_wait)} at most, {keys.max_waiting} at once in a process"
    yield f"  records        {keys.max_records} of one caller at most"


def _row(row: KeysRow) -> tuple[str, ...]:
    template = "everything else" if row.template == UNMATCHED else row.template
    named = (" ".join(row.methods), template, row.use)
    if row.use == OFF:
        return (*named, *("-" for _ in range(7)), row.source)
    return (
        *named,
        row.wait or "-",
        row.on_unknown or "-",
        seconds(row.lease),
        span(row.keep or 0),
        f"{row.max_answer or 0:,} B",
        f"{row.canonical_json:,} B" if row.canonical_json else "as bytes",
        row.store_down or "-",
        row.source,
    )
