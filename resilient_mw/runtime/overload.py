"""The overload of one policy: who looks when, what is told, and what follows from it.

Nobody has a timer for it. Under ASGI the tick of the event loop looks, which lives while something is in flight; under
WSGI requests do when they come and go, at most every 50 ms. Because nobody looks while nothing happens, the end of a crowd
is looked at when it comes: otherwise the last reading would go on to say "full" while nobody is there.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence

from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.overload import OverloadLevel
from resilient_mw.admission.overload_policy import OverloadPolicy, OverloadState, Signal
from resilient_mw.admission.overload_readings import admission_readings
from resilient_mw.admission.readiness import readiness
from resilient_mw.core.events import OverloadChanged
from resilient_mw.core.ports import Clock
from resilient_mw.core.snapshot import OverloadSnapshot, Readiness
from resilient_mw.runtime.call_readings import CallReadings, Reading, call_readings
from resilient_mw.runtime.flush import Listeners
from resilient_mw.runtime.loop_lag import LoopLag
from resilient_mw.runtime.process_readings import EVERY, PROCESS, TOLD, ProcessReadings

LOOK_EVERY = 0.05
"""Seconds between two looks of a service that has no event loop."""


class Overload:
    """Measures the overload of one policy, under the lock of its guard. Safe to use from any thread.

    Args:
        policy: what counts as overload; None: nothing is measured, and all is well.
        controller: tells of slots and queue, and is told when to shed.
        lock: the lock of the controller.
        listeners: hear of each change of the state.
        clock: the one clock.
        process: where the readings of the process come from; None: from nowhere.

    Attributes:
        level: 0 to 1, as of the last look.
        state: what it means.
        look_at: the instant from which on somebody without a tick should look; never, if nothing is measured.
        crowded: whether the last look found more than a few slots taken, or somebody waiting.
        listeners: those of the guard.
    """

    __slots__ = (
        "__weakref__", "_calls", "_calm", "_clock", "_controller", "_lock", "_measure", "_policy", "_process",
        "_process_at", "_wanted", "crowded", "level", "listeners", "look_at", "state",
    )  # fmt: skip

    def __init__(
        self,
        policy: OverloadPolicy | None,
        controller: AdmissionController,
        lock: threading.Lock,
        listeners: Listeners,
        clock: Clock,
        *,
        process: ProcessReadings | None = PROCESS,
    ) -> None:
        self.level = 0.0
        self.state = OverloadState.NORMAL
        self.look_at = math.inf
        self.crowded = False
        self._policy = policy
        self._controller = controller
        self._lock = lock
        self.listeners = listeners
        self._clock = clock
        self._process = process
        self._process_at = -math.inf
        self._wanted: frozenset[Signal] = frozenset()
        self._measure: OverloadLevel | None = None
        self._calm = 0
        self._calls: CallReadings | None = None
        if policy is not None:
            self.look_at = -math.inf
            self._measure = OverloadLevel(policy, clock.now())
            if process is not None:
                self._calls = call_readings(policy)
                self._wanted = TOLD & policy.bands.keys()
                if Signal.GC in self._wanted:
                    process.want(self)
        self.resize(controller.slots.limit)

    def resize(self, limit: int) -> None:
        """Note how many slots there are."""
        policy = self._policy
        if policy is not None:
            self._calm = min(limit - 1, limit if policy.slots is None else int(policy.slots.healthy * limit))

    def look(self, *more: Reading) -> None:
        """Read what admission and the process tell, and let the level follow; `more` is what the caller has read.

        An error of our own is counted, and leaves the level as it is.
        """
        measure = self._measure
        if measure is None:
            return
        try:
            self._look(measure, more)
        except Exception as error:  # noqa: BLE001  whatever goes wrong here, requests must be served
            self.listeners.failed("overload", error)

    def report(self, signal: Signal, reading: float | None, source: str = "") -> None:
        """Take the reading of somebody else, as `OverloadLevel.report` does."""
        if self._measure is None:
            return
        with self._lock:
            self._measure.report(self._clock.now(), signal, reading, source)
            change = self._publish(self._measure)
        self._tell(change)

    def thin_out(self) -> None:
        """Look, if a crowd has gone since the last look."""
        if self._controller.slots.in_use <= self._calm and not self._controller.waiting:
            self.look()

    def readiness(self, more: Sequence[str] = ()) -> Readiness:
        """Return whether requests should be sent here, as of now; `more` is why not, but for drain and load."""
        self.look()
        with self._lock:
            return readiness(
                self._policy,
                more,
                draining=self._controller.draining,
                level=self.level,
                state=self.state,
                worst=None if self._measure is None else self._measure.worst(),
            )

    def snapshot(self) -> OverloadSnapshot | None:
        """Return the figures as of the last look; None if nothing is measured. Under the lock."""
        return None if self._measure is None else self._measure.snapshot()

    def _look(self, measure: OverloadLevel, more: tuple[Reading, ...]) -> None:
        now = self._clock.now()
        told: dict[Signal, float | None] = {}
        if self._process is not None and now >= self._process_at:
            self._process_at = now + EVERY
            told = self._read(self._process)
        if self._calls is not None and now >= self._calls.due_at:
            more += self._told_by(self._calls, now)
        with self._lock:
            now = self._clock.now()
            controller = self._controller
            for signal, reading in admission_readings(controller, now).items():
                measure.report(now, signal, reading)
            for signal, value in told.items():
                measure.report(now, signal, value)
            for signal, value, source in more:
                measure.report(now, signal, value, source)
            measure.advance(now)
            self.look_at = now + LOOK_EVERY
            self.crowded = controller.waiting > 0 or controller.slots.in_use > self._calm
            change = self._publish(measure)
        self._tell(change)

    def _read(self, process: ProcessReadings) -> dict[Signal, float | None]:
        try:
            return process.read(self._wanted)
        except Exception as error:  # noqa: BLE001  what is not known has no say, and the rest has
            self.listeners.failed("reading of the process", error)
            return {}

    def _told_by(self, calls: CallReadings, now: float) -> tuple[Reading, ...]:
        try:
            return calls.read(now)
        except Exception as error:  # noqa: BLE001  as above
            self.listeners.failed("reading of dependencies", error)
            return ()

    def _publish(self, measure: OverloadLevel) -> OverloadChanged | None:
        """Show the level and the state to everybody; return the change, if there is one. Under the lock."""
        before, after = self.state, measure.state
        self.level = measure.level
        if after is before:
            return None
        self.state = after
        self._controller.overloaded = after is OverloadState.OVERLOADED
        worst = measure.worst()
        return OverloadChanged(before.value, after.value, measure.level, "" if worst is None else worst.value)

    def _tell(self, change: OverloadChanged | None) -> None:
        if change is not None and self.listeners:
            self.listeners.emit(change)


_numbers = itertools.count(1)


class LoopWatch:
    """Lets the tick of one event loop look. All methods belong to the loop's thread."""

    __slots__ = ("_lag", "_overload", "_source")

    def __init__(self, overload: Overload) -> None:
        self._overload = overload
        self._lag = LoopLag()
        self._source = f"loop {next(_numbers)}"

    def begin(self) -> None:
        """The tick begins, after nothing was in flight: let the level be that of now and not of then."""
        if self._overload.level > 0.0:
            self._overload.look()

    def tick(self, expected_at: float, now: float) -> None:
        """A tick: it was expected at one instant and came at another."""
        self._lag.sample(expected_at, now)
        self._overload.look((Signal.LOOP_LAG, self._lag.reading(now), self._source))

    def rest(self) -> None:
        """The tick ends, because nothing is in flight: nobody waits for this loop."""
        self._overload.look((Signal.LOOP_LAG, 0.0, self._source))
