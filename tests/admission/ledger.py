"""An independent account of what an admission controller did, kept with lists and sums.

It is told what each verb answered and objects at once to what must never happen. It decides nothing: that the right one
of several allowed answers was given is shown by the tests of the controller.
"""

from __future__ import annotations

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.decision import Decision, Settled
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.core.rejection import REFUSAL_RULES, Reason, RetryAfter

MADE_ROOM = (Reason.PUSHED_OUT, Reason.TENANT_SHARE)
"""Reasons of waiters that lose their place to an arrival."""


class Request:
    """One request that was not refused on arrival.

    Attributes:
        rank, cost: its class and the slots it needs.
        deadline_at: instant.
        waiter: what the controller made of it, if it was queued.
        bypassed: slots that others took while it was the first of its class and did not fit.
        overtaken: slots that others took while it was the first of its class.
        tenant: on whose behalf it came.
    """

    __slots__ = ("bypassed", "cost", "deadline_at", "overtaken", "rank", "tenant", "waiter")

    def __init__(
        self,
        rank: int,
        cost: int,
        deadline_at: float,
        waiter: Waiter | None = None,
        tenant: str | None = None,
    ) -> None:
        self.rank = rank
        self.cost = cost
        self.deadline_at = deadline_at
        self.waiter = waiter
        self.bypassed = 0
        self.overtaken = 0
        self.tenant = tenant


