"""The table of idempotency keys in PostgreSQL for those who make it on a connection of their own: that of the store."""

from __future__ import annotations

from typing import Final

from resilient_mw_integrations._postgres_questions import schema

CREATE_QUEUE: Final = "SELECT pg_advisory_xact_lock(hashtextextended('\"resilient_mw_idempotency\"', 0))"
"""Of several that create the table at one time, each but the first waits, and finds it done."""


def postgres_schema() -> str:
    """Return the statements that make the table."""
    return schema()
