"""What a guard does for those who run the service: stop it, reload it, ask whether it is ready."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overload_policy import Signal
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.core.checks import require_number
from resilient_mw.core.ports import Clock
from resilient_mw.core.snapshot import AppSnapshot, Readiness
from resilient_mw.runtime.alarm import ALARM
from resilient_mw.runtime.drain_signal import drain_on_signal
from resilient_mw.runtime.lifecycle import Lifecycle
from resilient_mw.runtime.overload import Overload
from resilient_mw.runtime.reload import reload


class Operations(ABC):
    """The base of a guard. See the module.

    Attributes:
        policy: what is in force.
        clock: the one clock.
        lifecycle: whether the service is starting or about to stop.
        overload: how overloaded it is.
    """

    policy: ServerPolicy
    clock: Clock
    lifecycle: Lifecycle
    overload: Overload

    @abstractmethod
    def snapshot(self) -> AppSnapshot:
        """Return the figures of this instant."""

    @abstractmethod
    def change(self, policy: ServerPolicy) -> RouteEntries:
        """Take a policy whose fitness has been checked; return the entries for its route tables."""

    def reload(self, policy: ServerPolicy | None, changes: Mapping[str, Any]) -> ServerPolicy:
        """Put another policy in force; see `ServerPolicy.reload`."""
        return reload(self, policy, changes)

    def drain(self, delay: float | None = None, timeout: float | None = None) -> None:
        """Begin to stop; see `ServerPolicy.drain`. It takes no lock, so a signal handler may call it."""
        self.drain_with(self.lifecycle.drain, delay, timeout)

    def drain_on_signal(self, number: int | None) -> None:
        """Drain at a signal; see `ServerPolicy.drain_on_signal`."""
        drain_on_signal(signal.SIGTERM if number is None else number, self._drain_at_signal)

    def _drain_at_signal(self) -> float:
        self.drain()
        return self.policy.drain_delay

    def drain_with(
        self, drain: Callable[[float, float], None], delay: float | None = None, timeout: float | None = None
    ) -> None:
        """Have `drain` called with the instants from which nothing new is taken and at which nothing may run any more."""
        policy = self.policy
        delay = policy.drain_delay if delay is None else require_number("delay", delay)
        timeout = policy.drain_timeout if timeout is None else require_number("timeout", timeout)
        refuse_from = self.clock.now() + delay
        drain(refuse_from, refuse_from + timeout)
        ALARM.poke_soon()

    def look(self) -> None:
        """Let the overload level be that of this instant."""
        self.overload.look()

    def report(self, signal: Signal, reading: float | None, source: str) -> None:
        """Take the reading of an overload signal that somebody else has measured."""
        self.overload.report(signal, reading, source)

    def readiness(self) -> Readiness:
        """Return whether requests should be sent here, as of this instant."""
        return self.overload.readiness(self.lifecycle.reasons(self.clock.now(), self.policy.blocked_after))
