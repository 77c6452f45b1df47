"""Read and write the header fields that the two halves speak.

Every reader takes field values as servers hand them over (latin-1 decoded text), is total (no text makes it
raise), linear in the length of its input, and answers None, or the field's documented default, for everything
outside its grammar.
"""

from __future__ import annotations

from resilient_mw.core.headers.deadlines import DEADLINE_PARSERS, format_timeout_ms, parse_deadline
from resilient_mw.core.headers.idempotency_key import parse_idempotency_key
from resilient_mw.core.headers.priority import WirePriority, parse_priority
from resilient_mw.core.headers.request_start import parse_request_start
from resilient_mw.core.headers.retry_after import format_retry_after, parse_retry_after

__all__ = [
    "DEADLINE_PARSERS",
    "WirePriority",
    "format_retry_after",
    "format_timeout_ms",
    "parse_deadline",
    "parse_idempotency_key",
    "parse_priority",
    "parse_request_start",
    "parse_retry_after",
]
