"""How long the connections of one pool are waited for, for the overload level."""

from __future__ import annotations

from resilient_mw.core import ports
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.clocks import MONOTONIC


class PoolWaits:
    """Counts who came to a pool, and for how long they waited. Safe to use from any thread, and at a collection.

    It takes no lock: a forgotten wait may be ended by the garbage collector, at any allocation. Two threads that count at
    the same instant may count as one; nobody is ever left waiting in the books.

    Args:
        clock: the one clock.
    """

    __slots__ = ("__weakref__", "_came", "_clock", "_since", "_waited")

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._came = 0
        self._waited = 0.0
        self._since: dict[object, float] = {}
        ports.register_pool(self)

    def passed(self) -> None:
        """Count one that got a connection without waiting."""
        self._came += 1

    def begin(self) -> object:
        """Note that somebody begins to wait; return what `end` wants."""
        wait = object()
        self._since[wait] = self._clock.now()
        return wait

    def end(self, wait: object) -> None:
        """Note that he got his connection, or gave up."""
        began = self._since.pop(wait, None)
        if began is not None:
            self._came += 1
            self._waited += self._clock.now() - began

    def waits(self) -> tuple[int, int, float]:
        """Return how many have come and no longer wait, how many wait, and the seconds waited in all, up to now."""
        now = self._clock.now()
        since = list(self._since.values())
        return self._came, len(since), self._waited + sum(now - began for began in since)
