"""The wait queue of one class, and the timetable of all waiters.

May live here: order and removal. May not: any decision about who deserves a slot (that is `controller`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.core.priority import PriorityClass


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
    """

    __slots__ = (
        "most",
        "places",
        "priority",
        "queue",
        "queued_cost",
        "rank",
        "reserved",
        "slots",
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

    def oldest(self) -> Waiter:
        """Return the waiter that is next in this class."""
        return next(iter(self.queue))

    def newest(self) -> Waiter:
        """Return the waiter that came last."""
        return next(reversed(self.queue))

    def append(self, waiter: Waiter) -> None:
        """Take a waiter in at the end."""
        self.queue[waiter] = None
        self.queued_cost += waiter.cost

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out, wherever it stands."""
        del self.queue[waiter]
        self.queued_cost -= waiter.cost


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
