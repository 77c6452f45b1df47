"""What is known of one idempotency key: its states, and the record of it that a store hands out.

    (nothing) --begin--> RUNNING --complete--> COMPLETED
                           |  ^
        lease over, or     |  | begin(take_unknown=True), with a higher fence
        abandon(unknown)   v  |
                         UNKNOWN --complete, by who has taken it--> COMPLETED

From RUNNING a record can also go away (`abandon` with nothing done), and every record goes away when it expires.

Every duration in a record is relative to the instant at which the store read it, on the store's own clock, so that
nobody compares the clocks of two machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from resilient_mw.idempotency.answers import StoredAnswer


class State(StrEnum):
    """How far the work of a key has come. The values are stable: they stand in databases."""

    RUNNING = "running"
    """An attempt has it under a lease that is not over."""
    COMPLETED = "completed"
    """It is done, and the record has the answer, or the head of it at least."""
    UNKNOWN = "unknown"
    """It was begun, and nobody knows whether it was done: the lease is over, or the handler was cancelled. A store keeps
    a lapsed record as `running` and reads it as this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What operators are shown of a record. No decision looks at it.

    Attributes:
        key: the key as the caller sent it.
        method: of the request.
        route: the template.
        caller: who sent it in clear; empty unless the policy says `show_caller=True`.
    """

    key: str = ""
    method: str = ""
    route: str = ""
    caller: str = ""


NOTHING_ABOUT = About()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One attempt's wish to do the work of a key, and afterwards the proof that it is the one that may.

    Attributes:
        record: the record's key (`scope.record_key`): 64 hexadecimal digits.
        token: unlike that of any other attempt, of any process: what makes a late write of an earlier one fail. 1 to 64
            characters of ASCII.
        fingerprint: of the request, 64 hexadecimal digits; None: not known before the body has been read by the handler.
        lease: seconds after which the attempt counts as dead unless it has renewed them.
        keep: seconds for which the record lives once its attempt has ended, or its lease is over.
        take_unknown: whether a record whose outcome is unknown is taken over.
        caller: digest of the caller (`scope.caller_key`), for the bound. Empty: no bound.
        most: live records that this caller may have.
        about: for operators.
    """

    record: str
    token: str
    fingerprint: str | None = None
    lease: float = 30.0
    keep: float = 86_400.0
    take_unknown: bool = False
    caller: str = ""
    most: int = 10_000
    about: About = field(default=NOTHING_ABOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a store knows of a key at the instant at which it was read.

    Attributes:
        record: the record's key.
        state: a lapsed one reads as `UNKNOWN`.
        fingerprint: of the request that began it; None: not known yet.
        fence: of the attempt that has, or had, it.
        age: seconds since that attempt began.
        lease_left: seconds until its lease is over; 0 when it is not running.
        expires_in: seconds until the record is gone; never negative.
        answer: when completed.
        about: for operators.
    """

    record: str
    state: State
    fingerprint: str | None
    fence: int
    age: float
    lease_left: float
    expires_in: float
    answer: StoredAnswer | None = None
    about: About = field(default=NOTHING_ABOUT)


@dataclass(frozen=True, slots=True)
class Begun:
    """The claim has the record, and nobody else has: run.

    Attributes:
        fence: higher than that of every earlier attempt at this key. Give it to whatever can refuse a lower one.
        unknown: an earlier attempt at it ended in the dark, and this one has taken over.
    """

    fence: int
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Somebody else has, or had, the key. Nothing was changed.

    Attributes:
        record: what is known of it.
    """

    record: Record


@dataclass(frozen=True, slots=True)
class Full:
    """The caller has as many live records as it may. Nothing was changed.

    Attributes:
        retry_after: seconds until the first of them expires.
    """

    retry_after: float


Outcome = Begun | Found | Full
"""What a store says to a claim."""

Ending = Literal["forget", "unknown"]
"""How an attempt is given up: `forget`: nothing was done, the key is free at once; `unknown`: nobody can say."""
