"""What a whole process tells of its health: memory, memory pressure and garbage collections, read once for all."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable

from resilient_mw.admission.overload_policy import Signal
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.gc_share import GcShare
from resilient_mw.runtime.pressure import MemoryPressure

EVERY = 1.0
"""Seconds between two readings of one signal: it costs a few small files each time."""

TOLD = frozenset({Signal.MEMORY, Signal.MEMORY_PRESSURE, Signal.GC})


class ProcessReadings:
    """Reads the signals of this process at most once a second each, whoever asks and how often. Safe from any thread.

    Garbage collections are measured while somebody who wants them is alive, and cost nothing otherwise.

    Args:
        clock: the one clock.
        memory: where memory is read; None: in the files of this system, found at the first reading.
        collections: measures garbage collections.
    """

    def __init__(
        self,
        clock: Clock = MONOTONIC,
        memory: MemoryPressure | None = None,
        collections: GcShare | None = None,
    ) -> None:
        self._clock = clock
        self._memory = memory
        self._collections = GcShare(clock) if collections is None else collections
        self._wanting: list[None] = []  # one token for each; appending and taking one off need no lock
        self._lock = threading.Lock()
        self._known: dict[Signal, tuple[float, float | None]] = {}  # when it was read, and what

    def want(self, who: object) -> None:
        """Measure garbage collections for as long as `who` is alive."""
        self._wanting.append(None)
        self._collections.start()
        with self._lock:
            # What was measured for a moment only says nothing.
            self._known.setdefault(Signal.GC, (self._clock.now(), None))
        # No lock: the garbage collector calls it, at any allocation.
        weakref.finalize(who, self._no_longer).atexit = False

    def read(self, wanted: Iterable[Signal]) -> dict[Signal, float | None]:
        """Return the readings of some signals, at most a second old; None where the system does not tell."""
        with self._lock:
            now = self._clock.now()
            for signal in wanted:
                known = self._known.get(signal)
                if known is None or now - known[0] >= EVERY:
                    self._known[signal] = (now, self._measure(signal))
            return {signal: self._known[signal][1] for signal in wanted}

    def restart(self) -> None:
        """Begin anew in a forked child: a thread that held the lock is not there."""
        self._lock = threading.Lock()
        self._known.clear()

    def _measure(self, signal: Signal) -> float | None:
        if signal is Signal.GC:
            self._collections.start()  # it may have been stopped just when somebody else began to want it
            return self._collections.reading()
        if self._memory is None:
            self._memory = MemoryPressure()
        return self._memory.memory() if signal is Signal.MEMORY else self._memory.pressure()

    def _no_longer(self) -> None:
        self._wanting.pop()
        if not self._wanting:
            self._collections.stop()


PROCESS = ProcessReadings()
"""The one of this process, shared by all guards."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PROCESS.restart)
