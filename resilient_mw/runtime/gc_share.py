"""How much of the time garbage collections take."""

from __future__ import annotations

import gc
from collections.abc import Callable

from resilient_mw.core.ports import Clock
from resilient_mw.runtime.clocks import MONOTONIC


class GcShare:
    """Measures garbage collections from `start` to `stop`; without it, it costs nothing.

    All threads of the process stand still during a collection, so it is everybody's time. A collection costs two calls
    more while it is measured.
    """

    __slots__ = ("_began", "_clock", "_read_at", "_read_spent", "_spent")

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._began: float | None = None
        self._spent = 0.0
        self._read_at: float | None = None
        self._read_spent = 0.0

    def start(self) -> None:
        """Measure from now on. Harmless if it does already, and where the interpreter tells nothing (PyPy)."""
        callbacks = _callbacks()
        if callbacks is not None and self._collection not in callbacks:
            self._began = None
            self._read_at, self._read_spent = self._clock.now(), self._spent
            callbacks.append(self._collection)

    def stop(self) -> None:
        """Measure no longer. Harmless if it does not."""
        callbacks = _callbacks()
        if callbacks is not None and self._collection in callbacks:
            callbacks.remove(self._collection)
        self._read_at = None

    def reading(self) -> float | None:
        """Return the share, 0 to 1, of the time since the last reading or the start; None if it is not measured.

        One reader only: each reading begins a new interval.
        """
        if self._read_at is None:
            return None
        now, spent, began = self._clock.now(), self._spent, self._began
        if began is not None:  # another thread, within a collection that has let go of the interpreter
            spent += max(0.0, now - began)
        elapsed, share = now - self._read_at, spent - self._read_spent
        if elapsed <= 0.0:
            return None
        self._read_at, self._read_spent = now, spent
        return min(1.0, max(0.0, share / elapsed))

    def _collection(self, phase: str, _info: object) -> None:
        now = self._clock.now()
        if phase == "start":
            self._began = now
        elif self._began is not None:
            self._spent += now - self._began
            self._began = None


def _callbacks() -> list[Callable[[str, dict[str, int]], None]] | None:
    return getattr(gc, "callbacks", None)
