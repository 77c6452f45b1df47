"""What the calls of this process tell of its health: dependencies that fail or are slow, connections that are waited for.

Dependencies and pools count for themselves, whoever asks; here the counts of two instants are compared, when the overload
level is looked at and at most once a second. The way of a call tells nobody anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from resilient_mw.admission.overload_policy import OverloadPolicy, Signal
from resilient_mw.core import ports
from resilient_mw.core.ports import PoolSource
from resilient_mw.runtime.dependency_owner import DependencyOwner

EVERY = 1.0
"""Seconds between two readings."""
LEAST_ATTEMPTS = 10
"""Attempts that a reading is made of at least: one that fails in a quiet hour is no overload."""
LONGEST = 10.0
"""Seconds after which fewer than that are forgotten: they say nothing about now."""
POOLS = "pools"
"""The source of the readings of all pools."""

Reading = tuple[Signal, float | None, str]
"""What to report: signal, reading, source."""
SIGNALS = frozenset({Signal.DEPENDENCY_ERRORS, Signal.DEPENDENCY_LATENCY, Signal.POOL_WAIT})


class Base(NamedTuple):
    """The counts of a dependency at an instant."""

    at: float
    good: int
    bad: int


class CallReadings:
    """Compares counts of dependencies and pools for one policy. Not thread-safe in what it reads: see `read`.

    Args:
        wanted: the signals that count.
        names: the dependencies that count; None: all.

    Attributes:
        due_at: the instant of the next reading.
    """

    __slots__ = ("_bases", "_names", "_pools", "_wanted", "due_at")

    def __init__(self, wanted: Collection[Signal], names: Collection[str] | None = None) -> None:
        self.due_at = 0.0
        self._wanted = frozenset(wanted)
        self._names = None if names is None else frozenset(names)
        self._bases: WeakKeyDictionary[DependencyOwner, Base] = WeakKeyDictionary()
        self._pools: WeakKeyDictionary[PoolSource, tuple[int, float]] = WeakKeyDictionary()

    def read(self, now: float) -> tuple[Reading, ...]:
        """Return what has become of calls since the last reading; what is new begins to count now.

        Two threads that read at once may count the same attempts twice, or not at all: the readings are shares.
        """
        self.due_at = now + EVERY
        return tuple(
            (signal, reading, source)
            for signal, reading, source in (*self._of_dependencies(now), *self._of_pools())
            if signal in self._wanted
        )

    def _of_dependencies(self, now: float) -> Iterator[Reading]:
        for owner in ports.dependency_sources():
            if not isinstance(owner, DependencyOwner):
                continue
            name = owner.dependency.name
            if self._names is not None and name not in self._names:
                continue
            good, bad, share = owner.judged()
            before = self._bases.get(owner)
            made = 0 if before is None else good + bad - before.good - before.bad
            if before is None or not made or (made < LEAST_ATTEMPTS and now - before.at >= LONGEST):
                self._bases[owner] = Base(now, good, bad)
                continue
            if made < LEAST_ATTEMPTS:
                continue
            self._bases[owner] = Base(now, good, bad)
            yield Signal.DEPENDENCY_ERRORS, (bad - before.bad) / made, name
            if good > before.good and share:
                yield Signal.DEPENDENCY_LATENCY, share, name

    def _of_pools(self) -> Iterator[Reading]:
        """The pool that is worst: how long those who came since the last reading, or wait, did so in between, on average."""
        worst: float | None = None
        for pool in ports.pool_sources():
            came, waiting, waited = pool.waits()
            before_came, before_waited = self._pools.get(pool, (0, 0.0))
            self._pools[pool] = (came, waited)
            if came or waiting:
                each = max(0.0, waited - before_waited) / max(1, came - before_came + waiting)
                worst = each if worst is None else max(worst, each)
        if worst is not None:
            yield Signal.POOL_WAIT, worst, POOLS


def call_readings(policy: OverloadPolicy) -> CallReadings | None:
    """Return what reads for a policy; None if nothing of it counts."""
    wanted = SIGNALS & policy.bands.keys()
    return CallReadings(wanted, policy.dependencies) if wanted else None
