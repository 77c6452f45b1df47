"""The owner of a policy's open websockets, under the lock of its guard."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.connections import Connections
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.figures import websocket_snapshot
from resilient_mw.core.events import Refused
from resilient_mw.core.ports import Clock
from resilient_mw.core.problem import RefusalFigures
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import WebsocketSnapshot
from resilient_mw.runtime.flush import Listeners
from resilient_mw.runtime.overload import Overload


class Websockets:
    """Owns the open websockets of one policy. Safe to use from any thread and any event loop.

    Args:
        connections: what decides.
        controller: tells from when on the server takes no new work, and whether the service is overloaded.
        lock: the lock of the controller.
        overload: how overloaded the service is.
        listeners: hear of each refusal.
        clock: the one clock.

    Attributes:
        shadow: told of what would have been refused and is to be served without a place; None: it is refused.
    """

    __slots__ = (
        "_clock",
        "_controller",
        "_forgotten",
        "_listeners",
        "_lock",
        "connections",
        "overload",
        "shadow",
    )

    def __init__(  # noqa: PLR0917  the parts of a guard
        self,
        connections: Connections,
        controller: AdmissionController,
        lock: threading.Lock,
        overload: Overload,
        listeners: Listeners,
        clock: Clock,
    ) -> None:
        self.connections = connections
        self.overload = overload
        self._controller = controller
        self._lock = lock
        self._listeners = listeners
        self._clock = clock
        self._forgotten: deque[tuple[RouteEntry, str]] = deque()
        self.shadow: Callable[[RouteEntry, Reason], None] | None = None

    def arrive(self, entry: RouteEntry, now: float) -> Decision:
        """Decide about a websocket that wants to be opened; see `Connections.arrive`."""
        self._catch_up()
        if now >= self.overload.look_at:
            self.overload.look()  # a service that has nothing but websockets has no tick that does
        controller = self._controller
        with self._lock:
            decision = self.connections.arrive(
                now, entry, draining=now >= controller.refuse_from, overloaded=controller.overloaded
            )
        if decision.reason is not None and self._listeners and self.shadow is None:
            self._listeners.emit(Refused(entry.template, entry.priority, decision.reason, 0.0))
        return decision

    def end(self, entry: RouteEntry, outcome: str) -> None:
        """Count how a connection ended and give its place back. Exactly once."""
        with self._lock:
            self.connections.end(self._clock.now(), entry, outcome)

    def end_later(self, entry: RouteEntry, outcome: str) -> None:
        """Have it done by whoever comes next.

        For the garbage collector, which may end a forgotten connection at any allocation, also while this thread holds
        the lock: so this takes none.
        """
        self._forgotten.append((entry, outcome))

    def change(self, policy: ServerPolicy) -> None:
        """Take a policy whose fitness has been checked."""
        if policy.websocket_limit is not None:
            with self._lock:
                self.connections.change(policy, policy.websocket_limit)

    def restart(self, controller: AdmissionController, lock: threading.Lock, overload: Overload) -> None:
        """Begin anew in a process that was forked: lock and connections are the parent's."""
        self._controller = controller
        self._lock = lock
        self.overload = overload
        self._forgotten.clear()
        self.connections.restart()

    def figures(self, entry: RouteEntry) -> RefusalFigures:
        """Return what a refusal says of this instant in debug mode."""
        connections, exempt = self.connections, entry.rank < 0
        with self._lock:
            return RefusalFigures(
                priority=entry.priority,
                limit=connections.exempt_limit if exempt else connections.slots.limit,
                in_flight=connections.exempt if exempt else connections.slots.in_use,
                queue_length=0,
                remaining_budget_ms=None,
            )

    def snapshot(self) -> WebsocketSnapshot:
        """Return the figures of this instant."""
        self._catch_up()
        with self._lock:
            return websocket_snapshot(self.connections)

    def _catch_up(self) -> None:
        while self._forgotten:
            try:
                forgotten = self._forgotten.popleft()
            except IndexError:
                return
            self.end(*forgotten)


def websockets_of(  # noqa: PLR0917  the parts of a guard
    policy: ServerPolicy,
    controller: AdmissionController,
    lock: threading.Lock,
    overload: Overload,
    listeners: Listeners,
    clock: Clock,
    rng: random.Random | None,
) -> Websockets | None:
    """Return the owner of a policy's websockets; None where they pass untouched."""
    if policy.websocket_limit is None:
        return None
    connections = Connections(policy, policy.websocket_limit, rng or random.Random())  # noqa: S311  jitter, not a secret
    return Websockets(connections, controller, lock, overload, listeners, clock)
