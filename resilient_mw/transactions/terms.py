"""The terms of one block: whose key it is, and how long it may wait. For the shells of all databases."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypedDict

from resilient_mw.core.checks import require_integer, require_number
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.core.headers.idempotency_key import parse_idempotency_key
from resilient_mw.core.idempotent import LONGEST
from resilient_mw.core.rejection import Reason
from resilient_mw.idempotency.fingerprint import Fingerprint
from resilient_mw.idempotency.record import About, Claim
from resilient_mw.idempotency.scope import caller_key, record_key
from resilient_mw.idempotency.transaction import AGAIN, MAX_ANSWER, Operation, refused
from resilient_mw.runtime.context import current
from resilient_mw.runtime.handed import HANDED

FIELD: Final = "idempotency-key"
WAIT: Final = 5.0
"""Seconds that a repeat waits at most for the transaction of the first one by default: it holds a connection meanwhile."""
KEY: Final = re.compile(r"[^\0\ud800-\udfff]{1,255}")
"""Text that every database takes."""
LONGEST_MS: Final = 2_147_483_647


class TermsGiven(TypedDict, total=False):
    """The keywords of `idempotent()`: the attributes of `Terms`."""

    key: str | None
    caller: str | None
    operation: str | None
    payload: Any
    wait: float
    keep: float | None
    max_answer: int
    on_unknown: Literal["refuse", "retry"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What `idempotent()` takes, whatever the database.

    Without `key`, `caller` and `operation` the block takes what `IdempotencyMiddleware` hands over.

    Attributes:
        key: of a job, or as a caller sent it. None: what stands in the field `Idempotency-Key` of the request.
        caller: whose key it is; empty for an API with a single tenant.
        operation: what is done, such as `POST /payments`: for another operation the same key is another one.
        payload: what tells a repeat from another request with the same key: bytes, text, or a value whose JSON counts. None: not told.
        wait: seconds that the end of somebody else's transaction is waited for, and never longer than the budget.
        keep: seconds for which the answer is kept. None: what the middleware says, else a day.
        max_answer: bytes of the largest body that is kept.
        on_unknown: what becomes of a key that a store, not a transaction, has left with an unknown outcome. None: what the
            middleware says, else `refuse`.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    key: str | None = None
    caller: str | None = None
    operation: str | None = None
    payload: Any = None
    wait: float = WAIT
    keep: float | None = None
    max_answer: int = MAX_ANSWER
    on_unknown: Literal["refuse", "retry"] | None = None

    def __post_init__(self) -> None:
        require_number("idempotent(wait)", self.wait, low=0, high=3_600)
        require_integer("idempotent(max_answer)", self.max_answer, low=0, high=1 << 30)
        if self.keep is not None:
            require_number("idempotent(keep)", self.keep, low=1, high=LONGEST)
        if self.on_unknown not in {None, "refuse", "retry"}:
            raise ValueError(
                f"idempotent(on_unknown={self.on_unknown!r}) is not allowed: it must be 'refuse' or 'retry'"
            )

    def claim(self) -> Claim:
        """Return the claim of this attempt.

        Raises:
            IdempotencyRefused: there is no key, or it is malformed.
            ValueError: whose it is, or for what, was not said.
        """
        handed = HANDED.get()
        if handed is not None and self.key is None and self.caller is None and self.operation is None:
            claim = handed.complete()
        else:
            claim = self._own()
        changes: dict[str, Any] = {"token": uuid.uuid4().hex}
        if self.payload is not None:
            changes["fingerprint"] = fingerprint_of(self.payload)
        if self.keep is not None:
            changes["keep"] = self.keep
        if self.on_unknown is not None:
            changes["take_unknown"] = self.on_unknown == "retry"
        return replace(claim, **changes)

    def milliseconds(self) -> int:
        """Return how long a lock may be waited for now: at least 1, for 0 means for ever to databases.

        Raises:
            DeadlineExceeded, RequestCancelled: the request is over, and nothing is begun for it.
        """
        context = current()
        context.check()
        return min(max(1, int(min(self.wait, context.remaining()) * 1000)), LONGEST_MS)

    def operation_with(self, stored: Any) -> Operation:
        """Return what the block is given."""
        return Operation(stored, max_answer=self.max_answer)

    def _own(self) -> Claim:
        if self.caller is None or self.operation is None:
            raise ValueError(
                f"idempotent(caller={self.caller!r}, operation={self.operation!r}) is not allowed: say whose the key is "
                "(caller='' if all callers are one) and what is done, such as operation='POST /payments', where no "
                "IdempotencyMiddleware hands the key over, as it does on a route with in_transaction=True"
            )
        key = self.key
        if key is None:
            lines = current().received(FIELD)
            if not lines:
                raise refused(Reason.IDEMPOTENCY_KEY_MISSING)
            key = parse_idempotency_key(lines)
        if not isinstance(key, str) or KEY.fullmatch(key) is None:
            raise refused(Reason.IDEMPOTENCY_KEY_INVALID)
        return Claim(
            record=record_key(key, caller=self.caller, method="", route=self.operation),
            token="",
            caller=caller_key(self.caller),
            about=About(key=key, route=self.operation),
        )


def fingerprint_of(payload: Any) -> str:
    """Return the fingerprint of a payload: of bytes as they are, of text as UTF-8, of anything else by its JSON.

    Raises:
        TypeError: it has no JSON.
    """
    hashed = Fingerprint()
    if isinstance(payload, (bytes, bytearray, memoryview)):
        hashed.update(bytes(payload))
    elif isinstance(payload, str):
        hashed.update(payload.encode("utf-8", "surrogatepass"))
    else:
        hashed.update(json.dumps(payload, sort_keys=True, separators=(",", ":")).encode())
    return hashed.digest()


def blocked() -> IdempotencyRefused:
    """Return the error of who has waited long enough for somebody else's transaction."""
    return refused(Reason.IDEMPOTENCY_IN_PROGRESS, AGAIN)


ENDED_INSIDE: Final = (
    "the transaction was ended inside the block of idempotent(): what it had done may be committed without an answer. Leave the "
    "commit to the block, or to the transaction around it"
)
