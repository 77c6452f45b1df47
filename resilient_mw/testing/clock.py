"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.core.checks import require_number
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.alarm import ALARM
from resilient_mw.runtime.shadow import make_guard

CEILING = 1e6
"""Seconds. Far above it a float no longer tells instants apart that a timer must, and a loop could spin for ever."""


class ManualClock:
    """A monotonic clock that moves only by hand. Starts at 0. Safe to use from any thread.

    Give it to a policy with `use_clock()`, or to whatever takes a clock. What waits in real time (a thread or a
    coroutine in the wait queue) does not notice that it has moved; decisions and deadlines do.
    """

    __slots__ = ("_lock", "_now")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0.0

    def now(self) -> float:
        """Return the seconds that it was advanced so far."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Let time pass and return the new instant. `on_cancel` callbacks whose deadline has come are started.

        Raises:
            ValueError: `seconds` is negative or no number, or the clock would pass 1,000,000.
        """
        require_number("seconds", seconds)
        with self._lock:
            moved = self._now + seconds
            if moved > CEILING:
                raise ValueError(f"seconds={seconds!r} is not allowed: the clock would pass {CEILING:g}")
            self._now = moved
        ALARM.poke()
        return moved


def use_clock(policy: ServerPolicy, clock: Clock) -> None:
    """Have everything under a policy read the time from `clock`, before it is given to a middleware.

    Memory and garbage collections are not measured for the overload level then.

    Fields that are overridden at the middleware make another policy, which this does not reach: set them here.

    Raises:
        RuntimeError: the policy is in use already.
    """
    if policy.owner:
        raise RuntimeError(
            f"the policy {policy.name!r} is in use already: call use_clock() before any middleware"
        )
    policy.owner.append(make_guard(policy, clock, process=None))
