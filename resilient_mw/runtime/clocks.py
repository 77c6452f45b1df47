"""The one clock of the product. No other module reads the time."""

from __future__ import annotations

import functools
from time import monotonic, time, time_ns

from resilient_mw.core.ports import use_process_clock


class MonotonicClock:
    """The monotonic clock of this machine, in seconds."""

    __slots__ = ()

    now = staticmethod(monotonic)


MONOTONIC = MonotonicClock()
use_process_clock(MONOTONIC)


def wall_clock() -> float:
    """Return seconds since 1970. Only for dates on the wire: it may jump, so it never measures a duration."""
    return time()


def wall_clock_ns() -> int:
    """Return whole nanoseconds since 1970, to compare an instant that another machine has written with."""
    return time_ns()


def clock_name(clock: object) -> str | None:
    """Return a name of what a clock counts; two processes in which it is the same read the same clock.

    It says nothing else: a digest of the number that Linux draws at each start, and of the time namespace (a container
    may have one of its own). None where that cannot be known.
    """
    return _machine() if clock is MONOTONIC else None


@functools.cache
def _machine() -> str | None:
    import hashlib
    from pathlib import Path

    try:
        drawn = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        space = Path("/proc/self/ns/time").readlink()
    except (OSError, ValueError):
        return None
    return hashlib.blake2b(f"{drawn} {space}".encode(), digest_size=6).hexdigest()
