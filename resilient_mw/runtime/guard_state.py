"""What a guard owns: made of its policy, and anew in a forked child."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.core import ports
from resilient_mw.core.ports import Clock
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.flush import Listeners
from resilient_mw.runtime.forks import after_fork
from resilient_mw.runtime.lifecycle import Lifecycle
from resilient_mw.runtime.operations import Operations
from resilient_mw.runtime.overload import Overload
from resilient_mw.runtime.process_readings import PROCESS, ProcessReadings
from resilient_mw.runtime.streams import Streams
from resilient_mw.runtime.tenancy import Tenancy
from resilient_mw.runtime.websockets import websockets_of


class GuardState(Operations):
    """The base of a guard. See the module.

    Args:
        policy: what to enforce.
        clock: the one clock.
        rng: source of jitter.
        process: where the readings of the process come from; None: from nowhere.

    Attributes:
        overload: how overloaded the service is.
        lifecycle: whether it is starting or about to stop.
        websockets: those that are open; None: they pass untouched.
        streams: those that are open, beside the slots.
        later: has something done by whoever uses the guard next. For the garbage collector, which may end a forgotten request
            at any allocation, also while this thread holds the lock: so this takes none.
        tenancy: what is kept of tenants.
    """

    def __init__(
        self,
        policy: ServerPolicy,
        clock: Clock = MONOTONIC,
        rng: random.Random | None = None,
        process: ProcessReadings | None = PROCESS,
    ) -> None:
        self.policy = policy
        self.clock = clock
        self.entries = RouteEntries(policy)
        self.listeners = Listeners(policy.listeners, clock)
        self._rng = rng or random.Random()  # noqa: S311  jitter, not a secret
        self._process = process
        self._lock = threading.Lock()
        self.controller = AdmissionController(policy, self._rng)
        self.lifecycle = Lifecycle(self.controller, self._lock)
        self.overload = self._measured()
        self.websockets = websockets_of(
            policy, self.controller, self._lock, self.overload, self.listeners, clock, self._rng
        )
        self.streams = Streams(policy.stream_limit)
        self.tenancy = Tenancy(policy, self.listeners, clock)
        self._ignored: dict[str, int] = {}
        self._later: deque[Callable[[], None]] = deque()
        self.later: Callable[[Callable[[], None]], None] = self._later.append
        ports.register(self)
        after_fork(self)

    def _measured(self) -> Overload:
        overload = Overload(
            self.policy.overload,
            self.controller,
            self._lock,
            self.listeners,
            self.clock,
            process=self._process,
        )
        overload.resize(self.policy.slots)
        return overload

    def forked(self) -> None:
        """Begin anew in a forked child: the requests, the lock and the counts are the parent's."""
        self._rng.seed()  # or all children would tell callers to come back at the same time
        self._lock = threading.Lock()
        self._ignored.clear()
        # Requests of the parent that the garbage collector finds here still know the older one: nobody looks there.
        self._later = deque()
        self.later = self._later.append
        self.listeners.errors = 0
        self.entries.forget()
        self.controller = AdmissionController(self.policy, self._rng)
        self.lifecycle.restart(self.controller, self._lock)
        self.overload = self._measured()
        self.streams = Streams(self.policy.stream_limit)
        self.tenancy = Tenancy(self.policy, self.listeners, self.clock)
        if self.websockets is not None:
            self.websockets.restart(self.controller, self._lock, self.overload)
