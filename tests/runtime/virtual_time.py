"""Virtual time for the gates: an event loop that jumps to its next timer, and a bench with a guard on the same clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, TypeVar

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import RouteEntry, Waiter
from resilient_mw.core.marks import Mark
from resilient_mw.runtime.guard import Guard

Result = TypeVar("Result")

CEILING = 1e6
"""Seconds. Far above it a float no longer tells instants apart that a timer must, and a loop would spin for ever."""


class VirtualClock:
    """A clock that only its owner moves."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def move_to(self, instant: float) -> None:
        assert instant >= self._now, "a monotonic clock does not go back"
        assert instant <= CEILING, "time runs away: something waits for what never comes"
        self._now = instant


class _Jumping(selectors.SelectSelector):
    """Where everything waits, time jumps to the next timer; where nothing is left to wait for, that is an error."""

    def __init__(self, clock: VirtualClock, early: float) -> None:
        super().__init__()
        self._clock = clock
        self._early = early

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits and no timer is set: a wake-up was lost")
        self._clock.move_to(self._clock.now() + max(0.0, timeout - self._early))
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time.

    Args:
        clock: its time.
        early: seconds by which it runs timers too early, as a loop may by the resolution of its clock.
    """

    def __init__(self, clock: VirtualClock, early: float = 0.0) -> None:
        super().__init__(_Jumping(clock, early))
        self._virtual = clock
        self._clock_resolution = early + 1e-9  # with none at all it would never run a timer that is just due

    def time(self) -> float:
        return self._virtual.now()

    def timers(self) -> list[float]:
        """The instants of the timers that are set and were not cancelled."""
        return sorted(handle.when() for handle in self._scheduled if not handle.cancelled())  # type: ignore[attr-defined]

    def scheduled(self) -> list[Callable[..., object]]:
        """What these timers will call."""
        return [handle._callback for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


class Bench:
    """A guard in virtual time; keyword arguments are fields of the policy. The queue has 20 places unless said."""

    def __init__(self, clock: Any = None, **policy: Any) -> None:
        self.clock = clock or VirtualClock()
        self.policy = ServerPolicy(**{"queue": 20, **policy})
        self.guard = Guard(self.policy, self.clock, Random(1), None)

    def entry(self, priority: str = "normal", cost: int = 1) -> RouteEntry:
        return self.guard.entries.get("/", Mark(priority, cost))

    def admit(self, priority: str = "normal", budget: float = 60.0) -> None:
        """Arrive, and expect to be admitted."""
        now = self.clock.now()
        assert self.guard.arrive(self.entry(priority), now, now + budget).admitted

    def queue(self, priority: str = "normal", budget: float = 60.0) -> Waiter:
        """Arrive, and expect to be queued."""
        now = self.clock.now()
        waiter = self.guard.arrive(self.entry(priority), now, now + budget).waiter
        assert waiter is not None
        return waiter

    def release(self, priority: str = "normal", cost: int = 1) -> None:
        self.guard.release(self.entry(priority), cost)

    def run(self, main: Callable[[], Coroutine[Any, Any, Result]], *, early: float = 0.0) -> Result:
        """Run a coroutine to its end on a loop in this bench's time; nothing may be left behind."""
        loops: list[VirtualLoop] = []

        def make() -> VirtualLoop:
            loops.append(VirtualLoop(self.clock, early))
            return loops[0]

        with asyncio.Runner(loop_factory=make) as runner:
            result = runner.run(main())
            assert loops[0].timers() == [], "a timer was left behind"
        return result

    def count_ticks(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Return a list that grows by the instant of every tick from now on."""
        ticks: list[float] = []
        tick = self.guard.tick

        def counted(at: float) -> None:
            ticks.append(at)
            tick(at)

        monkeypatch.setattr(self.guard, "tick", counted)
        return ticks

    def at_rest(self) -> bool:
        """Whether nobody runs and nobody waits, and every arrival is accounted for."""
        controller = self.guard.controller
        for entry in self.guard.entries.all():
            known = entry.admitted + sum(entry.refused.values()) + entry.left
            assert entry.arrived == known, f"{entry.arrived} arrived, {known} are accounted for"
        return (controller.slots.in_use, controller.waiting) == (0, 0)

    def refused(self) -> Mapping[str, int]:
        """Refused requests by reason, over all routes."""
        counts: dict[str, int] = {}
        for entry in self.guard.entries.all():
            for reason, count in entry.refused.items():
                counts[reason.value] = counts.get(reason.value, 0) + count
        return counts
