"""What counts as overload: the signals, the band of each, and the thresholds of the states."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from resilient_mw.core.checks import require_flag, require_name, require_number


class Signal(StrEnum):
    """What the overload level is made of. The values are stable labels, and the names of the policy's fields."""

    SLOTS = "slots"
    QUEUE = "queue"
    QUEUE_AGE = "queue_age"
    LOOP_LAG = "loop_lag"
    MEMORY = "memory"
    MEMORY_PRESSURE = "memory_pressure"
    POOL_WAIT = "pool_wait"
    GC = "gc"
    DEPENDENCY_LATENCY = "dependency_latency"
    DEPENDENCY_ERRORS = "dependency_errors"


REPORTED = frozenset({Signal.POOL_WAIT, Signal.DEPENDENCY_LATENCY, Signal.DEPENDENCY_ERRORS})
"""What others measure: dependencies and pools of this process, and whoever calls `ServerPolicy.report`."""


class OverloadState(StrEnum):
    """What the level means, with hysteresis. The values are stable labels."""

    NORMAL = "normal"
    ELEVATED = "elevated"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True)
class Band:
    """How the reading of one signal becomes a level: 0 up to `healthy`, `most` from `overloaded` on, linear between.

    Attributes:
        healthy: the highest reading that is nothing to speak of.
        overloaded: the lowest reading that is as bad as it gets; above `healthy`.
        most: the level that this signal can reach alone; below `enter_overloaded` it can elevate and no more.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    healthy: float
    overloaded: float
    most: float = 1.0

    def __post_init__(self) -> None:
        require_number("Band.healthy", self.healthy, low=0, high=1e9)
        require_number("Band.overloaded", self.overloaded, low=self.healthy, high=1e9)
        if self.overloaded == self.healthy:
            raise ValueError(
                f"Band.overloaded={self.overloaded!r} is not allowed: it must be above healthy, {self.healthy!r}"
            )
        require_number("Band.most", self.most, low=0.01, high=1)

    def level(self, reading: float) -> float:
        """Return the level of a reading, from 0 to `most`."""
        if reading <= self.healthy:
            return 0.0
        if reading >= self.overloaded:
            return self.most
        return self.most * ((reading - self.healthy) / (self.overloaded - self.healthy))


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadPolicy:
    """When a service counts as overloaded. None in place of a band: the signal is ignored.

    Overload begins with waiting: full slots alone only elevate, since a service may run full and well. Nor does a
    dependency that is slow or fails make this service overloaded by itself: most of its work may need another one.

    Attributes:
        slots: slots in use / the limit.
        queue: places taken in the wait queue / its length. Without a queue: 1 while no slot is free.
        queue_age: how long the oldest waiter has waited / how long it would wait at most.
        loop_lag: seconds that the event loop is behind its timers.
        memory: memory in use / the limit of the cgroup.
        memory_pressure: the share of the last 10 s in which something stood still for want of memory.
        pool_wait: seconds that a connection of a pool was waited for.
        gc: the share of the time that garbage collections took.
        dependency_latency: how long attempts take / the timeout of the dependency.
        dependency_errors: failed attempts / attempts.
        dependencies: names of those whose latency and errors count; None: all that are called in this process.
        rise: seconds; the time constant with which the level follows readings that are worse than it.
        fall: seconds; the time constant with which it follows better ones. At least `rise`: protection must not come
            late, and recovery is believed only when it lasts.
        enter_elevated: the level from which on the state is `elevated`.
        leave_elevated: the level below which it is `normal` again.
        enter_overloaded: the level from which on the state is `overloaded`.
        leave_overloaded: the level below which it is no longer.
        dwell: seconds that a state lasts at least before a better one follows. A worse one follows at once.
        stale_after: seconds after which a reading that was not renewed is forgotten.
        readiness_falls_on_overload: whether `policy.readiness()` says no while the state is `overloaded`. Off: a load
            balancer that takes an overloaded instance out gives its load to the others, which may be next.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    slots: Band | None = Band(0.8, 1.0, most=0.6)
    queue: Band | None = Band(0.25, 0.9)
    queue_age: Band | None = Band(0.25, 0.75)
    loop_lag: Band | None = Band(0.02, 0.2)
    memory: Band | None = Band(0.85, 0.97)
    memory_pressure: Band | None = Band(0.05, 0.4)
    pool_wait: Band | None = Band(0.05, 0.5)
    gc: Band | None = Band(0.05, 0.3)
    dependency_latency: Band | None = Band(0.5, 1.0, most=0.6)
    dependency_errors: Band | None = Band(0.1, 0.5, most=0.6)
    dependencies: Collection[str] | None = None
    rise: float = 1.0
    fall: float = 3.0
    enter_elevated: float = 0.5
    leave_elevated: float = 0.3
    enter_overloaded: float = 0.8
    leave_overloaded: float = 0.6
    dwell: float = 3.0
    stale_after: float = 10.0
    readiness_falls_on_overload: bool = False

    def __post_init__(self) -> None:
        for signal in Signal:
            band = getattr(self, signal.value)
            if band is not None and not isinstance(band, Band):
                raise ValueError(
                    f"OverloadPolicy.{signal.value}={band!r} is not allowed: it must be a Band or None"
                )
        _check_names(self.dependencies)
        require_number("OverloadPolicy.rise", self.rise, low=0.01, high=3600)
        require_number("OverloadPolicy.fall", self.fall, low=self.rise, high=3600)
        require_number("OverloadPolicy.dwell", self.dwell, low=0, high=3600)
        require_number("OverloadPolicy.stale_after", self.stale_after, low=0.1, high=3600)
        require_flag("OverloadPolicy.readiness_falls_on_overload", self.readiness_falls_on_overload)
        # The smoothed level only comes near its ends, so a threshold at 0 or 1 might never be passed.
        for name in ("enter_elevated", "leave_elevated", "enter_overloaded", "leave_overloaded"):
            require_number(f"OverloadPolicy.{name}", getattr(self, name), low=0.01, high=0.99)
        for state in ("elevated", "overloaded"):
            leave, enter = getattr(self, f"leave_{state}"), getattr(self, f"enter_{state}")
            if leave >= enter:
                raise ValueError(
                    f"OverloadPolicy.leave_{state}={leave!r} is not allowed: it must be below enter_{state}, "
                    f"{enter!r}, or the state would flap"
                )
        for name in ("enter", "leave"):
            elevated, overloaded = getattr(self, f"{name}_elevated"), getattr(self, f"{name}_overloaded")
            if elevated > overloaded:
                raise ValueError(
                    f"OverloadPolicy.{name}_elevated={elevated!r} is not allowed: it must be at most "
                    f"{name}_overloaded, {overloaded!r}"
                )

    @property
    def bands(self) -> dict[Signal, Band]:
        """The bands of the signals that count."""
        found = {signal: getattr(self, signal.value) for signal in Signal}
        return {signal: band for signal, band in found.items() if band is not None}


def _check_names(names: object) -> None:
    if names is None:
        return
    if isinstance(names, str) or not isinstance(names, Collection):
        raise ValueError(
            f"OverloadPolicy.dependencies={names!r} is not allowed: it must be a collection of names, or None"
        )
    for name in names:
        require_name("OverloadPolicy.dependencies", name)
