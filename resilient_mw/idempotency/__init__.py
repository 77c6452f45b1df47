"""F1: idempotency keys, as pure decisions: run, replay, wait or refuse."""

from resilient_mw.core.idempotent import IdempotencyRule
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.policy import (
    IdempotencyPolicy,
    IdempotencyRoute,
    StatusFunction,
    Verdict,
    authenticated,
)
from resilient_mw.idempotency.protocol import AsyncIdempotencyStore, IdempotencyStore, StoreUnavailable
from resilient_mw.idempotency.record import About, Begun, Claim, Ending, Found, Full, Outcome, Record, State
from resilient_mw.idempotency.route import idempotent_route

__all__ = [
    "About",
    "AsyncIdempotencyStore",
    "Begun",
    "Claim",
    "Ending",
    "Found",
    "Full",
    "IdempotencyPolicy",
    "IdempotencyRoute",
    "IdempotencyRule",
    "IdempotencyStore",
    "Outcome",
    "Record",
    "State",
    "StatusFunction",
    "StoreUnavailable",
    "StoredAnswer",
    "Verdict",
    "authenticated",
    "idempotent_route",
]
