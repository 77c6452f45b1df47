"""What a call is made of: its stage, what it shares with calls that are alike, and its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from resilient_mw.calls.breaker import Breaker, Permit
from resilient_mw.calls.classify import OK
from resilient_mw.calls.events import UNSENT, Failure
from resilient_mw.calls.groups import Group

if TYPE_CHECKING:
    from resilient_mw.calls.short import ShortWay

EARLY = 0.001
"""Seconds by which a timer may fire before its instant and still be taken for it."""
STATUS_CLASSES = {1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}
"""The labels of outcomes that are heads."""
OUTCOMES = ("other", "1xx", "2xx", "3xx", *["other"] * 6)
"""The same of good heads, by the first digit of their status."""


class Stage(Enum):
    """Where a call stands."""

    NEW = "new"
    ATTEMPT = "attempt"
    BACKOFF = "backoff"
    QUEUE = "queue"
    BODY = "body"
    OVER = "over"


NEW, ATTEMPT, BACKOFF, QUEUE, BODY, OVER = Stage
"""By names of their own: Python 3.11 looks a member of an Enum up some ten times as long as a name, for each step of a call."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What calls that are alike have in common: made once for many of them.

    Attributes:
        group: the route group that they belong to; None: the dependency itself.
    """

    group: Group | None = None


USUAL = Facts()


class Attempt:
    """An attempt that holds a bulkhead slot, and a permit of the breaker until it is judged.

    Args:
        number: 1 for the first one of its call.
        permit: of the breaker; None: there is none.
        now: the instant of its start.
        timeout: seconds that it may take, its body included; inf: no bound.

    Attributes:
        until: the instant of its end.
        by_budget: whether the caller's budget ends it, and not a timeout of the dependency.
        cut_off: whether it was cut off: it would have taken longer, and nobody knows how long.
        cut_short: whether it had so little that its end by the budget says nothing about the dependency.
        hedge: whether it was begun beside another one.
        lost: whether another attempt of its call was faster: what becomes of it says nothing.
        verdict: what its head says.
        outcome: the label of its head; empty: there is none yet.
    """

    # Most attempts end with what most of this was at their beginning: that is not written for each of them.
    by_budget = False
    cut_off = False
    cut_short = False
    hedge = False
    lost = False
    verdict = OK
    outcome = ""

    def __init__(self, number: int, permit: Permit | None, now: float, timeout: float) -> None:
        self.number = number
        self.permit = permit
        self.started_at = now
        self.until = now + timeout

    def expired(self, now: float, failure: Failure) -> bool:
        """Return whether the caller's budget ended it, and not one of the dependency's own timeouts."""
        in_time = now < self.until - EARLY
        # A timeout of connecting alone, or of our own pool, says nothing about how long the whole would have taken.
        self.cut_off = failure.timed_out and not (in_time and failure.phase in UNSENT)
        return failure.timed_out and self.by_budget and not in_time

    def judge(self, now: float, breaker: Breaker | None, *, failed: bool | None) -> None:
        """Hand the permit back with what the attempt says, once."""
        permit, self.permit = self.permit, None
        if permit is not None and breaker is not None:
            breaker.record(now, permit, failed=failed)


class ShortAttempt(Attempt):
    """The first attempt of a call on its short way: see `ShortWay`.

    Attributes:
        deadline_at: the instant at which the answer of its call becomes worthless; None: it has not begun.
        running: what the breaker knew to be under way at its start.
        way: the short way that it went.
        status: below 0: of its head, which was told before its body.
        over: whether it has ended.
        under_way: whether it has begun and not ended.
    """

    way: ShortWay

    number = 1
    permit: Permit | None = None
    started_at = 0.0
    until = 0.0
    deadline_at: float | None = None
    running: dict[int, float] | None = None
    status = 0
    over = False

    def __init__(self) -> None:
        """Nothing is known before it begins."""

    @property
    def under_way(self) -> bool:
        """See above."""
        return self.deadline_at is not None and not self.over
