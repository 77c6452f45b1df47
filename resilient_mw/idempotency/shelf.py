"""The transitions of a record as pure decisions, for stores that read a record, decide, and write it under one lock.

The memory and the SQLite store use them; a store that decides by a statement or a script of its own must come to the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.record import NOTHING_ABOUT, About, Claim, Ending, Record, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record as it lies in a store. Instants are seconds on the store's clock.

    Attributes:
        token: of the attempt that has it; empty once it has ended.
        state: as it was written: a lapsed one is still `RUNNING` here.
        fence: of the attempt.
        fingerprint: of the request, None: not known.
        began: when the attempt began.
        lease_until: when its lease ends.
        expires: when the record is gone.
        caller: whose it is, for the bound.
        completed_by: the token that completed it.
        answer: when completed.
        about: for operators.
    """

    token: str
    state: State
    fence: int
    fingerprint: str | None
    began: float
    lease_until: float
    expires: float
    caller: str = ""
    completed_by: str = ""
    answer: StoredAnswer | None = None
    about: About = field(default=NOTHING_ABOUT)


def state_of(row: Row, now: float) -> State:
    """Return the state of a row as it reads now."""
    return State.UNKNOWN if row.state is State.RUNNING and now >= row.lease_until else row.state


def live(row: Row | None, now: float) -> Row | None:
    """Return a row that has not expired."""
    return row if row is not None and now < row.expires else None


def record_of(key: str, row: Row, now: float, *, answer: bool = True) -> Record:
    """Return what is shown of a row."""
    state = state_of(row, now)
    return Record(
        record=key,
        state=state,
        fingerprint=row.fingerprint,
        fence=row.fence,
        age=max(0.0, now - row.began),
        lease_left=max(0.0, row.lease_until - now) if state is State.RUNNING else 0.0,
        expires_in=max(0.0, row.expires - now),
        answer=row.answer if answer else None,
        about=row.about,
    )


def may_take(row: Row, claim: Claim, now: float) -> bool:
    """Return whether a live row goes to a claim: unknown, and of the same request as far as both are known."""
    return (
        claim.take_unknown
        and state_of(row, now) is State.UNKNOWN
        and (row.fingerprint is None or claim.fingerprint is None or row.fingerprint == claim.fingerprint)
    )


def begun(earlier: Row | None, claim: Claim, now: float, fence: int) -> Row:
    """Return the row of a claim that begins, or takes over `earlier`."""
    known = None if earlier is None else earlier.fingerprint
    return Row(
        token=claim.token,
        state=State.RUNNING,
        fence=fence,
        fingerprint=claim.fingerprint if known is None else known,
        began=now,
        lease_until=now + claim.lease,
        expires=now + claim.lease + claim.keep,
        caller=claim.caller if earlier is None else earlier.caller,
        about=claim.about,
    )


def has(row: Row | None, claim: Claim) -> bool:
    """Return whether a claim has a live row, running; also when its lease is over and nobody has taken it."""
    return row is not None and row.state is State.RUNNING and row.token == claim.token


def renewed(row: Row, claim: Claim, now: float) -> Row:
    """Return the row with its lease anew."""
    return replace(row, lease_until=now + claim.lease, expires=now + claim.lease + claim.keep)


def completed(row: Row, claim: Claim, answer: StoredAnswer, fingerprint: str | None, now: float) -> Row:
    """Return the row with its answer."""
    return replace(
        row,
        token="",
        completed_by=claim.token,
        state=State.COMPLETED,
        answer=answer,
        fingerprint=fingerprint if row.fingerprint is None else row.fingerprint,
        lease_until=now,
        expires=now + claim.keep,
    )


def abandoned(row: Row, claim: Claim, ending: Ending, now: float) -> Row | None:
    """Return the row of an attempt that was given up; None: there is none any more."""
    if ending == "forget":
        return None
    return replace(row, token="", state=State.UNKNOWN, lease_until=now, expires=now + claim.keep)
