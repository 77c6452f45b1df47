"""The figures of shadow mode: tells what was done apart from what would have been."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from resilient_mw.admission.entry import RouteEntry
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import AppSnapshot, Histogram, RouteSnapshot, ShadowRoute, ShadowSnapshot

MODELLED = frozenset(
    {
        Reason.QUEUE_FULL,
        Reason.PUSHED_OUT,
        Reason.TENANT_SHARE,
        Reason.QUEUE_TIMEOUT,
        Reason.PREDICTED_LATE,
        Reason.EXPIRED_IN_QUEUE,
        Reason.EXEMPT_LIMIT,
        Reason.OVERLOADED,
        Reason.DRAINING,
        Reason.WEBSOCKET_LIMIT,
    }
)
"""The refusals of admission. In shadow mode the controller counts them, and nobody is refused."""
LABELS = frozenset(reason.value for reason in MODELLED)


class WouldHave:
    """What would have been done to the requests of one route."""

    __slots__ = ("cancelled", "queued", "refused")

    def __init__(self) -> None:
        self.refused: dict[Reason, int] = {}
        self.queued = 0
        self.cancelled = 0

    def copy(self) -> WouldHave:
        """Return the counts of this instant."""
        copied = WouldHave()
        copied.add(self)
        return copied

    def add(self, other: WouldHave) -> None:
        """Add the counts of another one."""
        for reason, count in other.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count
        self.queued += other.queued
        self.cancelled += other.cancelled


def shadowed(
    figures: AppSnapshot,
    defences: Collection[str],
    would: Mapping[RouteEntry, WouldHave],
    outside: int,
    *,
    modelled: bool,
) -> AppSnapshot:
    """Return the figures of an application with those of shadow mode beside them.

    Args:
        figures: what controller and entries say.
        defences: what is in shadow mode.
        would: what would have been done, by route entry.
        outside: requests that run without a slot.
        modelled: whether admission is in shadow mode: nobody waited, and nobody was refused for load.
    """
    merged: dict[tuple[str, str], WouldHave] = {}
    for entry, counts in would.items():
        merged.setdefault((entry.template, entry.priority), WouldHave()).add(counts)
    waits = {(route.route, route.priority): route.wait for route in figures.routes}
    shadow = tuple(
        ShadowRoute(
            *key,
            {reason.value: count for reason, count in counts.refused.items()},
            counts.queued,
            counts.cancelled,
            waits.get(key, Histogram()) if modelled else Histogram(),
        )
        for key, counts in sorted(merged.items())
    )
    figures = replace(figures, shadow=ShadowSnapshot(tuple(sorted(defences)), outside, shadow))
    if not modelled:
        return figures
    sockets = figures.websockets
    if sockets is not None:
        sockets = replace(sockets, routes=tuple(_placed(route) for route in sockets.routes))
    return replace(figures, routes=tuple(_admitted(route) for route in figures.routes), websockets=sockets)


def _admitted(route: RouteSnapshot) -> RouteSnapshot:
    """Return what was done to the requests of a route that the model had a say in: all but what is no load was admitted."""
    refused = {reason: count for reason, count in route.refused.items() if reason not in LABELS}
    admitted = route.arrived - sum(refused.values())
    return replace(route, admitted=admitted, left=0, refused=refused, wait=Histogram())


def _placed(route: RouteSnapshot) -> RouteSnapshot:
    """Return the figures of the websockets of a route without those that passed untouched."""
    refused = {reason: count for reason, count in route.refused.items() if reason not in LABELS}
    return replace(route, arrived=route.admitted + sum(refused.values()), refused=refused)