class Ledger:
    """Who holds slots, who waits, and what may happen next."""

    def __init__(self, policy: ServerPolicy) -> None:
        self.limit = policy.slots
        self.queue_length = policy.queue_length
        self.ranks = range(len(policy.classes))
        self.reserved = [each.reserved for each in policy.classes]
        self.weights = [each.weight for each in policy.classes]
        self.most = [
            self.queue_length if each.queue_length is None else min(each.queue_length, self.queue_length)
            for each in policy.classes
        ]
        total = sum(self.weights)
        shares = [int(self.queue_length * weight / total) for weight in self.weights]
        if self.queue_length >= len(shares):
            # One place at least for everybody, at the cost of the largest share.
            short = shares.count(0)
            shares = [share or 1 for share in shares]
            for _ in range(max(0, sum(shares) - self.queue_length)):
                shares[shares.index(max(shares))] -= 1
            assert sum(shares) <= self.queue_length
            assert short == 0 or min(shares) == 1
        self.places = [min(share, most) for share, most in zip(shares, self.most, strict=True)]
        self.most_cost = [self.limit - sum(self.reserved) + own for own in self.reserved]
        self.held = [0 for _ in self.ranks]
        self.running: list[Request] = []
        self.granted: list[Request] = []
        self.queues: list[list[Request]] = [[] for _ in self.ranks]
        self.waiting = 0
        self.overloaded = False
        # Of each class: whether a tenant was ever named, when each tenant got its place in the turns, who is kept first.
        self.aware = [False for _ in self.ranks]
        self.turns: list[dict[str | None, int]] = [{} for _ in self.ranks]
        self.kept: list[Request | None] = [None for _ in self.ranks]
        self.changes = 0
        # Where the newest may come first, both ends of a line are right, and whose turn it is, is told from outside.
        self.both_ends = [each.queue_order != "fifo" for each in policy.classes]
        self.counts = dict.fromkeys(("arrived", "admitted", "refused", "left"), 0)

    # -- what may be

    def available(self, rank: int) -> int:
        """Slots that a class could take: what is free, less what others have reserved and not filled."""
        kept = sum(max(0, self.reserved[other] - self.held[other]) for other in self.ranks if other != rank)
        return self.limit - sum(self.held) - kept

    def may_start(self, rank: int, cost: int) -> bool:
        if cost > self.available(rank):
            return False
        if cost <= self.reserved[rank] - self.held[rank]:
            return True
        return not any(
            kept is not None and kept.bypassed >= self.limit and kept.cost > self.available(other)
            for other, kept in enumerate(self.kept)
            if other != rank
        )

    def line(self, rank: int, tenant: str | None) -> list[Request]:
        """The waiters of a tenant, oldest first; of everybody where no tenant was ever named."""
        return [request for request in self.queues[rank] if not self.aware[rank] or request.tenant == tenant]

    def holds(self, rank: int, tenant: str | None) -> int:
        return sum(
            request.cost
            for request in (*self.running, *self.granted)
            if request.rank == rank and request.tenant == tenant
        )

    def tenants(self, rank: int) -> set[str | None]:
        """The tenants of a class that wait or hold slots."""
        everybody = (*self.running, *self.granted, *self.queues[rank])
        return {request.tenant for request in everybody if request.rank == rank}

    def first(self, rank: int) -> Request:
        """The waiter whose turn it is in a class that serves its waiters in the order of arrival."""
        kept = self.kept[rank]
        if kept is not None:
            return kept
        return self.line(rank, self._whose_turn(rank))[0]

    def _whose_turn(self, rank: int) -> str | None:
        turns = self.turns[rank]
        return min(turns, key=lambda name: (self.holds(rank, name), turns[name])) if turns else None

    def may_displace(self, rank: int, tenant: str | None) -> bool:
        """Whether the largest tenant of a class has to give a place to another one."""
        if not self.aware[rank] or not self.queues[rank]:
            return False
        return len(self.line(rank, tenant)) + 1 < self._most_places(rank)

    def _most_places(self, rank: int) -> int:
        return max(len(self.line(rank, request.tenant)) for request in self.queues[rank])

    def most_overtaken(self, rank: int) -> float:
        """The slots that others may take before the first waiter of a class: a limit's worth, and their turns."""
        cost = max(self.most_cost)
        turns = sum(
            cost * self.weights[other] / self.weights[rank] + cost for other in self.ranks if other != rank
        )
        return self.limit + cost + turns

    def may_push_out(self, rank: int) -> int | None:
        """The class that loses its newest waiter to an arrival of another class; None if there is none."""
        short = len(self.queues[rank]) < self.places[rank]
        for other in reversed(self.ranks):
            if other != rank and len(self.queues[other]) > self.places[other] and (short or other > rank):
                return other
        return None

    def sheds(self, rank: int) -> bool:
        """Whether a class waits in none but its own places: the lowest of several while the service is overloaded."""
        lowest = len(self.ranks) > 1 and rank == self.ranks[-1]
        return self.overloaded and lowest and len(self.queues[rank]) >= self.places[rank]

    # -- what was done

    def arrived(  # noqa: PLR0917  what the controller was told, in its order
        self,
        now: float,
        rank: int,
        cost: int,
        deadline_at: float,
        decision: Decision,
        tenant: str | None = None,
    ) -> None:
        self.counts["arrived"] += 1
        request = Request(rank, cost, deadline_at, decision.waiter, tenant)
        useless = decision.reason in {Reason.EXPIRED_ON_ARRIVAL, Reason.INSUFFICIENT_BUDGET}
        if tenant is not None and not useless and not self.aware[rank]:
            self.aware[rank] = True
            if self.queues[rank]:
                self._queue_up(rank, None)
        if decision.waiter is not None:
            assert decision.reason is None
            self._settle(now, decision.settled, request)
            assert not self.sheds(rank) or request in self.queues[rank], "it was to be shed"
            if not any(waiter.reason in MADE_ROOM for waiter in decision.settled):
                self._append(request)
            return
        self._settle(now, decision.settled)
        if decision.reason is not None:
            self.counts["refused"] += 1
            self._check_retry_after(decision.reason, decision.retry_after)
            self._check_refusal(now, request, decision.reason)
            return
        assert not self.queues[rank], "it passed a waiter of its own class"
        self._start(now, request)
        self.running.append(request)
        self.counts["admitted"] += 1

    def released(self, now: float, request: Request, settled: Settled) -> None:
        self.running.remove(request)
        self._gave_back(request)
        self._settle(now, settled)

    def ticked(self, now: float, settled: Settled) -> None:
        self._settle(now, settled)

    def left(self, now: float, request: Request, settled: Settled) -> None:
        if request in self.granted:
            self.granted.remove(request)
            self._gave_back(request)
        else:
            self._remove(request)
        self.counts["left"] += 1
        self._settle(now, settled)

    def begun(self, now: float, request: Request, decision: Decision) -> None:
        self.granted.remove(request)
        if now >= request.deadline_at:
            assert decision.reason is Reason.EXPIRED_IN_QUEUE, "it was begun after its deadline"
            self._gave_back(request)
            self.counts["refused"] += 1
        else:
            assert decision.admitted
            self.running.append(request)
            self.counts["admitted"] += 1
        self._settle(now, decision.settled)

    # -- the same after every verb

    def check(self) -> None:
        assert sum(self.held) <= self.limit
        for rank in self.ranks:
            assert self.available(rank) >= 0, "somebody runs in a slot that was reserved for others"
            queue = self.queues[rank]
            if queue and not self.both_ends[rank]:
                first = self.first(rank)
                assert not self.may_start(rank, first.cost), "the first waiter could run: a lost wake-up"
                assert first.overtaken <= self.most_overtaken(rank), "a class starves"
            assert len(queue) <= self.most[rank]
        assert self.waiting <= self.queue_length
        counts = self.counts
        known = counts["admitted"] + counts["refused"] + counts["left"] + self.waiting + len(self.granted)
        assert counts["arrived"] == known

    def told_first(self, rank: int, waiter: Waiter | None, *, kept: bool) -> None:
        """Take notice of who is first in a class where both ends of a line may be."""
        self.kept[rank] = None
        if waiter is None:
            return
        first = self._find(waiter)
        assert kept or first in self._ends(rank), "it is somebody else's turn"
        if kept:
            first.bypassed = waiter.bypassed
            self.kept[rank] = first
        assert not self.may_start(rank, first.cost), "the first waiter could run: a lost wake-up"

    def _ends(self, rank: int) -> tuple[Request, Request]:
        line = self.line(rank, self._whose_turn(rank))
        return line[0], line[-1]

    def check_nobody_is_dead(self, now: float) -> None:
        for queue in self.queues:
            for request in queue:
                assert request.waiter is not None
                assert request.waiter.give_up_at > now, "a dead waiter holds a place"

    # -- parts

    def _settle(self, now: float, settled: Settled, arriving: Request | None = None) -> None:
        for waiter in settled:
            request = self._find(waiter, arriving)
            if waiter.state is WaiterState.GRANTED:
                assert now < waiter.give_up_at, "the dead were admitted"
                if not self.both_ends[request.rank]:
                    assert self.first(request.rank) is request, "somebody of its class came before"
                else:
                    kept = self.kept[request.rank]
                    right = self._ends(request.rank) if kept is None else (kept,)
                    assert request in right, "it is somebody else's turn"
                self._remove(request)
                self._start(now, request)
                self.granted.append(request)
                continue
            assert waiter.state is WaiterState.REFUSED
            assert waiter.reason is not None
            self._check_retry_after(waiter.reason, waiter.retry_after)
            self.counts["refused"] += 1
            if waiter.reason in MADE_ROOM:
                assert arriving is not None, "nobody arrived who could have pushed it out"
                self._keep()
                self._check_loser(request, arriving, waiter.reason)
                self._remove(request)
                self._append(arriving)
                continue
            self._remove(request)
            assert now >= waiter.give_up_at, "it was refused before its time"
            late = now >= waiter.deadline_at
            assert waiter.reason is (Reason.EXPIRED_IN_QUEUE if late else Reason.QUEUE_TIMEOUT)
        self._keep()

    def _check_loser(self, loser: Request, arriving: Request, reason: Reason | None) -> None:
        rank = arriving.rank
        pushing = self.may_push_out(rank) if len(self.queues[rank]) < self.most[rank] else None
        if reason is Reason.PUSHED_OUT:
            assert self.waiting == self.queue_length
            assert loser.rank == pushing
        else:
            assert loser.rank == rank
            shed, bounded = self.sheds(rank), len(self.queues[rank]) == self.most[rank]
            assert shed or bounded or self.waiting == self.queue_length
            assert shed or bounded or pushing is None
            assert self.may_displace(rank, arriving.tenant), "it held its share already"
        line = self.line(loser.rank, loser.tenant)
        if self.aware[loser.rank]:
            assert len(line) == self._most_places(loser.rank), "another tenant holds more places"
        if self.both_ends[loser.rank]:
            assert loser in {line[0], line[-1]}
        else:
            assert line[-1] is loser, "a newer one of its line stayed"

    def _start(self, now: float, request: Request) -> None:
        rank, cost = request.rank, request.cost
        assert now < request.deadline_at, "the dead were admitted"
        assert self.may_start(rank, cost), "it does not fit, or slots were saved up for another"
        taken = max(0, cost - max(0, self.reserved[rank] - self.held[rank]))
        for other, queue in enumerate(self.queues):
            if other != rank and queue and not self.both_ends[other]:
                first = self.first(other)
                first.overtaken += taken
                if taken and first.cost > self.available(other):
                    first.bypassed += taken
                    self.kept[other] = first
        self.held[rank] += cost
        self._changed(request)

    def _gave_back(self, request: Request) -> None:
        self.held[request.rank] -= request.cost
        self._changed(request)

    def _changed(self, request: Request) -> None:
        """What a tenant holds has changed: if it waits, it is the last of those that hold as much."""
        if request.tenant in self.turns[request.rank]:
            self._queue_up(request.rank, request.tenant)

    def _queue_up(self, rank: int, tenant: str | None) -> None:
        self.changes += 1
        self.turns[rank][tenant] = self.changes

    def _keep(self) -> None:
        """Where slots are free and the first does not fit, it stays the first."""
        for rank in self.ranks:
            if self.queues[rank] and not self.both_ends[rank] and self.available(rank) > 0:
                self.kept[rank] = self.first(rank)

    def _append(self, request: Request) -> None:
        self.queues[request.rank].append(request)
        self.waiting += 1
        if self.aware[request.rank] and request.tenant not in self.turns[request.rank]:
            self._queue_up(request.rank, request.tenant)

    def _remove(self, request: Request) -> None:
        rank = request.rank
        self.queues[rank].remove(request)
        self.waiting -= 1
        if self.kept[rank] is request:
            self.kept[rank] = None
        if self.aware[rank] and not self.line(rank, request.tenant):
            del self.turns[rank][request.tenant]

    def _find(self, waiter: Waiter, arriving: Request | None = None) -> Request:
        for request in self.queues[waiter.route.rank]:
            if request.waiter is waiter:
                return request
        assert arriving is None or arriving.waiter is not waiter, "it was settled before it had a place"
        raise AssertionError("it was settled twice, or had never waited")

    def _check_retry_after(self, reason: Reason, retry_after: int | None) -> None:
        if REFUSAL_RULES[reason].retry_after is RetryAfter.NEVER:
            assert retry_after is None
        else:
            assert retry_after is not None
            assert 1 <= retry_after <= 60

    def _check_refusal(self, now: float, request: Request, reason: Reason) -> None:
        rank, cost, deadline_at = request.rank, request.cost, request.deadline_at
        if reason in {Reason.EXPIRED_ON_ARRIVAL, Reason.INSUFFICIENT_BUDGET}:
            assert (now >= deadline_at) is (reason is Reason.EXPIRED_ON_ARRIVAL)
            return
        if reason is Reason.DRAINING:
            return
        assert self.queues[rank] or not self.may_start(rank, cost), "it could have run"
        shed = self.sheds(rank) and not self.may_displace(rank, request.tenant)
        assert shed is (reason is Reason.OVERLOADED)
        if reason is Reason.OVERLOADED:
            return
        if reason is Reason.QUEUE_FULL:
            full = self.waiting >= self.queue_length and self.may_push_out(rank) is None
            assert full or len(self.queues[rank]) >= self.most[rank], "there was a place to wait in"
            assert not self.may_displace(rank, request.tenant), "another tenant holds more than its share"
        else:
            assert reason in {Reason.QUEUE_TIMEOUT, Reason.PREDICTED_LATE}
