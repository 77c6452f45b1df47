"""Slots and turns: how many are free for a class, and which class is next.

Weighted turns (stride scheduling, Waldspurger and Weihl 1995; the common time as in start-time fair queueing, Goyal,
Vin and Cheng 1996) between the classes whose first waiter fits. A first
waiter that does not fit because it needs several slots lets other classes pass until they have taken as many slots as
the limit; from then on slots are saved up for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from resilient_mw.admission.queue import ClassState


class Slots:
    """The slots of one policy. Not thread-safe: the owner locks.

    Attributes:
        limit: slots that exist.
        in_use: slots taken.
        classes: the state of each class, highest rank first.
        unfilled: slots that classes have reserved and do not use right now.
    """

    __slots__ = ("_turn", "classes", "in_use", "limit", "unfilled")

    def __init__(self, limit: int, classes: Sequence[ClassState]) -> None:
        self.limit = limit
        self.in_use = 0
        self.classes = classes
        self.unfilled = sum(state.unfilled for state in classes)
        self._turn = 0.0

    def available(self, state: ClassState) -> int:
        """Return the slots that a class could take now: the free ones that no other class has reserved."""
        return self.limit - self.in_use - self.unfilled + state.unfilled

    def fits(self, state: ClassState, cost: int) -> bool:
        """Return whether a request may start now, with regard to those that slots are saved up for."""
        if cost > self.available(state):
            return False
        if cost <= state.unfilled:
            return True
        for other in self.classes:
            if other is not state and other.queue:
                first = other.first()
                if first.bypassed >= self.limit and first.cost > self.available(other):
                    return False
        return True

    def try_take(self, state: ClassState, cost: int) -> bool:
        """Take slots while nobody waits; return whether there were enough for this class."""
        in_use = self.in_use + cost
        if in_use > self.limit - self.unfilled + state.unfilled:
            return False
        self.in_use = in_use
        state.slots += cost
        if state.reserved:
            self._refill(state)
        return True

    def take(self, state: ClassState, cost: int) -> None:
        """Take slots that are known to be there."""
        self.in_use += cost
        state.slots += cost
        if state.reserved:
            self._refill(state)

    def take_in_turn(self, state: ClassState, cost: int) -> None:
        """Take slots while others wait: charge the class's turn, and note whom it passed.

        What a class takes of its own reserve is nobody else's and costs no turn. A class that could not run for a
        while takes its turn as if it had just come: it gets no credit to burn. The common time follows every turn that
        is taken, also that of an arrival that passes waiters who do not fit: otherwise its class would pay later for
        slots that nobody else could use.
        """
        taken = cost - min(cost, state.unfilled)
        for other in self.classes:
            if taken and other is not state and other.queue:
                first = other.first()
                if first.cost > self.available(other):
                    first.bypassed += taken
                    other.kept = first
        if taken:
            self._turn = max(self._turn, state.turn)
            state.turn = self._turn + taken / state.priority.weight
        self.take(state, cost)

    def give_back(self, state: ClassState, cost: int) -> None:
        """Take slots back.

        Raises:
            RuntimeError: the class does not hold that many; somebody gave them back twice.
        """
        if state.slots < cost:
            raise RuntimeError(
                f"{cost} slots of {state.priority.name!r} were given back, but it holds {state.slots}"
            )
        self.in_use -= cost
        state.slots -= cost
        if state.reserved:
            self._refill(state)

    def next_class(self) -> ClassState | None:
        """Return the class whose first waiter may start now; None if no first waiter fits."""
        best: ClassState | None = None
        for state in self.classes:
            if (
                state.queue
                and (best is None or state.turn < best.turn)
                and self.fits(state, state.first().cost)
            ):
                best = state
        return best

    def keep_firsts(self) -> None:
        """Let a first waiter stay the first, whoever comes, where slots are free and it does not fit."""
        if self.in_use >= self.limit:
            return
        for state in self.classes:
            if state.queue and self.available(state) > 0:
                state.kept = state.first()

    def change(self, limit: int) -> None:
        """Take another limit, and what the classes reserve by now. More may be taken than there are from now on."""
        self.limit = limit
        for state in self.classes:
            self._refill(state)

    def _refill(self, state: ClassState) -> None:
        unfilled = max(0, state.reserved - state.slots)
        self.unfilled += unfilled - state.unfilled
        state.unfilled = unfilled
