"""Whether a service is starting, running or about to stop: what readiness, drain and the lifespans of a policy share."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from enum import Enum
from typing import Protocol
from weakref import WeakSet

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.routing import RouteEntries


class Application(Protocol):
    """An application under the policy.

    Attributes:
        started: whether its routes are bound.
        starting: held while they are.
    """

    started: bool
    starting: threading.Lock

    def check(self, policy: ServerPolicy) -> None:
        """Raise a ValueError if its routes do not fit a policy."""
        ...

    def change(self, policy: ServerPolicy, entries: RouteEntries) -> None:
        """Take a policy that fits."""
        ...


class Watched(Protocol):
    """An event loop that requests run on."""

    @property
    def in_flight(self) -> Collection[object]:
        """The requests that run."""
        ...

    def behind(self, now: float) -> float:
        """Return seconds that it is behind its timers."""
        ...


class Phase(Enum):
    """Where one lifespan stands."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Lifecycle:
    """The phases of one policy's service. Safe to use from any thread.

    Args:
        controller: what is told to take no new work.
        lock: the lock of the controller.

    Attributes:
        stop_at: the instant at which what still runs is cancelled; never, while nobody drains.
    """

    __slots__ = ("_applications", "_controller", "_lock", "_loops", "_own", "_spans", "stop_at")

    def __init__(self, controller: AdmissionController, lock: threading.Lock) -> None:
        self.stop_at = math.inf
        self._controller = controller
        self._lock = lock
        self._applications: WeakSet[Application] = WeakSet()
        self._loops: WeakSet[Watched] = WeakSet()
        self._spans: dict[object, Phase] = {}  # of each lifespan
        self._own = False

    def guards(self, application: Application) -> None:
        """Count an application: while none has started, the service is starting."""
        with self._lock:
            self._applications.add(application)

    def applications(self) -> list[Application]:
        """Return the applications under the policy."""
        with self._lock:
            return list(self._applications)

    def watch(self, loop: Watched) -> None:
        """Have an event loop looked at for as long as it is watched by somebody else."""
        with self._lock:
            self._loops.add(loop)

    def drain(self, refuse_from: float, stop_at: float) -> None:
        """Take no new work from an instant on, and let nothing run beyond another.

        A second call may bring both forward. It takes no lock: a signal handler may come by here.
        """
        self.stop_at = min(stop_at, self.stop_at)
        self._controller.drain(refuse_from)

    # -- lifespans -----------------------------------------------------------------------------------------------------

    def begins(self, span: object) -> None:
        """The lifespan of an application begins: it starts."""
        with self._lock:
            self._spans[span] = Phase.STARTING

    def started(self, span: object) -> None:
        """The application is ready to serve."""
        with self._lock:
            self._spans[span] = Phase.RUNNING

    def stopping(self, span: object) -> bool:
        """The server is about to stop the application; return whether that is the end of the whole service.

        It is not while another application under the same policy goes on.
        """
        with self._lock:
            self._spans[span] = Phase.STOPPING
            return set(self._spans.values()) == {Phase.STOPPING}

    def drain_for_lifespans(self, refuse_from: float, stop_at: float) -> None:
        """Drain until the last lifespan has ended: an application may be started again in the same process."""
        with self._lock:
            if not self._controller.draining:
                self._own = True
        self.drain(refuse_from, stop_at)

    def ends(self, span: object) -> None:
        """The lifespan is over."""
        with self._lock:
            self._spans.pop(span, None)
            if self._own and not self._spans:
                self._own = False
                self.stop_at = math.inf
                self._controller.resume()

    # -- what others ask -----------------------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Return whether anything runs or waits, with a slot or without: a stream has given its back."""
        controller = self._controller
        if controller.slots.in_use > 0 or controller.exempt > 0 or controller.waiting > 0:
            return True
        with self._lock:
            return any(loop.in_flight for loop in self._loops)

    def reasons(self, now: float, blocked_after: float) -> list[str]:
        """Return why no requests should be sent here, but for load: `starting`, `blocked`."""
        with self._lock:
            applications = list(self._applications)
            loops = list(self._loops)
            starting = Phase.STARTING in self._spans.values()
        reasons = []
        if starting or (applications and not any(each.started for each in applications)):
            reasons.append("starting")
        if any(loop.behind(now) >= blocked_after for loop in loops):
            reasons.append("blocked")
        return reasons

    def restart(self, controller: AdmissionController, lock: threading.Lock) -> None:
        """Begin anew in a process that was forked: lifespans and loops of the parent are not here."""
        self._controller = controller
        self._lock = lock
        self._loops = WeakSet()
        self._spans.clear()
        self._own = False
        self.stop_at = math.inf
