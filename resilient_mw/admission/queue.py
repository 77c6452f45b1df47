"""The wait queue of one class, and the timetable of all waiters.

May live here: order and removal. May not: any decision about who deserves a slot (that is `controller`), and the turns
of tenants (that is `tenants`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.admission.standing import StandingQueue
from resilient_mw.admission.tenants import TenantTurns
from resilient_mw.core.priority import NEWEST_FIRST, PriorityClass


class ClassState:
    """What one class holds: its slots, its queue in order of arrival, its turn.

    Attributes:
        priority: the class.
        rank: its index in the policy, 0 is the highest.
        slots: slots in use.
        reserved: slots that no other class may take.
        unfilled: reserved slots that it does not use right now.
        queue: its waiters, oldest first.
        queued_cost: slots that they need in all.
        turn: its virtual time: slots taken in turns, divided by its weight. The lowest one is next.
        places: queue places that no other class can push it out of.
        most: most waiters at once.
        tenants: the turns of its tenants; None as long as no request has named one.
        standing: whether its queue stands; None where the order is always that of arrival.
        kept: the waiter that stays the first whoever comes, since slots are being saved up for it.
    """

    __slots__ = (
        "kept",
        "most",
        "places",
        "priority",
        "queue",
        "queued_cost",
        "rank",
        "reserved",
        "slots",
        "standing",
        "tenants",
        "turn",
        "unfilled",
    )

    def __init__(self, priority: PriorityClass, rank: int, *, places: int, most: int) -> None:
        self.priority = priority
        self.rank = rank
        self.slots = 0
        self.reserved = self.unfilled = priority.reserved
        self.queue: OrderedDict[Waiter, None] = OrderedDict()
        self.queued_cost = 0
        self.turn = 0.0
        self.places = places
        self.most = most
        self.tenants: TenantTurns | None = None
        self.standing = StandingQueue() if priority.queue_order == NEWEST_FIRST else None
        self.kept: Waiter | None = None

    def know_tenants(self) -> None:
        """Serve the tenants in turns from now on; whoever waits or runs already belongs to the one without a name."""
        self.tenants = TenantTurns(self.queue, self.slots)

    @property
    def newest_first(self) -> bool:
        """Whether the newest waiter is served first at the moment."""
        return self.standing is not None and self.standing.standing

    def oldest(self) -> Waiter:
        """Return the waiter that came first."""
        return next(iter(self.queue))

    def first(self) -> Waiter:
        """Return the waiter that is next in this class."""
        if self.kept is not None:
            return self.kept
        if self.tenants is not None:
            return self.tenants.first(newest_first=self.newest_first)
        return next(reversed(self.queue)) if self.newest_first else next(iter(self.queue))

    def last(self) -> Waiter:
        """Return the waiter that would be served last: the first to go when somebody has to."""
        if self.tenants is not None:
            return self.tenants.last(newest_first=self.newest_first)
        return next(iter(self.queue)) if self.newest_first else next(reversed(self.queue))

    def displaced_by(self, tenant: str | None) -> Waiter | None:
        """Return the waiter that goes so that another request of a tenant can wait in this full class; None: none."""
        if self.tenants is None or not self.tenants.may_displace(tenant):
            return None
        return self.tenants.last(newest_first=self.newest_first)

    def ahead(self, tenant: str | None) -> int:
        """Return slots that are granted in this class before another request of a tenant, at least."""
        if self.newest_first:
            return 0
        if self.tenants is None:
            return self.queued_cost
        return min(self.queued_cost, self.tenants.ahead(tenant))

    def serve(self, now: float, waiter: Waiter, typical_run: float) -> None:
        """Note that a waiter has got its slots, before it is taken out."""
        if self.tenants is not None:
            self.tenants.took(waiter.tenant, waiter.cost)
        if self.standing is not None:
            self.standing.look(now, self.oldest().arrived_at, typical_run)

    def append(self, waiter: Waiter) -> None:
        """Take a waiter in at the end."""
        self.queue[waiter] = None
        self.queued_cost += waiter.cost
        if self.tenants is not None:
            self.tenants.append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out, wherever it stands."""
        del self.queue[waiter]
        self.queued_cost -= waiter.cost
        if self.kept is waiter:
            self.kept = None
        if self.tenants is not None:
            self.tenants.remove(waiter)
        if self.standing is not None and not self.queue:
            self.standing.gone()


def class_states(classes: Sequence[PriorityClass], queue_length: int) -> list[ClassState]:
    """Return the empty state of each class, with its own places in the queue.

    A class owns as many places as its weight's share of the queue, rounded down; where the queue has a place for each
    class, at least one, so that the smallest share is not rounded to nothing.
    """
    total = sum(each.weight for each in classes)
    places = [int(queue_length * each.weight / total) for each in classes]
    if queue_length >= len(classes):
        places = [max(1, each) for each in places]
        while sum(places) > queue_length:
            places[places.index(max(places))] -= 1
    states = []
    for rank, each in enumerate(classes):
        most = queue_length if each.queue_length is None else min(each.queue_length, queue_length)
        states.append(ClassState(each, rank, places=min(places[rank], most), most=most))
    return states


class Timetable:
    """The instants at which waiters give up, earliest first.

    A waiter that leaves early stays in the heap until its time or the next compaction, so removal costs nothing and
    the heap never holds more than twice the most that waited at once, and a constant.
    """

    __slots__ = ("_heap", "_sequence")

    SLACK = 64

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Waiter]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, waiter: Waiter, waiting: int) -> None:
        """Note when a waiter gives up; `waiting` is the number of live waiters."""
        self._sequence += 1
        heapq.heappush(self._heap, (waiter.give_up_at, self._sequence, waiter))
        if len(self._heap) > 2 * waiting + self.SLACK:
            self._heap = [item for item in self._heap if item[2].state is WaiterState.WAITING]
            heapq.heapify(self._heap)

    def pop_due(self, now: float) -> Waiter | None:
        """Take out the next live waiter whose time has come; None if there is none."""
        heap = self._heap
        while heap and (heap[0][2].state is not WaiterState.WAITING or heap[0][0] <= now):
            waiter = heapq.heappop(heap)[2]
            if waiter.state is WaiterState.WAITING:
                return waiter
        return None

    def next_due(self) -> float | None:
        """Return the instant at which the next live waiter gives up; None if nobody waits."""
        heap = self._heap
        while heap and heap[0][2].state is not WaiterState.WAITING:
            heapq.heappop(heap)
        return heap[0][0] if heap else None
