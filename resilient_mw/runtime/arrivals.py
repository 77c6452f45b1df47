"""The last step of a request of a route that is not plain: its quotas, its place among the streams, its slots."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.policy_checks import QUOTAS
from resilient_mw.core.quotas import Limited
from resilient_mw.core.rejection import Reason
from resilient_mw.core.streams import HEAD
from resilient_mw.runtime.quotas import Asking
from resilient_mw.runtime.shadow import ShadowGuard

if TYPE_CHECKING:
    from resilient_mw.runtime.guard import Guard


def admit(  # noqa: PLR0917  the arguments of Guard.arrive
    guard: Guard, entry: RouteEntry, now: float, deadline_at: float, cost: int, tenant: str | None
) -> Decision:
    """Decide about a request for which only load can matter."""
    stream = entry.stream
    if stream is None or stream.slot != HEAD or guard.models:
        return guard.arrive(entry, now, deadline_at, cost, tenant)
    guard.catch_up()  # the place of a forgotten one may be free
    arrive = partial(guard.arrive, entry, now, deadline_at, cost, tenant)
    return guard.streams.arrive(arrive) or guard.refuse(entry, now, Reason.STREAM_LIMIT)


def ask(guard: Guard, asking: Asking) -> Decision:
    """Ask for quotas, in this thread, and decide."""
    desk, found = guard.tenancy.desk, None
    try:
        found = None if desk is None else desk.ask(asking)
    except Exception as error:  # noqa: BLE001  the application must be served whatever our own code does
        guard.listeners.failed("quotas", error)
    return _answered(guard, asking, found)


async def ask_soon(guard: Guard, asking: Asking) -> Decision:
    """Ask for quotas, without holding up the event loop, and decide. Nothing suspends after the decision."""
    desk, found = guard.tenancy.desk, None
    try:
        found = None if desk is None else await desk.ask_soon(asking)
    except Exception as error:  # noqa: BLE001  as above
        guard.listeners.failed("quotas", error)
    return _answered(guard, asking, found)


def _answered(guard: Guard, asking: Asking, found: Limited | None) -> Decision:
    """Decide about a request whose quotas are known.

    Args:
        guard: decides.
        asking: what was asked.
        found: why it may not pass; None: it may.
    """
    now = guard.clock.now()
    reason = Reason.QUOTA_UNKNOWN if found is not None and found.quota is None else Reason.QUOTA_EXCEEDED
    passes = found is None
    if isinstance(guard, ShadowGuard) and found is not None:
        passes = guard.would_refuse(QUOTAS, asking.entry, reason)
        if passes and guard.models:
            return guard.outside(asking.entry, asking.cost, asking.tenant)
    if found is None or passes:
        return admit(guard, asking.entry, now, asking.deadline_at, asking.cost, asking.tenant)
    refused = guard.refuse(asking.entry, now, reason)
    return replace(refused, retry_after=found.retry_after, fields=found.fields)
