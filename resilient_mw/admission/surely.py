"""Refusals that are certain before anything is known of a request but its route.

For a server that can refuse before it has made a request of what it has read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilient_mw.core.rejection import Reason

if TYPE_CHECKING:
    from resilient_mw.admission.controller import AdmissionController
    from resilient_mw.admission.entry import RouteEntry


def surely_refused(controller: AdmissionController, now: float, route: RouteEntry) -> Reason | None:
    """Return why `arrive` would refuse any request of a route now, whatever its deadline; None if that is not certain.

    It is not where an arrival might settle waiters and then find room, or find that the limit has grown. Nothing changes.
    """
    if route.rank < 0 or route.head_rule is not None:  # the tenant, which may push one of another out
        return None
    if now >= controller.refuse_from:
        return Reason.DRAINING
    if controller.may_have_grown(now):
        return None
    state = controller.classes[route.rank]
    if controller.waiting:
        due = controller.next_wakeup()
        if (due is not None and due <= now) or controller.slots.next_class() is not None:
            return None
    if not state.queue and controller.slots.fits(state, route.cost):
        return None
    full = controller.waiting >= controller.queue_length or len(state.queue) >= state.most
    sheds = controller.sheds(state)
    if not (full or sheds) or controller.make_room(state, None) is not None:
        return None
    return Reason.OVERLOADED if sheds else Reason.QUEUE_FULL


def refuse_surely(
    controller: AdmissionController, now: float, route: RouteEntry
) -> tuple[Reason, int | None] | None:
    """Refuse a request that has just arrived if that is certain: why, and after how many seconds to come back."""
    reason = surely_refused(controller, now, route)
    if reason is None:
        return None
    route.arrived += 1
    route.refuse(reason)
    return reason, controller.retry_after(now, route, reason)
