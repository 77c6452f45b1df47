"""Events: things that happened, as small frozen values for listeners. The hot path makes none."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.rejection import Reason


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was refused.

    Attributes:
        route, priority: route template and class.
        reason: why.
        waited: seconds that it had waited; 0 for a refusal on arrival.
    """

    route: str
    priority: str
    reason: Reason
    waited: float


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A running request was cancelled.

    Attributes:
        route, priority: route template and class.
        reason: why.
        ran: seconds since it was admitted.
    """

    route: str
    priority: str
    reason: CancelReason
    ran: float


@dataclass(frozen=True, slots=True)
class LateWork:
    """A cancelled request was still running 250 ms later: its slot stays taken until it ends.

    Attributes:
        route, priority: route template and class.
        reason: why it was cancelled.
    """

    route: str
    priority: str
    reason: CancelReason


@dataclass(frozen=True, slots=True)
class GuardFailed:
    """Our own code failed and a request passed unguarded.

    Attributes:
        where: the part that failed.
        error: the exception.
    """

    where: str
    error: Exception


@dataclass(frozen=True, slots=True)
class OverloadChanged:
    """The overload state of a service changed.

    Attributes:
        before, after: `normal`, `elevated` or `overloaded`.
        level: the level, 0 to 1, at the change.
        signal: the worst signal at the change; empty if none is known.
    """

    before: str
    after: str
    level: float
    signal: str


@dataclass(frozen=True, slots=True)
class Shadowed:
    """A defence in shadow mode has done nothing about a request.

    Attributes:
        route, priority: route template and class.
        defence: `admission`, `deadlines` or `quotas`.
        would: what it would have done: `refuse`, `queue` or `cancel`.
        reason: why it would have refused; None otherwise.
    """

    route: str
    priority: str
    defence: str
    would: str
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class KeyUsed:
    """A request with an idempotency key came to an end of its own.

    Attributes:
        route: route template.
        outcome: as counted by `IdempotencySnapshot.outcomes`.
    """

    route: str
    outcome: str


Event = Refused | Cancelled | LateWork | GuardFailed | OverloadChanged | Shadowed | KeyUsed
