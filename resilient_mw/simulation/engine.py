"""The virtual clock: events in order of time, and nothing else moves it.

The clock starts at 0 and has a ceiling: near 1e9 seconds the resolution of a float is too coarse for timers of
microseconds, and a loop that waits for such a timer would spin for ever.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

CEILING = 1e6
"""Seconds; no event can be scheduled later."""

MOST_AT_ONE_INSTANT = 1_000_000
"""Events at one instant before the engine concludes that time will never move on."""

Call = Callable[[], None]


class Timer:
    """A scheduled event.

    Attributes:
        at: its instant.
    """

    __slots__ = ("_call", "at")

    def __init__(self, at: float, call: Call) -> None:
        self.at = at
        self._call: Call | None = call

    @property
    def pending(self) -> bool:
        """Whether the event is still to come."""
        return self._call is not None

    def take(self) -> Call | None:
        """Return the event's function and mark the event as past; None if it was cancelled."""
        call, self._call = self._call, None
        return call


class Engine:
    """Runs events in order of their instants; events at one instant run in the order in which they were scheduled."""

    __slots__ = ("_cancelled", "_heap", "_now", "_sequence")

    SLACK = 1024

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._cancelled = 0

    @property
    def now(self) -> float:
        """The instant, in seconds since the start."""
        return self._now

    def __len__(self) -> int:
        """Return the number of events to come."""
        return len(self._heap) - self._cancelled

    def at(self, instant: float, call: Call) -> Timer:
        """Schedule an event.

        Raises:
            ValueError: the instant is in the past or beyond the ceiling.
        """
        if not self._now <= instant <= CEILING:
            raise ValueError(
                f"at={instant!r} is not allowed: it must be an instant from {self._now!r} (now) to {CEILING!r}"
            )
        timer = Timer(instant, call)
        self._sequence += 1
        heapq.heappush(self._heap, (instant, self._sequence, timer))
        return timer

    def after(self, delay: float, call: Call) -> Timer:
        """Schedule an event `delay` seconds from now; with 0, after all that are scheduled for this instant.

        Raises:
            ValueError: the delay is negative, or its end beyond the ceiling.
        """
        return self.at(self._now + delay, call)

    def cancel(self, timer: Timer) -> None:
        """Forget an event. Harmless if it has happened or was cancelled before."""
        if timer.take() is None:
            return
        self._cancelled += 1
        if 2 * self._cancelled > len(self._heap) + self.SLACK:
            self._heap = [item for item in self._heap if item[2].pending]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def run(self, until: float = math.inf) -> None:
        """Run all events up to and including `until`, and leave the clock there; by default until none is left.

        Raises:
            RuntimeError: the events of one instant never come to an end.
        """
        at_once = 0
        while self._heap and self._heap[0][0] <= until:
            instant, _, timer = heapq.heappop(self._heap)
            call = timer.take()
            if call is None:
                self._cancelled -= 1
                continue
            at_once = at_once + 1 if instant == self._now else 0
            if at_once > MOST_AT_ONE_INSTANT:
                raise RuntimeError(
                    f"more than {MOST_AT_ONE_INSTANT} events at {instant!r}: time does not move on"
                )
            self._now = instant
            call()
        if until != math.inf:
            self._now = max(self._now, until)
