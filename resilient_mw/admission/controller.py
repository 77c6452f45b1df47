"""The admission controller: admit, queue or refuse, and who is next when a slot comes free.

Pure: it takes the time as an argument and randomness from an injected source, and it neither waits nor locks. The
owner holds a lock around each verb and wakes the settled waiters after it has let go. The two hot verbs (admitting
with a free slot, releasing with nobody waiting) allocate nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.decision import ADMITTED, NOBODY, Decision, Settled
from resilient_mw.admission.entry import COMPLETED, RouteEntry, Waiter, WaiterState
from resilient_mw.admission.forecast import ENOUGH_TO_LEARN, Forecast
from resilient_mw.admission.phases import Phases
from resilient_mw.admission.queue import ClassState, Timetable
from resilient_mw.core.rejection import REFUSAL_RULES, Reason, RetryAfter

if TYPE_CHECKING:
    from random import Random


class AdmissionController(Phases):
    """Decides for one policy. Not thread-safe: the owner locks.

    Args:
        policy: limits, queue, classes and waits.
        random: source of the jitter of `Retry-After`.

    Attributes:
        overloaded: set by the owner: the lowest class waits in no places of the queue but its own.
    """

    def __init__(self, policy: ServerPolicy, random: Random) -> None:
        super().__init__(policy)
        self.exempt = self.waiting = 0
        self.overloaded = False
        self.queue_length = policy.queue_length
        self._policy = policy
        # Where there is one class only, nobody is kept a place by refusing it early.
        self._lowest = self.classes[-1] if len(self.classes) > 1 else None
        # Where every budget is useful, one of nothing still is not.
        self._smallest_budget = max(policy.smallest_budget, math.ulp(0.0))
        self.forecast = Forecast(self.slots, random)
        self._timetable = Timetable()

    # -- the four verbs ------------------------------------------------------------------------------------------------

    def arrive(
        self, now: float, route: RouteEntry, cost: int, deadline_at: float, tenant: str | None = None
    ) -> Decision:
        """Decide about a request that has just arrived. Whoever names a tenant here names it in `release` too.

        Returns:
            The shared `ADMITTED`, a queued decision with its waiter, or a refusal; with the waiters that this
            arrival settled, to be woken.
        """
        route.arrived += 1
        if deadline_at - now < self._smallest_budget:
            reason = Reason.EXPIRED_ON_ARRIVAL if now >= deadline_at else Reason.INSUFFICIENT_BUDGET
            return self._refuse(now, route, reason, NOBODY)
        if route.rank < 0:
            return self._arrive_exempt(now, route)
        state = self.classes[route.rank]
        if tenant is not None and state.tenants is None:
            state.know_tenants()
        if self.waiting or self.attentive:
            return self._arrive_in_a_crowd(now, route, cost, deadline_at, tenant)
        slots = self.slots
        if not state.reserved and state.tenants is None:
            in_use = slots.in_use + cost  # try_take() for a class without reserve, without a call
            if in_use <= slots.limit - slots.unfilled:
                slots.in_use = in_use
                state.slots += cost
                route.admitted += 1
                return ADMITTED
        elif slots.try_take(state, cost):
            if state.tenants is not None:
                state.tenants.took(tenant, cost)
            route.admitted += 1
            return ADMITTED
        return self._arrive_in_a_crowd(now, route, cost, deadline_at, tenant)

    def release(self, now: float, route: RouteEntry, cost: int, tenant: str | None = None) -> Settled:
        """Take back the slots of one request, whose work has stopped; return the waiters to wake."""
        if route.rank < 0:
            if not self.exempt:
                raise RuntimeError("the place of an exempt request was given back, but none is taken")
            self.exempt -= 1
            return NOBODY
        state = self.classes[route.rank]
        self.slots.give_back(state, cost)
        if state.tenants is not None:
            state.tenants.gave_back(tenant, cost)
        if not self.waiting:
            return NOBODY
        self.forecast.drain.released(now, cost)
        return self._expire(now) + self._dispatch(now)

    def finish(self, route: RouteEntry, outcome: str, ran: float) -> None:
        """Count a run that has ended; its slots may still be held by a thread that goes on."""
        self.forecast.finish(route, outcome, ran)

    def end(  # noqa: PLR0917  on the way of every request: keywords would cost
        self, now: float, route: RouteEntry, cost: int, outcome: str, ran: float, tenant: str | None = None
    ) -> Settled:
        """Count a run that has ended and take back its slots: `finish` and `release` in one step."""
        runs = route.runs
        if outcome is COMPLETED and 0 < len(runs) < ENOUGH_TO_LEARN:
            runs.append(ran)  # as finish() does, without a call
        else:
            self.forecast.finish(route, outcome, ran)
        state = self.classes[route.rank]
        apart = state.tenants is not None or state.reserved or state.slots < cost
        if apart or self.waiting or route.rank < 0:
            return self.release(now, route, cost, tenant)
        self.slots.in_use -= cost  # give_back() for a class without reserve, without a call
        state.slots -= cost
        return NOBODY

    def tick(self, now: float) -> Settled:
        """Let time pass: return the waiters that it settled."""
        if not self.waiting:
            return NOBODY
        settled = self._expire(now)
        return settled + self._dispatch(now) if settled or self._ramp is not None else NOBODY

    def leave(self, now: float, waiter: Waiter) -> Settled:
        """Forget a waiter whose caller has gone, granted or not; return the waiters that this settled."""
        if waiter.state is WaiterState.WAITING:
            self._remove(now, waiter, WaiterState.LEFT)
            waiter.route.left += 1
            return self._expire(now) + self._dispatch(now)
        if waiter.state is WaiterState.GRANTED:
            waiter.state = WaiterState.LEFT
            waiter.route.left += 1
            self._give_back(waiter)
            return self._expire(now) + self._dispatch(now)
        return NOBODY

    def begin(self, now: float, waiter: Waiter) -> Decision:
        """Start a granted waiter's work, unless its deadline passed between the grant and this instant."""
        if waiter.state is WaiterState.REFUSED:
            return Decision(reason=waiter.reason, retry_after=waiter.retry_after)
        if waiter.state is not WaiterState.GRANTED:
            raise RuntimeError(f"a waiter in state {waiter.state.value!r} cannot begin")
        if now >= waiter.deadline_at:
            self._give_back(waiter)
            self._refuse_waiter(now, waiter, Reason.EXPIRED_IN_QUEUE)
            settled = self._expire(now) + self._dispatch(now)
            return Decision(reason=waiter.reason, retry_after=waiter.retry_after, settled=settled)
        waiter.state = WaiterState.RUNNING
        waiter.route.admitted += 1
        waiter.route.wait.add(now - waiter.arrived_at)
        return ADMITTED

    def refuse(self, now: float, route: RouteEntry, reason: Reason) -> Decision:
        """Refuse a request that has just arrived for what it is, whatever the load."""
        route.arrived += 1
        return self._refuse(now, route, reason, NOBODY)

    def next_wakeup(self) -> float | None:
        """Return when `tick` wants to be called next; None while nobody waits."""
        due = self._timetable.next_due()
        return due if due is None else min(due, self.grows_at())

    # -- arrival -------------------------------------------------------------------------------------------------------

    def _arrive_exempt(self, now: float, route: RouteEntry) -> Decision:
        if self.exempt >= self._policy.exempt_limit:
            return self._refuse(now, route, Reason.EXEMPT_LIMIT, NOBODY)
        self.exempt += 1
        route.admitted += 1
        return ADMITTED

    def _arrive_in_a_crowd(
        self, now: float, route: RouteEntry, cost: int, deadline_at: float, tenant: str | None
    ) -> Decision:
        refuses = self.attentive and self._look(now)
        settled = self._expire(now) + self._dispatch(now) if self.waiting else NOBODY
        if refuses:
            return self._refuse(now, route, Reason.DRAINING, settled)
        state = self.classes[route.rank]
        if not state.queue and self.slots.fits(state, cost):
            self.slots.take_in_turn(state, cost)
            if state.tenants is not None:
                state.tenants.took(tenant, cost)
            route.admitted += 1
            return Decision(settled=settled) if settled else ADMITTED
        if self.sheds(state) and state.displaced_by(tenant) is None:
            return self._refuse(now, route, Reason.OVERLOADED, settled)
        loser = self.make_room(state, tenant)
        if loser is None and (self.waiting >= self.queue_length or len(state.queue) >= state.most):
            return self._refuse(now, route, Reason.QUEUE_FULL, settled)
        give_up_at = self._give_up_at(now, deadline_at)
        if give_up_at <= now:
            return self._refuse(now, route, Reason.QUEUE_TIMEOUT, settled)
        if self.forecast.too_late(now, state, route, cost, deadline_at - now, tenant):
            return self._refuse(now, route, Reason.PREDICTED_LATE, settled)
        if loser is not None:
            self._remove(now, loser, WaiterState.REFUSED)
            own = loser.route.rank == state.rank
            self._refuse_waiter(now, loser, Reason.TENANT_SHARE if own else Reason.PUSHED_OUT)
            settled = (*settled, loser)
        waiter = Waiter(route, cost, now, give_up_at, deadline_at, tenant)
        if not self.waiting:
            self.forecast.drain.began(now)
        state.append(waiter)
        self.waiting += 1
        self._timetable.add(waiter, self.waiting)
        # The loser may have been a first waiter for whom slots were being saved up.
        settled += self._dispatch(now) if loser is not None else NOBODY
        return Decision(waiter=waiter, settled=settled)

    def _give_up_at(self, now: float, deadline_at: float) -> float:
        share = self._policy.wait_share
        if share == 1.0 or deadline_at == math.inf:
            return min(now + self._policy.max_wait, deadline_at)
        return now + min(self._policy.max_wait, share * (deadline_at - now))

    def make_room(self, state: ClassState, tenant: str | None) -> Waiter | None:
        """Return the waiter that has to go so that a request of this class can wait; None if there is none.

        The last of the lowest class below goes first, as long as that class holds more than the places that are its
        own. A class that holds less than its own places takes one back from whoever holds more than his. Where that
        does not help, the largest tenant of the class gives a place to one that holds fewer.
        """
        if len(state.queue) >= state.most or self.sheds(state):
            return state.displaced_by(tenant)
        if self.waiting < self.queue_length:
            return None
        short = len(state.queue) < state.places
        for other in reversed(self.classes):
            if other is not state and len(other.queue) > other.places and (short or other.rank > state.rank):
                return other.last()
        return state.displaced_by(tenant)

    def sheds(self, state: ClassState) -> bool:
        """Return whether a class may wait in no more places of the queue for now."""
        return self.overloaded and state is self._lowest and len(state.queue) >= state.places

    # -- the ends of waiting -------------------------------------------------------------------------------------------

    def _dispatch(self, now: float) -> Settled:
        """Grant slots to waiters, in turns, for as long as a first waiter fits."""
        granted: Settled = NOBODY
        if self._ramp is not None and self.waiting:
            self._grow(now)
        while self.waiting:
            state = self.slots.next_class()
            if state is None:
                self.slots.keep_firsts()
                break
            waiter = state.first()
            self.slots.take_in_turn(state, waiter.cost)
            state.serve(now, waiter, self.forecast.typical_run)
            self._remove(now, waiter, WaiterState.GRANTED)
            granted = (*granted, waiter)
        return granted

    def _give_back(self, waiter: Waiter) -> None:
        state = self.classes[waiter.route.rank]
        self.slots.give_back(state, waiter.cost)
        if state.tenants is not None:
            state.tenants.gave_back(waiter.tenant, waiter.cost)

    def _expire(self, now: float) -> Settled:
        expired = []
        while (waiter := self._timetable.pop_due(now)) is not None:
            self._remove(now, waiter, WaiterState.REFUSED)
            late = now >= waiter.deadline_at
            self._refuse_waiter(now, waiter, Reason.EXPIRED_IN_QUEUE if late else Reason.QUEUE_TIMEOUT)
            expired.append(waiter)
        return tuple(expired)

    def _remove(self, now: float, waiter: Waiter, state: WaiterState) -> None:
        self.classes[waiter.route.rank].remove(waiter)
        self.waiting -= 1
        waiter.state = state
        if not self.waiting:
            self.forecast.drain.ended(now)

    def _refuse_waiter(self, now: float, waiter: Waiter, reason: Reason) -> None:
        waiter.state = WaiterState.REFUSED
        waiter.reason = reason
        waiter.retry_after = self.retry_after(now, waiter.route, reason)
        waiter.route.refuse(reason)

    def _refuse(self, now: float, route: RouteEntry, reason: Reason, settled: Settled) -> Decision:
        route.refuse(reason)
        return Decision(reason=reason, retry_after=self.retry_after(now, route, reason), settled=settled)

    def retry_after(self, now: float, route: RouteEntry, reason: Reason) -> int | None:
        """Return the whole seconds after which a refused caller should come back; None where a refusal does not say."""
        if REFUSAL_RULES[reason].retry_after is RetryAfter.NEVER:
            return None
        return self.forecast.retry_after(now, self.classes[max(route.rank, 0)])
