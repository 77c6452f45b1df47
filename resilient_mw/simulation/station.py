"""A station: servers and a queue, of which plants are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from resilient_mw.simulation.engine import Call, Engine, Timer

Draw = Callable[[], float]


class Job:
    """A piece of work at a station.

    Attributes:
        duration: called when it begins; returns the seconds that it takes.
        stopped: called at its end; None if it was withdrawn.
        timer: its end, once it has begun.
    """

    __slots__ = ("duration", "stopped", "timer")

    def __init__(self, duration: Draw, stopped: Call) -> None:
        self.duration = duration
        self.stopped: Call | None = stopped
        self.timer: Timer | None = None


class Station:
    """Some equal servers behind one queue, first come, first served.

    Attributes:
        backlog: jobs in the queue.
    """

    __slots__ = ("_engine", "_free", "_queue", "backlog")

    def __init__(self, engine: Engine, servers: int) -> None:
        self._engine = engine
        self._free = servers
        self._queue: deque[Job] = deque()
        self.backlog = 0

    def serve(self, duration: Draw, stopped: Call) -> Job:
        """Do a job as soon as a server is free."""
        job = Job(duration, stopped)
        if self._free:
            self._free -= 1
            self._begin(job)
        else:
            self.backlog += 1
            self._queue.append(job)
        return job

    def withdraw(self, job: Job) -> bool:
        """Take a job out of the queue; return whether it was still there."""
        if job.timer is not None or job.stopped is None:
            return False
        job.stopped = None
        self.backlog -= 1
        return True

    def interrupt(self, job: Job) -> bool:
        """End a job that has begun, at once; return whether it was not over yet. Its end is not reported."""
        if job.timer is None or not job.timer.pending:
            return False
        self._engine.cancel(job.timer)
        self._next()
        return True

    def _begin(self, job: Job) -> None:
        job.timer = self._engine.after(job.duration(), partial(self._end, job))

    def _end(self, job: Job) -> None:
        stopped = job.stopped
        # The next job begins first: whoever hears of the end may ask for more, and comes after those in the queue.
        self._next()
        if stopped is not None:
            stopped()

    def _next(self) -> None:
        while self._queue:
            job = self._queue.popleft()
            if job.stopped is not None:
                self.backlog -= 1
                self._begin(job)
                return
        self._free += 1
