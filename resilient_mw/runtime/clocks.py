"""The one clock of the product. No other module reads the time."""

from __future__ import annotations

from time import monotonic, time, time_ns


class MonotonicClock:
    """The monotonic clock of this machine, in seconds."""

    __slots__ = ()

    now = staticmethod(monotonic)


MONOTONIC = MonotonicClock()


def wall_clock() -> float:
    """Return seconds since 1970. Only for dates on the wire: it may jump, so it never measures a duration."""
    return time()


def wall_clock_ns() -> int:
    """Return whole nanoseconds since 1970, to compare an instant that another machine has written with."""
    return time_ns()
