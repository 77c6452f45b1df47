"""The short way of a call: a first attempt that nothing keeps from beginning, and that gets a good answer.

Nearly all calls are of this kind, and need none of the call machine's stages. What is decided and counted is the same, in
fewer steps: whoever drives a call asks here first. Wherever the short way ends (something is due, full, refused or short of
time; a head that is not good; an error; a caller who gives up) the machine takes the attempt over as if it had begun it:
see `Attempts.take_over`.

Dependencies whose attempts are judged by route group, or whose timeouts, limits or hedges follow from measurement, have no
short way.

Pure and not thread-safe: the owner of the dependency locks.
"""

from __future__ import annotations

import math
from itertools import count
from operator import sub
from typing import Any

from resilient_mw.calls.attempt import OUTCOMES, ShortAttempt
from resilient_mw.calls.breaker import CLOSED, Permit
from resilient_mw.calls.state import FAIR, DependencyState


class ShortWay:
    """The short way of one dependency. See the module.

    It looks for how many attempts, and until when, nothing can come between: neither breaker nor throttle. Up to then an
    attempt takes its slot and is written down; it is counted when the look is over. Whoever decides anything else `settle`s
    before, and so does whoever reads a figure: only the slots are always up to date.

    Args:
        state: its state.

    Attributes:
        state: the same.
    """

    __slots__ = (
        "_accepted", "_begun", "_breaker", "_ends", "_fair", "_least", "_limit", "_most", "_numbered",
        "_permit", "_recent", "_reserve", "_room", "_running", "_succeeded", "_until", "state",
    )  # fmt: skip

    MOST = 64
    """Attempts that are written down before they are counted."""

    def __init__(self, state: DependencyState) -> None:
        self.state = state
        self._breaker = breaker = state.breaker
        self._recent = recent = None if breaker is None else breaker.recent
        self._numbered = recent is not None and recent.numbered
        self._succeeded = count().__next__ if recent is None else recent.succeeded
        self._reserve, self._least, self._limit = state.reserve, state.least, state.timeout
        self._fair = min(state.fair, FAIR * state.timeout)
        self._most = math.inf if state.bulkhead is None else state.bulkhead
        self._room, self._until = 0, -math.inf
        self._permit: Permit | None = None
        self._running: dict[int, float] | None = None
        # When attempts began, each with how much was left of its caller's budget; when those had begun whose heads came before
        # their bodies; of all that ended when they had begun, when they ended, and the status, below 0 if it came before.
        self._begun: list[float] = []
        self._accepted: list[float] = []
        self._ends: list[Any] = []

    def begin(self, now: float, attempt: ShortAttempt, total: float, latest: float | None) -> float:
        """Begin an attempt, unless the machine has to decide whether it may be made: nothing is changed then.

        Args:
            now: the instant.
            attempt: is told what it begins with.
            total: seconds from now on after which the answer becomes worthless.
            latest: the instant of that, where it is known; `total` does not count then.

        Returns:
            The seconds that it may take, above 0. 0: it was not begun.
        """
        if (now >= self._until or not self._room) and not self._look(now):
            return 0.0
        state = self.state
        deadline_at = now + total if latest is None else latest
        left = deadline_at - now - self._reserve
        if left < self._least or state.in_use >= self._most:
            return 0.0
        self._room -= 1
        state.in_use += 1
        self._begun += (now, left)
        attempt.way = self
        attempt.started_at = now
        attempt.deadline_at = deadline_at
        attempt.running = running = self._running
        if self._numbered and running is not None and self._recent is not None:
            attempt.permit = permit = self._recent.draw()
            running[permit] = now
        else:
            attempt.permit = self._permit
        if left >= self._limit:
            attempt.until = now + self._limit
            return self._limit
        attempt.until = now + left
        attempt.by_budget = True
        attempt.cut_short = left < self._fair
        return left

    def head(self, attempt: ShortAttempt, status: int) -> None:
        """Take a good head, a status below 400, whose body is to come."""
        attempt.outcome = OUTCOMES[status // 100]
        attempt.status = -status
        self._accepted.append(attempt.started_at)

    def end(self, now: float, attempt: ShortAttempt, status: int = 0) -> None:
        """Take the end of a good answer: it was complete, or its body was closed early. Once.

        Args:
            now: the instant.
            attempt: the attempt.
            status: of the head, where that has not been told before.
        """
        attempt.over = True
        state = self.state
        if state.line is None and state.in_use > 0:
            state.in_use -= 1
        else:
            state.give_slot()
        self._ends += (attempt.started_at, now, status or attempt.status)
        if now >= self._until or attempt.running is not self._running:
            self._judge(now, attempt)
        elif not self._numbered or self._was_running(attempt):
            self._succeeded()
        else:
            self._judge(now, attempt)

    def settle(self) -> None:
        """Count what was written down, so that everything is as if the machine had done it. The next attempt looks anew."""
        self._room, self._until = 0, -math.inf
        state = self.state
        if self._begun:
            state.begun_all(self._begun[::2], self._begun[1::2])
            self._begun.clear()
        if self._accepted or self._ends:
            begun, ended, statuses = self._ends[::3], self._ends[1::3], self._ends[2::3]
            if state.throttle is not None:
                told = begun
                if min(statuses, default=0) < 0:
                    told = [start for start, status in zip(begun, statuses, strict=True) if status > 0]
                state.throttle.accepted_all(self._accepted + told)
            state.ended_all(statuses, list(map(sub, ended, begun)))
            self._accepted.clear()
            self._ends.clear()

    def budget(self, now: float, attempt: ShortAttempt) -> float:
        """Return what an attempt may still take, in seconds: what is told to the dependency."""
        deadline_at = attempt.until if attempt.deadline_at is None else attempt.deadline_at
        return max(0.0, min(attempt.until, deadline_at - self._reserve) - now)

    def _look(self, now: float) -> bool:
        """Look how far nothing can come between; return whether an attempt may begin."""
        self.settle()
        room, until = self.MOST, math.inf
        if self.state.throttle is not None:
            free, until = self.state.throttle.room(now)
            room = min(room, free)
        breaker = self._breaker
        if breaker is not None:
            if now >= breaker.quiet_until and breaker.state is CLOSED and not breaker.recent.has_slow(now):
                breaker.notice(now)  # Time alone opens nothing here.
            self._permit, self._running = breaker.closed_permit, breaker.recent.running
            until = min(until, breaker.quiet_until)
        if not room or now >= until:
            return False
        self._room, self._until = room, until
        return True

    def _was_running(self, attempt: ShortAttempt) -> bool:
        """Take an attempt from those that may become slow; return whether it was one of them."""
        running, permit = attempt.running, attempt.permit
        return running is not None and permit is not None and running.pop(permit, None) is not None

    def _judge(self, now: float, attempt: ShortAttempt) -> None:
        """Tell the breaker of a good attempt, however long ago anybody has looked at it."""
        breaker, permit = self._breaker, attempt.permit
        if breaker is None or permit is None:
            return
        if (
            attempt.running is breaker.recent.running
            and now < breaker.quiet_until
            and (not self._numbered or self._was_running(attempt))
        ):
            self._succeeded()
        else:
            self._until = -math.inf
            breaker.record(now, permit, failed=False)


def short_way(state: DependencyState) -> ShortWay | None:
    """Return the short way of a dependency; None: it has none."""
    measured = (state.groups, state.group.timeout, state.hedging, state.adaptive)
    return ShortWay(state) if all(each is None for each in measured) else None
