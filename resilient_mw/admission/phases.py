"""The first and the last of a controller's work: a limit that grows at first, and a drain that lets nothing new in."""

from __future__ import annotations

import math

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.queue import ClassState, class_states
from resilient_mw.admission.ramp import Ramp
from resilient_mw.admission.slots import Slots


class Phases:
    """The base of a controller. See the module.

    Args:
        policy: its slots and classes, and the seconds of the ramp.

    Attributes:
        classes: the state of each class, highest rank first.
        slots: theirs.
        draining: whether the server is about to stop.
        refuse_from: the instant from which on a draining server takes no new work.
        attentive: whether an arrival is looked at more closely than for a free slot.
    """

    def __init__(self, policy: ServerPolicy) -> None:
        self.classes: list[ClassState] = class_states(policy.classes, policy.queue_length)
        self.slots = Slots(policy.slots, self.classes)
        self.draining = False
        self.refuse_from = math.inf
        self._ramp = Ramp(policy.ramp, policy.slots, policy.classes) if policy.ramp else None
        if self._ramp is not None:
            self.slots.limit = self._ramp.first
        self.attentive = self._ramp is not None

    def grows_at(self) -> float:
        """Return when the limit grows next, for those who wait; never, unless the service has just started."""
        ramp = self._ramp  # asked without the lock
        return math.inf if ramp is None else ramp.next_at()

    def may_have_grown(self, now: float) -> bool:
        """Return whether an arrival might find a larger limit than there is, because it looks at the ramp."""
        ramp = self._ramp
        return ramp is not None and (not ramp.begun or now >= ramp.next_at())

    def drain(self, refuse_from: float = -math.inf) -> None:
        """Take no new work from an instant on. Waiters keep their places, exempt requests still pass.

        A second call may bring the instant forward. Plain assignments, so that a signal handler may come by here
        whatever lock the thread holds that it interrupts.
        """
        self.refuse_from = min(refuse_from, self.refuse_from)
        self.draining = True
        self.attentive = True

    def resume(self) -> None:
        """Take new work again."""
        self.refuse_from = math.inf
        self.draining = False
        self.attentive = self._ramp is not None

    def _look(self, now: float) -> bool:
        """Let the limit be that of this instant; return whether no new work is taken any more."""
        if self._ramp is not None:
            self._grow(now)
        return now >= self.refuse_from

    def _grow(self, now: float) -> None:
        """Let the limit be what the start-up ramp has come to."""
        if self._ramp is None:
            return
        self.slots.limit, full = self._ramp.limit(now)
        if full:
            self._ramp = None
            self.attentive = False
            if self.draining:  # asked afterwards: drain() takes no lock
                self.attentive = True
