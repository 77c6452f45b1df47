"""Builds a snapshot from the live counters. Called under the owner's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from resilient_mw.admission.connections import Connections
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.core.priority import EXEMPT
from resilient_mw.core.problem import RefusalFigures
from resilient_mw.core.snapshot import (
    AppSnapshot,
    ClassSnapshot,
    OverloadSnapshot,
    RouteSnapshot,
    StreamSnapshot,
    WebsocketSnapshot,
)


def app_snapshot(
    app: str,
    controller: AdmissionController,
    entries: Sequence[RouteEntry],
    *,
    drain_rate: float | None,
    ignored_headers: Mapping[str, int],
    guard_errors: int,
    overload: OverloadSnapshot | None,
    websockets: WebsocketSnapshot | None,
    streams: StreamSnapshot | None = None,
) -> AppSnapshot:
    """Return the figures of one application as plain values."""
    classes = [ClassSnapshot(each.priority.name, each.slots, len(each.queue)) for each in controller.classes]
    return AppSnapshot(
        app=app,
        limit=controller.slots.limit,
        queue=controller.queue_length,
        draining=controller.draining,
        drain_rate=drain_rate,
        classes=(*classes, ClassSnapshot(EXEMPT, controller.exempt, 0)),
        routes=_merged(entries),
        ignored_headers=ignored_headers,
        guard_errors=guard_errors,
        overload=overload,
        websockets=websockets,
        streams=streams,
    )


def websocket_snapshot(connections: Connections) -> WebsocketSnapshot:
    """Return the figures of the open websockets as plain values."""
    slots = connections.slots
    opened = {each.priority.name: each.slots for each in slots.classes}
    routes = _merged([entry for entry in connections.entries.all() if entry.arrived])
    return WebsocketSnapshot(slots.limit, {**opened, EXEMPT: connections.exempt}, routes)


def refusal_figures(
    exempt_limit: int, controller: AdmissionController, entry: RouteEntry, remaining: float
) -> RefusalFigures:
    """Return what a refusal says in debug mode.

    Args:
        exempt_limit: the bound of exempt requests.
        controller: the live counters.
        entry: how the request is treated.
        remaining: seconds that are left of its budget.
    """
    exempt = entry.rank < 0
    return RefusalFigures(
        priority=entry.priority,
        limit=exempt_limit if exempt else controller.slots.limit,
        in_flight=controller.exempt if exempt else controller.slots.in_use,
        queue_length=controller.waiting,
        remaining_budget_ms=int(max(0.0, remaining) * 1000),
    )


def _merged(entries: Sequence[RouteEntry]) -> tuple[RouteSnapshot, ...]:
    """Return one snapshot per route and class: entries that differ only in cost or deadline share their labels."""
    merged: dict[tuple[str, str], RouteSnapshot] = {}
    for entry in entries:
        one = entry.snapshot()
        key = (one.route, one.priority)
        merged[key] = _sum(merged[key], one) if key in merged else one
    return tuple(merged[key] for key in sorted(merged))


def _sum(a: RouteSnapshot, b: RouteSnapshot) -> RouteSnapshot:
    a.wait.merge(b.wait)
    a.run.merge(b.run)
    return replace(
        a,
        arrived=a.arrived + b.arrived,
        admitted=a.admitted + b.admitted,
        left=a.left + b.left,
        refused=_counts(a.refused, b.refused),
        outcomes=_counts(a.outcomes, b.outcomes),
        late=a.late + b.late,
    )


def _counts(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in a.keys() | b.keys()}
