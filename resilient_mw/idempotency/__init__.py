"""F1: idempotency keys, as pure decisions: run, replay, wait or refuse."""

from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.protocol import AsyncIdempotencyStore, IdempotencyStore, StoreUnavailable
from resilient_mw.idempotency.record import About, Begun, Claim, Ending, Found, Full, Outcome, Record, State

__all__ = [
    "About",
    "AsyncIdempotencyStore",
    "Begun",
    "Claim",
    "Ending",
    "Found",
    "Full",
    "IdempotencyStore",
    "Outcome",
    "Record",
    "State",
    "StoreUnavailable",
    "StoredAnswer",
]
