"""Other numbers for a controller at work: who runs and who waits is kept, and slots are neither lost nor made."""
# The controller and its reload are one subject in two files.
# ruff: noqa: SLF001

from __future__ import annotations

import math

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.decision import Settled
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.admission.queue import class_states
from resilient_mw.core.rejection import Reason

FIXED = {
    "name": "the counters of the metrics would begin anew under another name",
    "overload": "the level would begin anew",
    "ramp": "it is about the start, which is over",
    "shadow": "those that run were let in under the other rules",
}
"""The fields that stay as they are, and why."""


def check_reload(before: ServerPolicy, after: ServerPolicy) -> None:
    """Check that a policy can take the place of another one.

    Raises:
        ValueError: it differs in something that cannot change while requests run, naming it.
    """
    for field, why in FIXED.items():
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            raise ValueError(
                f"{field}={new!r} cannot be reloaded, {why}: keep {old!r}, or start the process again"
            )
    if (before.websocket_limit is None) is not (after.websocket_limit is None):
        raise ValueError(
            f"websocket_limit={after.websocket_limit!r} cannot be reloaded, because nobody knows how many of those that are "
            f"open count: keep {before.websocket_limit!r}, or start the process again. A number may become another number"
        )
    names = [[each.name for each in policy.classes] for policy in (before, after)]
    if names[0] != names[1]:
        raise ValueError(
            f"classes={names[1]!r} cannot be reloaded, because requests of the others run and wait: keep the names and "
            f"their order, {names[0]!r}, or start the process again"
        )


def reload(controller: AdmissionController, now: float, policy: ServerPolicy) -> Settled:
    """Put other numbers in force; return the waiters that this settled.

    More slots may be taken than there are from now on, until enough have come back. Waiters keep their places, and the time
    that they may wait; only one that would need more slots than its class can ever have now is refused at once.
    """
    controller._policy = policy
    controller._smallest_budget = max(policy.smallest_budget, math.ulp(0.0))
    controller.queue_length = policy.queue_length
    for state, planned in zip(
        controller.classes, class_states(policy.classes, policy.queue_length), strict=True
    ):
        state.priority, state.places, state.most = planned.priority, planned.places, planned.most
        state.reserved = planned.reserved
        if (state.standing is None) is not (planned.standing is None):
            state.standing = planned.standing
    limit = policy.slots
    if controller._ramp is not None:
        controller._ramp.aim(limit, policy.classes)
        limit = controller._ramp.first
    controller.slots.change(limit)
    hopeless: list[Waiter] = []
    for state in controller.classes:
        most = policy.most_cost(state.priority.name)
        hopeless += [waiter for waiter in state.queue if waiter.cost > most]
    for waiter in hopeless:
        controller._remove(now, waiter, WaiterState.REFUSED)
        controller._refuse_waiter(now, waiter, Reason.QUEUE_TIMEOUT)
    return (*hopeless, *controller._expire(now), *controller._dispatch(now))
