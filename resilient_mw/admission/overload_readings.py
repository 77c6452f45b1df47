"""The signals that admission itself can tell. Called under the owner's lock; costs one step per class."""

from __future__ import annotations

from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.overload_policy import Signal


def admission_readings(controller: AdmissionController, now: float) -> dict[Signal, float]:
    """Return how full slots and queue are, and how far the oldest waiter of any class is on its way to giving up."""
    slots, length = controller.slots, controller.queue_length
    queue = controller.waiting / length if length else float(slots.in_use >= slots.limit)
    age = 0.0
    for state in controller.classes:
        if state.queue:
            waiter = state.oldest()
            age = max(age, (now - waiter.arrived_at) / (waiter.give_up_at - waiter.arrived_at))
    return {Signal.SLOTS: slots.in_use / slots.limit, Signal.QUEUE: queue, Signal.QUEUE_AGE: age}
