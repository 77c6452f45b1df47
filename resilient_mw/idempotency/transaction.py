"""Work and its key in one transaction of the user's: what its shells ask the database, and what the answers mean.

The key's row is inserted before the work, so that of two that come at once the database has the second wait for the first one's
end: the unique constraint is the only judge. The answer is written to it before the transaction ends. Either all of it is
committed, or nothing: there is no state in which the work is done and the key does not know.
"""

from __future__ import annotations

import json as json_codec
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from resilient_mw.core.checks import require_integer
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.core.rejection import REFUSAL_RULES, Reason
from resilient_mw.idempotency.answers import StoredAnswer, decode_answer, encode_answer, kept_headers
from resilient_mw.idempotency.record import Claim, State
from resilient_mw.idempotency.statements import Statements

MAX_ANSWER: Final = 1_048_576
"""Bytes of the largest body that is kept by default."""
AGAIN: Final = 1
"""Seconds after which to come back where somebody's transaction is open: nobody can see how far it is."""
_ROUNDS: Final = 3
_NOTHING: Final = object()
HeaderLines = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a shell is to execute. It answers with a `Done`.

    Attributes:
        sql: the statement.
        facts: its parameters, and more.
    """

    sql: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it.

    Attributes:
        rows: those of a query.
        changed: the number of rows that a statement has changed.
    """

    rows: Sequence[Sequence[Any]] = ()
    changed: int = 0


class Operation:
    """What a block of work under a key is given.

    Attributes:
        replayed: whether the work was done before: do nothing, and give `answer`.
        answer: the stored one, or the one that `complete` has made.
    """

    __slots__ = ("_max_answer", "_whole", "answer", "replayed")

    def __init__(self, stored: StoredAnswer | None = None, *, max_answer: int = MAX_ANSWER) -> None:
        self.replayed = stored is not None
        self.answer = stored
        self._max_answer = max_answer
        self._whole = stored

    def complete(
        self, status: int = 200, body: bytes | str = b"", *, json: Any = _NOTHING, headers: HeaderLines = ()
    ) -> StoredAnswer:
        """Say what the answer is. It is stored when the block is left, in the same transaction.

        The last one counts. Cookies, credentials and what belongs to one response only are not stored.

        Args:
            status: the HTTP status; jobs need none.
            body: text is stored as UTF-8.
            json: a value whose JSON is the body; its type is told by a header.
            headers: of the answer.

        Returns:
            The answer, whole.

        Raises:
            RuntimeError: the work was done before. What this block has done is undone.
            ValueError: the status is none, or both a body and a value were given.
        """
        if self.replayed:
            raise RuntimeError(
                "the work of this idempotency key was done before: look at op.replayed, and return op.answer"
            )
        require_integer("complete(status)", status, low=200, high=599)
        lines = list(headers.items() if isinstance(headers, Mapping) else headers)
        if json is not _NOTHING:
            if body:
                raise ValueError("complete(body=..., json=...) is not allowed: give one of them")
            body = json_codec.dumps(json, separators=(",", ":"))
            if not any(name.lower() == "content-type" for name, _ in lines):
                lines.append(("Content-Type", "application/json"))
        data = body.encode() if isinstance(body, str) else bytes(body)
        encoded = ((name.encode("latin-1"), value.encode("latin-1")) for name, value in lines)
        self.answer = self._whole = StoredAnswer(status, kept_headers(encoded), data)
        return self._whole

    def value(self) -> Any:
        """Return the body of the answer, read as JSON; None where it is empty.

        Raises:
            RuntimeError: there is no answer yet.
            ValueError: it is no JSON.
        """
        body = self._given().body
        return json_codec.loads(body) if body else None

    def headers(self) -> list[tuple[str, str]]:
        """Return the header lines of the answer: those that are kept, and `Idempotency-Replayed` where it is a repeat.

        Raises:
            RuntimeError: there is no answer yet.
        """
        answer = self._given()
        lines = answer.replay_headers() if self.replayed else answer.headers
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in lines]

    def stored(self) -> StoredAnswer:
        """Return what is kept of the answer.

        Raises:
            RuntimeError: there is no answer yet.
        """
        answer = self._given()
        too_large = answer.body is not None and len(answer.body) > self._max_answer
        return StoredAnswer(answer.status, answer.headers, None) if too_large else answer

    def _given(self) -> StoredAnswer:
        if self._whole is None:
            raise RuntimeError(
                "the block has given no answer: call op.complete() in it, or raise to have its work undone"
            )
        return self._whole


