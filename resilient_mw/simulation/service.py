"""The plant: what really does the work, and what it does when there is more of it than it can do.

A plant knows nothing of admission. Everything that it is asked to do queues first come, first served, without a
bound: that is the queue that collapses when nothing stands in front of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from resilient_mw.core.checks import require_integer, require_number
from resilient_mw.simulation.durations import Constant, Duration
from resilient_mw.simulation.engine import Call, Engine, Timer
from resilient_mw.simulation.station import Draw, Station


class Work(Protocol):
    """The work of one request, begun or in the plant's own queue."""

    def stop(self) -> None:
        """Ask it to stop. It reports its end in any case, sooner or (where it cannot be interrupted) later."""
        ...


class Plant(Protocol):
    """What does the work of one server."""

    def accept(self, then: Call) -> None:
        """Read the head of a request."""
        ...

    def resume(self, then: Call) -> None:
        """Go on with a request whose wait is over."""
        ...

    def refuse(self, then: Call) -> None:
        """Write a refusal."""
        ...

    def work(self, duration: Draw, stopped: Call) -> Work:
        """Do the work of a request and report when it has stopped.

        Args:
            duration: called when the work really begins; returns its service time in seconds.
            stopped: called once, when the work has ended or was stopped.
        """
        ...

    @property
    def backlog(self) -> int:
        """Pieces of work that have been asked for and not begun."""
        ...


class PlantKind(Protocol):
    """A declared plant, of which each run builds its own."""

    def build(self, engine: Engine, random: Random, /) -> Plant:
        """Return a plant without work."""
        ...


@dataclass(frozen=True, slots=True)
class Workers:
    """A pool of workers (threads, or a dependency that serves so many at once): each request holds one.

    Attributes:
        count: workers.
        stoppable: whether work that has begun stops when it is cancelled. A thread does not: it goes on to its end.
    """

    count: int
    stoppable: bool = True

    def __post_init__(self) -> None:
        require_integer("Workers.count", self.count, low=1)

    def build(self, engine: Engine, _random: Random, /) -> Plant:
        """Return a plant without work; see `PlantKind`."""
        return _WorkerPlant(engine, self)


class _WorkerPlant:
    def __init__(self, engine: Engine, kind: Workers) -> None:
        self._engine = engine
        self._station = Station(engine, kind.count)
        self._stoppable = kind.stoppable

    @property
    def backlog(self) -> int:
        return self._station.backlog

    def accept(self, then: Call) -> None:
        then()

    def resume(self, then: Call) -> None:
        self._engine.after(0.0, then)

    def refuse(self, then: Call) -> None:
        then()

    def work(self, duration: Draw, stopped: Call) -> Work:
        return _WorkerWork(self._station, duration, stopped, stoppable=self._stoppable)


class _WorkerWork:
    __slots__ = ("_job", "_station", "_stoppable", "_stopped")

    def __init__(self, station: Station, duration: Draw, stopped: Call, *, stoppable: bool) -> None:
        self._station = station
        self._stopped = stopped
        self._stoppable = stoppable
        self._job = station.serve(duration, stopped)

    def stop(self) -> None:
        station, job = self._station, self._job
        if station.withdraw(job) or (self._stoppable and station.interrupt(job)):
            self._stopped()


TYPICAL_IO = Constant(0.020)
"""A quick answer of a database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoop:
    """One event loop: everything, refusals included, needs the one CPU.

    The service time of a request is its CPU time: half of it before and half after a wait for something else.

    Attributes:
        accept, refuse: CPU seconds to read a request and to refuse one.
        io: how long a request waits in between, without the CPU.
    """

    accept: float = 0.0002
    refuse: float = 0.0002
    io: Duration = TYPICAL_IO

    def __post_init__(self) -> None:
        require_number("EventLoop.accept", self.accept)
        require_number("EventLoop.refuse", self.refuse)

    def build(self, engine: Engine, random: Random, /) -> Plant:
        """Return a plant without work; see `PlantKind`."""
        return _LoopPlant(engine, self, random)


class _LoopPlant:
    def __init__(self, engine: Engine, kind: EventLoop, random: Random) -> None:
        self._engine = engine
        self._cpu = Station(engine, 1)
        self._accept: Draw = partial(float, kind.accept)
        self._refuse: Draw = partial(float, kind.refuse)
        self._io: Draw = lambda: kind.io.draw(random, engine.now)

    @property
    def backlog(self) -> int:
        return self._cpu.backlog

    def accept(self, then: Call) -> None:
        self._cpu.serve(self._accept, then)

    def resume(self, then: Call) -> None:
        # A callback of no length still comes after those that are ready before it.
        self._cpu.serve(float, then)

    def refuse(self, then: Call) -> None:
        self._cpu.serve(self._refuse, then)

    def work(self, duration: Draw, stopped: Call) -> Work:
        return _LoopWork(self._engine, self._cpu, duration, self._io, stopped)


class _LoopWork:
    """CPU, wait, CPU. A step on the CPU cannot be interrupted; a wait can."""

    __slots__ = ("_cpu", "_duration", "_engine", "_half", "_io", "_job", "_stopped", "_stopping", "_timer")

    def __init__(self, engine: Engine, cpu: Station, duration: Draw, io: Draw, stopped: Call) -> None:
        self._engine = engine
        self._cpu = cpu
        self._duration = duration
        self._half = 0.0
        self._io = io
        self._stopped = stopped
        self._stopping = False
        self._timer: Timer | None = None
        self._job = cpu.serve(self._first_half, self._wait)

    def stop(self) -> None:
        self._stopping = True
        if self._cpu.withdraw(self._job):
            self._stopped()
        elif self._timer is not None and self._timer.pending:
            self._engine.cancel(self._timer)
            self._stopped()

    def _first_half(self) -> float:
        self._half = self._duration() / 2
        return self._half

    def _wait(self) -> None:
        if self._stopping:
            self._stopped()
        else:
            self._timer = self._engine.after(self._io(), self._compute)

    def _compute(self) -> None:
        self._job = self._cpu.serve(self._second_half, self._stopped)

    def _second_half(self) -> float:
        return self._half
