"""What a call machine is told and what it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.core.rejection import Reason


class Phase(StrEnum):
    """Where an attempt was when it ended. The values are stable labels."""

    POOL = "pool"
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    WRITE = "write"
    HEAD = "head"
    BODY = "body"
    BACKOFF = "backoff"
    BULKHEAD = "bulkhead"


UNSENT = frozenset({Phase.POOL, Phase.DNS, Phase.CONNECT, Phase.TLS})
"""Phases in which not one byte of the request has left: the dependency cannot have acted."""


# -- what it is told ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """An attempt got a response head.

    Attributes:
        status: the HTTP status.
        retry_after: seconds to wait, if the answer says so in a valid `Retry-After`.
        refused: whether a trusted dependency says that it has not begun the work (`X-Refusal-Reason`).
        told_not_to: whether the answer says that a retry is useless.
        wanted: whether the user's own rule wants another attempt; None: there is none.
        whole: whether nothing is left to come: no body, or one that is there already. If it is delivered, the call is over.
    """

    status: int
    retry_after: float | None = None
    refused: bool = False
    told_not_to: bool = False
    wanted: bool | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt failed before its response head came, or in its body.

    Attributes:
        phase: where.
        timed_out: whether a timeout ended it, whichever. Whether that was the end of the caller's budget is decided by
            the clock.
        ours: whether the fault lies on our side of the wire (no free connection in our own pool).
        refused: whether the protocol says that the request was not acted upon (HTTP/2: a refused stream, a connection
            that ended without one).
        wanted: whether the user's own rule wants another attempt; None: there is none.
    """

    phase: Phase
    timed_out: bool = False
    ours: bool = False
    refused: bool = False
    wanted: bool | None = None


# -- what it answers ---------------------------------------------------------------------------------------------------


class Start(NamedTuple):
    """Make an attempt now. A named tuple: one is made for every attempt, and those are made fast.

    Attributes:
        number: 1 for the first one.
        timeout: seconds that the whole attempt may take, its body included; inf: no bound.
        connect_timeout: seconds for name resolution, connecting and TLS.
        look_at: the instant at which to `wake` the call if the attempt is still under way; inf: there is no need to. Only
            then other attempts may come beside it.
    """

    number: int
    timeout: float
    connect_timeout: float
    look_at: float = math.inf


@dataclass(frozen=True, slots=True)
class Wait:
    """Call `resume` at an instant: a back-off. Keep the error of the last attempt, if it had one: it may be needed."""

    until: float


@dataclass(frozen=True, slots=True)
class Queue:
    """Call `queued` when the waiter was granted a slot, or at an instant. Keep the error of the last attempt, as in `Wait`."""

    until: float
    waiter: Waiter


@dataclass(frozen=True, slots=True)
class Discard:
    """Close the response of an attempt: it will not be returned.

    Attributes:
        number: of the attempt.
    """

    number: int = 1


@dataclass(frozen=True, slots=True)
class Cancel:
    """End an attempt that another one was faster than, close what it has got, and then tell `lost`.

    Attributes:
        number: of the attempt.
    """

    number: int = 1


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the response of an attempt to the caller, and tell `end` when its body has ended.

    Attributes:
        number: of the attempt.
    """

    number: int = 1


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise the error of an attempt; it may lie one back-off behind.

    Attributes:
        number: of the attempt.
    """

    number: int = 1


@dataclass(frozen=True, slots=True)
class Expire:
    """Raise that the deadline has passed.

    Attributes:
        phase: where the call was.
    """

    phase: Phase


@dataclass(frozen=True, slots=True)
class Refuse:
    """Raise that the call was refused on this side of the wire.

    Attributes:
        reason: why.
        retry_in: seconds after which it may be different; 0 if unknown.
        attempts: attempts that were made before. 0: nothing was sent. Otherwise the response of the last one was
            discarded for a retry, which could not be made when its back-off was over.
    """

    reason: Reason
    retry_in: float = 0.0
    attempts: int = 0


Action = Start | Wait | Queue | Discard | Cancel | Deliver | Fail | Expire | Refuse
Actions = tuple[Action, ...]

DISCARD, DELIVER, FAIL = Discard(1), Deliver(1), Fail(1)
"""Of the first attempt, which most calls end with."""