def beginning(claim: Claim, statements: Statements, ms: int) -> Generator[Asked, Done, StoredAnswer | None]:
    """Take the key inside the transaction.

    Args:
        claim: of this attempt.
        statements: of the database.
        ms: milliseconds that a lock may be waited for.

    Yields:
        What to execute, one after the other.

    Returns:
        None: the work may run. Else the answer of the work that was done before.

    Raises:
        IdempotencyRefused: neither; nothing of ours is in the transaction.
    """
    about = claim.about
    facts = {
        "record": claim.record,
        "token": claim.token,
        "fingerprint": claim.fingerprint,
        "lease": claim.lease,
        "keep": claim.keep,
        "caller": claim.caller,
        "most": claim.most,
        "take": int(claim.take_unknown),
        "key": about.key,
        "method": about.method,
        "route": about.route,
        "shown": about.caller,
    }
    was = None
    if statements.bound:
        ((was, _),) = (yield Asked(statements.bound, {"ms": str(ms)})).rows
    for _ in range(_ROUNDS):
        if (yield Asked(statements.insert, facts)).changed:
            if statements.unbound:
                yield Asked(statements.unbound, {"was": was})
            return None
        if (yield Asked(statements.clear, facts)).changed:
            continue
        for row in (yield Asked(statements.read, facts)).rows:
            return _judged(claim, *row)
        if claim.caller:
            ((live, first),) = (yield Asked(statements.full, facts)).rows
            if live >= claim.most:
                raise refused(Reason.IDEMPOTENCY_TOO_MANY, first)
    # What was in the way went, and came again, each time.
    raise refused(Reason.IDEMPOTENCY_IN_PROGRESS, AGAIN)


def _judged(
    claim: Claim, state: str, fingerprint: str | None, lease_left: float, answer: bytes | None
) -> StoredAnswer:
    """Return the answer that stands in a record that is in the way.

    Raises:
        IdempotencyRefused: there is none, or not for this request.
    """
    if fingerprint is not None and claim.fingerprint not in {None, fingerprint}:
        raise refused(Reason.IDEMPOTENCY_KEY_REUSED)
    if state == State.UNKNOWN:
        raise refused(Reason.IDEMPOTENCY_UNKNOWN)
    if state == State.RUNNING or answer is None:
        raise refused(Reason.IDEMPOTENCY_IN_PROGRESS, lease_left)
    stored = decode_answer(answer)
    if stored.body is None:
        raise refused(Reason.IDEMPOTENCY_BODY_NOT_KEPT)
    return stored


def ending(claim: Claim, operation: Operation, statements: Statements) -> Generator[Asked, Done, None]:
    """Write the answer to the key's row, the last thing before the transaction ends.

    Yields:
        What to execute.

    Raises:
        RuntimeError: the block has given no answer.
        IdempotencyRefused: the row is gone, which the block itself must have brought about: nothing may be committed.
    """
    facts = {
        "record": claim.record,
        "token": claim.token,
        "keep": claim.keep,
        "answer": encode_answer(operation.stored()),
    }
    if not (yield Asked(statements.complete, facts)).changed:
        raise refused(Reason.IDEMPOTENCY_UNKNOWN)


def refused(reason: Reason, seconds: float | None = None) -> IdempotencyRefused:
    """Return the error of a reason.

    Args:
        reason: why.
        seconds: after which to come back, where that is known.
    """
    again = None if seconds is None else max(1, math.ceil(seconds))
    return IdempotencyRefused(REFUSAL_RULES[reason].title, reason, again)
