"""A controller whose every verb is checked by the independent account of the admission tests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.decision import Decision, Settled
from resilient_mw.admission.entry import RouteEntry, Waiter, WaiterState
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.runtime.guard import Guard
from tests.admission.ledger import Ledger, Request


class AccountedController(AdmissionController):
    """The real controller; `complaints` is what the account objected to.

    An assertion must not leave a verb: the middleware would take it for a fault of its own and let the request pass.
    """

    def __init__(self, policy: ServerPolicy, random: Random) -> None:
        super().__init__(policy, random)
        self.ledger = Ledger(policy)
        self.complaints: list[str] = []
        self._releases = 0

    def arrive(
        self, now: float, route: RouteEntry, cost: int, deadline_at: float, tenant: str | None = None
    ) -> Decision:
        decision = super().arrive(now, route, cost, deadline_at, tenant)
        if route.rank >= 0:
            self._note(lambda: self.ledger.arrived(now, route.rank, cost, deadline_at, decision, tenant))
        return decision

    def release(self, now: float, route: RouteEntry, cost: int, tenant: str | None = None) -> Settled:
        self._releases += 1
        settled = super().release(now, route, cost, tenant)
        if route.rank >= 0:
            self._note(lambda: self.ledger.released(now, self._running(route.rank, cost), settled), now)
        return settled

    def end(  # noqa: PLR0917  as of the controller
        self, now: float, route: RouteEntry, cost: int, outcome: str, ran: float, tenant: str | None = None
    ) -> Settled:
        noted = self._releases
        settled = super().end(now, route, cost, outcome, ran, tenant)
        if route.rank >= 0 and self._releases == noted:  # it gave the slots back without release()
            self._note(lambda: self.ledger.released(now, self._running(route.rank, cost), settled), now)
        return settled

    def tick(self, now: float) -> Settled:
        settled = super().tick(now)
        self._note(lambda: self.ledger.ticked(now, settled), now)
        return settled

    def leave(self, now: float, waiter: Waiter) -> Settled:
        known = waiter.state in {WaiterState.WAITING, WaiterState.GRANTED}
        settled = super().leave(now, waiter)
        if known:
            self._note(lambda: self.ledger.left(now, self._queued(waiter), settled), now)
        return settled

    def begin(self, now: float, waiter: Waiter) -> Decision:
        granted = waiter.state is WaiterState.GRANTED
        decision = super().begin(now, waiter)
        if granted:
            self._note(lambda: self.ledger.begun(now, self._queued(waiter), decision))
        return decision

    def reloads(self, policy: ServerPolicy) -> None:
        """Take other numbers into account; at least as many slots and places as before."""
        planned = Ledger(policy)
        for name in ("limit", "queue_length", "most", "places", "most_cost"):
            setattr(self.ledger, name, getattr(planned, name))

    def reloaded(self, now: float, settled: Settled) -> None:
        """Look at what the other numbers have settled."""
        self._note(lambda: self.ledger.ticked(now, settled), now)

    def _note(self, tell: Callable[[], None], now: float | None = None) -> None:
        try:
            tell()
            self.ledger.check()
            if now is not None:
                self.ledger.check_nobody_is_dead(now)
            held = [state.slots for state in self.classes]
            assert held == self.ledger.held, f"classes hold {held}, the account says {self.ledger.held}"
            assert self.slots.in_use == sum(held), "the sum of the classes is not what is in use"
            assert self.waiting == self.ledger.waiting, "the number of waiters is wrong"
        except (AssertionError, StopIteration, ValueError) as error:
            self.complaints.append(f"the account of admission objects: {error!r}")

    def _running(self, rank: int, cost: int) -> Request:
        return next(each for each in self.ledger.running if (each.rank, each.cost) == (rank, cost))

    def _queued(self, waiter: Waiter) -> Request:
        known = [*self.ledger.granted, *(each for queue in self.ledger.queues for each in queue)]
        return next(each for each in known if each.waiter is waiter)


class AccountedGuard(Guard):
    """A guard that tells the account of a reload."""

    _reloading = False

    def change(self, policy: ServerPolicy) -> RouteEntries:
        self._account().reloads(policy)
        self._reloading = True
        return super().change(policy)

    def _wake(self, settled: Settled) -> None:
        if self._reloading:
            self._reloading = False
            self._account().reloaded(self.clock.now(), settled)
        super()._wake(settled)

    def _account(self) -> AccountedController:
        assert isinstance(self.controller, AccountedController)
        return self.controller
