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
from bisect import bisect_left

from resilient_mw.calls.attempt import Attempt
from resilient_mw.calls.breaker import Permit
from resilient_mw.calls.state import FAIR, DependencyState
from resilient_mw.core.snapshot import BUCKETS

OUTCOMES = ("other", "1xx", "2xx", "3xx", *["other"] * 6)
"""The labels of good heads, by the first digit of their status."""


class ShortAttempt(Attempt):
    """An attempt on the short way.

    Attributes:
        deadline_at: the instant at which the answer of its call becomes worthless; None: it has not begun.
        running: what the breaker knew to be under way at its start.
        way: the short way that it went.
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
    over = False

    @property
    def under_way(self) -> bool:
        """See above."""
        return self.deadline_at is not None and not self.over


class ShortWay:
    """The short way of one dependency. See the module.

    Args:
        state: its state.

    Attributes:
        state: the same.
    """

    __slots__ = (
        "_breaker", "_fair", "_group", "_least", "_limit", "_most", "_numbered", "_recent", "_reserve", "state",
    )  # fmt: skip

    def __init__(self, state: DependencyState) -> None:
        self.state = state
        self._group = state.group
        self._breaker = breaker = state.breaker
        self._recent = None if breaker is None else breaker.recent
        self._numbered = breaker is not None and breaker.recent.numbered
        self._reserve, self._least, self._limit = state.reserve, state.least, state.timeout
        self._fair = min(state.fair, FAIR * state.timeout)
        self._most = math.inf if state.bulkhead is None else state.bulkhead

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
        state, breaker = self.state, self._breaker
        deadline_at = now + total if latest is None else latest
        left = deadline_at - now - self._reserve
        if left < self._least or state.in_use >= self._most:
            return 0.0
        if breaker is not None and now >= breaker.quiet_until:
            breaker.notice(now)
            if now >= breaker.quiet_until:
                return 0.0
        if state.throttle is not None and not state.throttle.takes(now):
            return 0.0
        state.calls += 1
        state.in_use += 1
        self._group.under_way += 1
        if state.budget is not None:
            state.budget.call(now)
        if left != math.inf:
            budgets = state.budgets
            budgets.counts[bisect_left(BUCKETS, left)] += 1
            budgets.total += left
        if breaker is not None and self._recent is not None:
            attempt.running = running = self._recent.running
            if self._numbered:
                attempt.permit = permit = self._recent.draw()
                running[permit] = now
            else:
                attempt.permit = breaker.closed_permit
        attempt.way = self
        attempt.started_at = now
        attempt.deadline_at = deadline_at
        if left >= self._limit:
            attempt.until = now + self._limit
            return self._limit
        attempt.until = now + left
        attempt.by_budget = True
        attempt.cut_short = left < self._fair
        return left

    def head(self, attempt: ShortAttempt, status: int) -> None:
        """Take a good head: a status below 400. The attempt is delivered."""
        attempt.outcome = OUTCOMES[status // 100]
        if self.state.throttle is not None:
            self.state.throttle.ended(attempt.started_at, accepted=True)

    def end(self, now: float, attempt: ShortAttempt) -> None:
        """Take the end of the body of an attempt that was delivered: it was complete, or closed early. Once."""
        attempt.over = True
        state = self.state
        state.give_slot()
        state.attempts[attempt.outcome] = state.attempts.get(attempt.outcome, 0) + 1
        self._group.under_way -= 1
        state.good += 1
        seconds = now - attempt.started_at
        state.seconds.add(seconds)
        state.learn(seconds)
        breaker, recent, permit = self._breaker, self._recent, attempt.permit
        if breaker is None or recent is None or permit is None:
            return
        running = attempt.running
        if (
            running is recent.running
            and now < breaker.quiet_until
            and (running.pop(permit, None) is not None if self._numbered else True)
        ):
            recent.succeeded()
        else:
            breaker.record(now, permit, failed=False)

    def budget(self, now: float, attempt: ShortAttempt) -> float:
        """Return what an attempt may still take, in seconds: what is told to the dependency."""
        deadline_at = attempt.until if attempt.deadline_at is None else attempt.deadline_at
        return max(0.0, min(attempt.until, deadline_at - self._reserve) - now)


def short_way(state: DependencyState) -> ShortWay | None:
    """Return the short way of a dependency; None: it has none."""
    measured = (state.groups, state.group.timeout, state.hedging, state.adaptive)
    return ShortWay(state) if all(each is None for each in measured) else None
