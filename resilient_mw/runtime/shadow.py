"""Shadow mode: a guard that decides as always, counts what would have become of a request, and lets it run.

Admission in shadow is the real controller with real slots, queue and discipline, and nobody is held up by it. What would
have been refused runs without a slot. What would have to wait runs, too, and waits in the queue meanwhile: until the model
gives it a slot, which it then holds to its end; until the model would refuse it; or until it has ended, which leaves its
place to others. So what the limit, the queue and the classes say is what they would have said, about a load that was not
held off: runs are as long as they are without protection, and who is done before his turn does not come to it.

Deadlines in shadow: nobody knows of them but a counter. To admission, if that is not in shadow itself, each request comes
without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resilient_mw.admission.decision import NOBODY, Decision, Settled
from resilient_mw.admission.entry import RouteEntry, Waiter, WaiterState
from resilient_mw.admission.policy_checks import ADMISSION, DEADLINES
from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.events import Shadowed
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import AppSnapshot
from resilient_mw.core.streams import BODY, StreamRule
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.shadow_figures import MODELLED, WouldHave, shadowed

if TYPE_CHECKING:
    from resilient_mw.admission.config import ServerPolicy
    from resilient_mw.runtime.context import RequestContext

REFUSE, QUEUE, CANCEL = "refuse", "queue", "cancel"


class Ticket:
    """What one request is in the model.

    Attributes:
        entry, cost, tenant: as it arrived.
        waiter: its place in the model's queue, if it had to wait there.
        holds: whether it was given slots on arrival.
        late: whether its deadline has been counted already.
    """

    __slots__ = ("cost", "entry", "holds", "late", "tenant", "waiter")

    def __init__(self, entry: RouteEntry, cost: int, tenant: str | None, *, late: bool) -> None:
        self.entry = entry
        self.cost = cost
        self.tenant = tenant
        self.waiter: Waiter | None = None
        self.holds = True
        self.late = late


@dataclass(slots=True)
class ShadowDecision(Decision):
    """A decision about a request that is to be counted; `ticket` is what its run ends with."""

    ticket: Ticket | None = field(default=None, kw_only=True)


class ShadowGuard(Guard):
    """The guard of a policy with defences in shadow mode. Arguments as of `Guard`."""

    lends = False

    def __init__(self, policy: ServerPolicy, *args: Any, **options: Any) -> None:
        super().__init__(policy, *args, **options)
        self._defences = policy.shadowed
        self.models = ADMISSION in self._defences
        self._keeps = DEADLINES not in self._defences
        self._would: dict[RouteEntry, WouldHave] = {}
        self._outside: set[Ticket] = set()
        self._waiting: dict[Waiter, Ticket] = {}
        if self.models and self.websockets is not None:
            self.websockets.shadow = self._would_refuse_socket

    # -- what would have been done -------------------------------------------------------------------------------------

    def shadows(self, defence: str) -> bool:
        """Return whether a defence is in shadow mode."""
        return defence in self._defences

    def would_refuse(self, defence: str, entry: RouteEntry, reason: Reason) -> bool:
        """Count a refusal if its defence is in shadow mode; return whether the request is to pass therefore.

        For every check on arrival that is not the controller's own.
        """
        if defence not in self._defences:
            return False
        with self._lock:
            counts = self._of(entry).refused
            counts[reason] = counts.get(reason, 0) + 1
        self._tell(entry, defence, REFUSE, reason)
        return True

    def outside(self, entry: RouteEntry, cost: int, tenant: str | None = None) -> ShadowDecision:
        """Let a request run that was counted as refused on arrival: beside the model, which it would not have reached."""
        ticket = Ticket(entry, cost, tenant, late=True)
        ticket.holds = False
        with self._lock:
            entry.arrived += 1
            self._outside.add(ticket)
        return ShadowDecision(ticket=ticket)

    def would_cancel(self, ticket: Ticket) -> None:
        """Count a run that would have been cancelled at its deadline, unless the model would not have let it run."""
        if not (ticket.holds or _holds_slots(ticket)):
            return
        with self._lock:
            self._of(ticket.entry).cancelled += 1
        self._tell(ticket.entry, DEADLINES, CANCEL)

    def kept(
        self, deadline_at: float, outer: RequestContext | None, stream: StreamRule | None = None
    ) -> float:
        """Return the deadline that a request gets: its own, or that of what is around it, or none.

        Where admission is in shadow mode a stream is an ordinary run, so a deadline that would not cover all of it is not
        kept.
        """
        if self._keeps and (not self.models or stream is None or stream.covers in {None, BODY}):
            return deadline_at
        return FOREVER if outer is None else outer._fixed_end()  # noqa: SLF001

    def due_at(self, ticket: Ticket, deadline_at: float, now: float) -> float:
        """Return the instant from which on a run that begins now would have been cancelled; inf: it is not counted."""
        if self._keeps or ticket.late:
            return FOREVER
        if deadline_at <= now:  # it passed in the queue
            self.would_refuse(DEADLINES, ticket.entry, Reason.EXPIRED_IN_QUEUE)
            return FOREVER
        return deadline_at

    # -- the verbs of a guard ------------------------------------------------------------------------------------------

    def arrive(
        self,
        entry: RouteEntry,
        now: float,
        deadline_at: float,
        cost: int | None = None,
        tenant: str | None = None,
    ) -> Decision:
        """Decide about a request that has just arrived, and let it run whatever was decided in shadow mode."""
        late = False
        if not self._keeps:
            reason = self._too_late(now, deadline_at)
            late = reason is not None and self.would_refuse(DEADLINES, entry, reason)
            if late and self.models:
                return self.outside(entry, entry.cost if cost is None else cost, tenant)
            if not self.models:
                deadline_at = FOREVER
        decision = super().arrive(entry, now, deadline_at, cost, tenant)
        ticket = Ticket(entry, entry.cost if cost is None else cost, tenant, late=late)
        waiter = ticket.waiter = decision.waiter
        if not self.models:
            if decision.reason is not None:
                return decision
            if waiter is not None:
                self._waiting[waiter] = ticket
            return ShadowDecision(waiter, ticket=ticket)
        if decision.reason is not None and decision.reason not in MODELLED:
            return decision
        if not decision.admitted:
            ticket.holds = False
            with self._lock:
                self._outside.add(ticket)
                self._of(entry).queued += waiter is not None
            if waiter is not None:
                self._tell(entry, ADMISSION, QUEUE)
        return ShadowDecision(ticket=ticket)

    def may_refuse(self) -> bool:
        """Return whether a request might be refused for load now."""
        return not self.models and super().may_refuse()

    def refuse_surely(self, entry: RouteEntry, now: float) -> tuple[Reason, int | None] | None:
        """Refuse a request that has just arrived if `arrive` would for certain."""
        return None if self.models else super().refuse_surely(entry, now)

    def begin(self, waiter: Waiter) -> Decision:
        """Start the work of a waiter whose wait is over; see `Guard.begin`."""
        ticket = self._waiting.pop(waiter, None)
        decision = super().begin(waiter)
        return ShadowDecision(ticket=ticket) if decision.admitted else decision

    def leave(self, waiter: Waiter) -> None:
        """Forget a waiter whose caller has gone."""
        self._waiting.pop(waiter, None)
        super().leave(waiter)

    def over(self, ticket: Ticket, outcome: str, ran: float) -> None:
        """Count a run that has ended, and take it out of the model. Exactly once."""
        entry, waiter = ticket.entry, ticket.waiter
        if ticket.holds:
            self.end(entry, ticket.cost, outcome, ran, ticket.tenant)
            return
        settled: Settled = NOBODY
        with self._lock:
            self._outside.discard(ticket)
            now = self.clock.now()
            if waiter is not None and waiter.state is WaiterState.RUNNING:
                settled = self.controller.end(now, entry, ticket.cost, outcome, ran, ticket.tenant)
            else:
                self.controller.finish(entry, outcome, ran)
                if waiter is not None:
                    settled = self.controller.leave(now, waiter)
        self._wake(settled)
        if self.overload.crowded:
            self.overload.thin_out()

    def snapshot(self) -> AppSnapshot:
        """Return the figures of this instant: what was done, and beside it what would have been."""
        if self.models:
            self.tick(self.clock.now())  # nobody has a timer for those who only wait in the model
        figures = super().snapshot()
        with self._lock:
            outside = sum(not _holds_slots(ticket) for ticket in self._outside)
            would = {entry: counts.copy() for entry, counts in self._would.items()}
        return shadowed(figures, self._defences, would, outside, modelled=self.models)

    def forked(self) -> None:
        """Begin anew in a forked child."""
        super().forked()
        self._would.clear()
        self._outside.clear()
        self._waiting.clear()

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _too_late(self, now: float, deadline_at: float) -> Reason | None:
        if now >= deadline_at:
            return Reason.EXPIRED_ON_ARRIVAL
        return Reason.INSUFFICIENT_BUDGET if deadline_at - now < self.policy.smallest_budget else None

    def _of(self, entry: RouteEntry) -> WouldHave:
        counts = self._would.get(entry)
        if counts is None:
            counts = self._would[entry] = WouldHave()
        return counts

    def _tell(self, entry: RouteEntry, defence: str, would: str, reason: Reason | None = None) -> None:
        if self.listeners:
            self.listeners.emit(Shadowed(entry.template, entry.priority, defence, would, reason))

    def _would_refuse_socket(self, entry: RouteEntry, reason: Reason) -> None:
        self.would_refuse(ADMISSION, entry, reason)

    def _tell_refused(self, entry: RouteEntry, reason: Reason, waited: float) -> None:
        if self.models and reason in MODELLED:
            self.would_refuse(ADMISSION, entry, reason)
        else:
            super()._tell_refused(entry, reason, waited)

    def _wake(self, settled: Settled) -> None:
        """Let those who have got slots in the model hold them: they run already."""
        if not self.models:
            super()._wake(settled)
            return
        pending = list(settled)
        while pending:
            waiter = pending.pop(0)
            with self._lock:
                if waiter.state is WaiterState.GRANTED:
                    pending += self.controller.begin(self.clock.now(), waiter).settled
            if waiter.reason is not None:
                self._tell_refused(waiter.route, waiter.reason, self.clock.now() - waiter.arrived_at)


def _holds_slots(ticket: Ticket) -> bool:
    return ticket.waiter is not None and ticket.waiter.state is WaiterState.RUNNING


def ticket_of(decision: Decision) -> Ticket | None:
    """Return what a request is in the model; None if the guard has not decided about it."""
    return decision.ticket if isinstance(decision, ShadowDecision) else None


def make_guard(policy: ServerPolicy, *args: Any, **options: Any) -> Guard:
    """Return a new guard for a policy. Arguments as of `Guard`."""
    kind: Callable[..., Guard] = ShadowGuard if policy.shadowed else Guard
    return kind(policy, *args, **options)
