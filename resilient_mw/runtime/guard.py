"""The guard: the one owner of a policy's controller and its lock.

Both middlewares, and several applications under one policy, drive the same guard. It decides under the lock and acts
after it has let go: waking waiters, telling listeners.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.decision import ADMITTED, Decision, Settled
from resilient_mw.admission.entry import RouteEntry, Waiter, WaiterState
from resilient_mw.admission.figures import app_snapshot, refusal_figures
from resilient_mw.admission.reload import reload as change_numbers
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.admission.surely import refuse_surely
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.events import Cancelled, LateWork, Refused
from resilient_mw.core.problem import RefusalFigures
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import AppSnapshot
from resilient_mw.runtime.forks import renew_lock
from resilient_mw.runtime.guard_state import GuardState


class Guard(GuardState):
    """Owns the admission state of one policy. Safe to use from any thread and any event loop."""

    models = False  # whether admission is in shadow mode
    lends = True  # whether slots can be given back for a while

    def arrive(
        self,
        entry: RouteEntry,
        now: float,
        deadline_at: float,
        cost: int | None = None,
        tenant: str | None = None,
    ) -> Decision:
        """Decide about a request that has just arrived; see `AdmissionController.arrive`.

        Args:
            entry, now: how it is treated, and the instant of its arrival.
            deadline_at: the instant after which its answer is worthless.
            cost: slots that it takes; None: those of its entry.
            tenant: on whose behalf it comes; None: nobody's in particular. Both are named when slots are given back.
        """
        if self._later:
            self.catch_up()
        # Here and in end(), which every request comes by, `with` would cost twice as much.
        self._lock.acquire()
        try:
            decision = self.controller.arrive(
                now, entry, entry.cost if cost is None else cost, deadline_at, tenant
            )
        finally:
            self._lock.release()
        if decision is not ADMITTED:
            if decision.reason is not None:
                self._tell_refused(entry, decision.reason, 0.0)
            if decision.settled:
                self._wake(decision.settled)
        return decision

    def refuse(self, entry: RouteEntry, now: float, reason: Reason) -> Decision:
        """Refuse a request that has just arrived for what it is; see `AdmissionController.refuse`."""
        with self._lock:
            decision = self.controller.refuse(now, entry, reason)
        self._tell_refused(entry, reason, 0.0)
        return decision

    def may_refuse(self) -> bool:
        """Return whether a request might be refused for load now: a hint that takes no lock and costs next to nothing."""
        controller = self.controller
        return controller.waiting >= controller.queue_length or controller.draining or controller.overloaded

    def refuse_surely(self, entry: RouteEntry, now: float) -> tuple[Reason, int | None] | None:
        """Refuse a request that has just arrived if `arrive` would; None, and nothing is counted, if that is not certain.

        Returns:
            The reason, that there is no room whatever `arrive` would say, and the seconds after which to come back.
        """
        if self._later:
            self.catch_up()
        with self._lock:
            refused = refuse_surely(self.controller, now, entry)
        if refused is not None and self.listeners:
            self._tell_refused(entry, refused[0], 0.0)
        return refused

    def attach(self, waiter: Waiter, wake: Callable[[], None]) -> None:
        """Have `wake` called once the wait is over; at once if it already is. It may be called from any thread."""
        with self._lock:
            waiting = waiter.state is WaiterState.WAITING
            if waiting:
                waiter.wake = wake
        if not waiting:
            wake()

    def begin(self, waiter: Waiter) -> Decision:
        """Start the work of a waiter whose wait is over, or learn why it may not start."""
        with self._lock:
            now = self.clock.now()
            granted = waiter.state is WaiterState.GRANTED
            decision = self.controller.begin(now, waiter)
        if granted and decision.reason is not None:
            self._tell_refused(waiter.route, decision.reason, now - waiter.arrived_at)
        self._wake(decision.settled)
        return decision

    def leave(self, waiter: Waiter) -> None:
        """Forget a waiter whose caller has gone. Harmless if its wait ended otherwise."""
        with self._lock:
            waiter.wake = None
            settled = self.controller.leave(self.clock.now(), waiter)
        self._wake(settled)
        if self.overload.crowded:
            self.overload.thin_out()

    def catch_up(self) -> None:
        """Do what was left for later."""
        while True:
            try:
                call = self._later.popleft()
            except IndexError:
                return
            call()

    def left(self, entry: RouteEntry) -> None:
        """Count a request that has just arrived, and whose caller has gone before anything was decided."""
        with self._lock:
            entry.arrived += 1
            entry.left += 1

    def look_at(self, waiter: Waiter) -> float:
        """Return the instant at which a waiter should call `tick`."""
        return min(waiter.give_up_at, self.controller.grows_at())

    def tick(self, at: float) -> None:
        """Let time pass; `at` is the instant the caller's timer was set for, in case it fired early."""
        with self._lock:
            settled = self.controller.tick(max(at, self.clock.now()))
        self._wake(settled)

    def release(self, entry: RouteEntry, cost: int, tenant: str | None = None) -> None:
        """Give back the slots of one request, because its work has stopped. Exactly once."""
        with self._lock:
            settled = self.controller.release(self.clock.now(), entry, cost, tenant)
        if settled:
            self._wake(settled)
        if self.overload.crowded:
            self.overload.thin_out()

    def end(  # noqa: PLR0917  on the way of every request: keywords would cost
        self,
        entry: RouteEntry,
        cost: int,
        outcome: str,
        ran: float,
        tenant: str | None = None,
        now: float | None = None,
    ) -> None:
        """Count a run that has ended and give back its slots: the common case in one step.

        Args:
            entry, cost, tenant: as named to `arrive`.
            outcome, ran: how it ended, and after how many seconds.
            now: this instant, from whoever has just asked the clock; None: it is asked.
        """
        self._lock.acquire()
        try:
            settled = self.controller.end(
                self.clock.now() if now is None else now, entry, cost, outcome, ran, tenant
            )
        finally:
            self._lock.release()
        if settled:
            self._wake(settled)
        if self.overload.crowded:
            self.overload.thin_out()

    def finish(self, entry: RouteEntry, outcome: str, ran: float) -> None:
        """Count a run that has ended while its slots are still held by a thread."""
        with self._lock:
            self.controller.finish(entry, outcome, ran)

    def cancelled(self, entry: RouteEntry, reason: CancelReason, ran: float) -> None:
        """Tell listeners that a running request was cancelled."""
        if self.listeners:
            self.listeners.emit(Cancelled(entry.template, entry.priority, reason, ran))

    def late(self, entry: RouteEntry, reason: CancelReason) -> None:
        """Count work that goes on after its cancellation."""
        with self._lock:
            entry.late += 1
        if self.listeners:
            self.listeners.emit(LateWork(entry.template, entry.priority, reason))

    def ignored(self, names: tuple[str, ...]) -> None:
        """Count header values outside the grammar."""
        with self._lock:
            for name in names:
                self._ignored[name] = self._ignored.get(name, 0) + 1

    def change(self, policy: ServerPolicy) -> RouteEntries:
        """Take a policy whose fitness has been checked; return the entries for its route tables."""
        self.tenancy.change(policy)  # first: it may find that nothing counts
        self.entries = self.entries.under(policy)
        self.listeners.change(policy.listeners)
        with self._lock:
            self.policy = policy
            settled = change_numbers(self.controller, self.clock.now(), policy)
        if self.websockets is not None:
            self.websockets.change(policy)
        self.streams.resize(policy.stream_limit)
        self.overload.resize(policy.slots)
        self._wake(settled)
        return self.entries

    def figures(self, entry: RouteEntry, deadline_at: float) -> RefusalFigures | None:
        """Return what a refusal says of this instant in debug mode; None otherwise."""
        if not self.policy.debug:
            return None
        with self._lock:
            remaining = deadline_at - self.clock.now()
            return refusal_figures(self.policy.exempt_limit, self.controller, entry, remaining)

    def snapshot(self) -> AppSnapshot:
        """Return the figures of this instant."""
        if self._later:
            self.catch_up()
        self.overload.look()
        websockets = None if self.websockets is None else self.websockets.snapshot()
        with self._lock:
            self.controller.forecast.learn()
            snapshot = app_snapshot(
                self.policy.name, self.controller, self.entries.all(),
                drain_rate=self.controller.forecast.rate(self.clock.now()),
                ignored_headers=dict(self._ignored), guard_errors=self.listeners.errors,
                overload=self.overload.snapshot(), websockets=websockets, streams=self.streams.snapshot(),
            )  # fmt: skip
        return self.tenancy.told(snapshot)

    def _wake(self, settled: Settled) -> None:
        for waiter in settled:
            wake, waiter.wake = waiter.wake, None
            if wake is not None:
                wake()
        for waiter in settled:  # Nobody waits for a listener.
            if waiter.reason is not None:
                self._tell_refused(waiter.route, waiter.reason, self.clock.now() - waiter.arrived_at)

    def _tell_refused(self, entry: RouteEntry, reason: Reason, waited: float) -> None:
        if self.listeners:
            self.listeners.emit(Refused(entry.template, entry.priority, reason, waited))


_making = threading.Lock()
renew_lock(__name__, "_making")


def guard_of(policy: ServerPolicy) -> Guard:
    """Return the guard of a policy object, made on first use. It lives as long as the policy."""
    with _making:
        if not policy.owner:
            from resilient_mw.runtime.shadow import make_guard  # it derives from the guard

            policy.owner.append(make_guard(policy))
        guard = policy.owner[0]
    if not isinstance(guard, Guard):
        raise TypeError(f"the policy {policy.name!r} is owned by {guard!r}")
    return guard
