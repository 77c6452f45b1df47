"""What must hold after each sequence of the fuzz test. Each check yields what it objects to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

from resilient_mw.core.events import Cancelled, Refused
from resilient_mw.core.snapshot import AppSnapshot
from tests.asgi.driver import supervisor_of
from tests.asgi.fuzz_handler import Handling
from tests.asgi.fuzz_plan import STUBBORN, has
from tests.asgi.fuzz_request_checks import ended, never_entered, on_the_wire, ran, received
from tests.asgi.fuzz_world import World

Check = Callable[[World], Iterator[str]]


def objections(world: World) -> list[str]:
    """Return everything that is wrong after a sequence."""
    found = [*world.complaints, *world.controller.complaints, *world.loop_complaints]
    for check in (nothing_left, figures_add_up, figures_tell_what_happened):
        found += check(world)
    for place, wire in enumerate(world.wires):
        handling = world.handlings.get(place)
        each = [*ended(world, wire, handling), *on_the_wire(world, wire, handling)]
        if handling is None:
            each += never_entered(world, wire)
        else:
            each += [*handling.complaints, *ran(world, wire, handling), *received(wire, handling)]
        found += [f"request {place}: {text}" for text in each]
    return found


# -- the whole ---------------------------------------------------------------------------------------------------------


def nothing_left(world: World) -> Iterator[str]:
    controller, slots = world.controller, world.controller.slots
    rest = (slots.in_use, controller.exempt, controller.waiting)
    if rest != (0, 0, 0):
        yield f"slots in use, exempt, waiting: {rest}"
    for state in controller.classes:
        if (state.slots, state.queued_cost, len(state.queue)) != (0, 0, 0):
            yield f"class {state.priority.name} is not empty"
        if state.unfilled != state.priority.reserved:
            yield f"class {state.priority.name} has not got its reserved slots back"
    if slots.unfilled != sum(state.priority.reserved for state in controller.classes):
        yield "the sum of the reserved slots is wrong"
    if controller.next_wakeup() is not None:
        yield "the timetable waits for somebody"
    yield from _nobody_left(world)


def _nobody_left(world: World) -> Iterator[str]:
    streams = world.guards[0].streams._streams
    streams._look()  # as who needs a place does
    if streams.places or any(streams._open.values()):
        yield f"{streams.places} places of streams are taken, {streams._open} are open"
    if world.controller.ledger.running or world.controller.ledger.granted:
        yield "the account of admission still has somebody who runs"
    if world.in_use != {"slots": 0, "exempt": 0}:
        yield f"handlers still use {world.in_use}"
    for middleware in world.middlewares:
        if supervisor_of(middleware).in_flight:
            yield "a request is still in flight"
    for guard in world.guards:
        if any(each.slots or each.queued for each in guard.snapshot().classes):
            yield f"the snapshot is not at rest: {guard.snapshot().classes}"
    left = asyncio.all_tasks(world.loop) - {asyncio.current_task(world.loop)}
    if left:
        yield f"tasks are left: {left}"


def figures_add_up(world: World) -> Iterator[str]:
    for guard in world.guards:
        snapshot = guard.snapshot()
        if snapshot.guard_errors:
            yield f"{snapshot.guard_errors} errors of the guard itself"
        for route in snapshot.routes:
            if route.arrived != route.admitted + sum(route.refused.values()) + route.left:
                yield f"arrivals do not add up: {route}"
            if route.admitted != sum(route.outcomes.values()):
                yield f"outcomes do not add up: {route}"


def figures_tell_what_happened(world: World) -> Iterator[str]:
    snapshot = world.guards[0].snapshot()
    outcomes = Counter(map(_outcome, world.handlings.values()))
    told = total(snapshot, "outcomes")
    for stream in snapshot.streams.routes if snapshot.streams is not None else ():
        for outcome, count in stream.ended.items():  # each had a run, which its head completed
            told.update({outcome: count})
            told.subtract({"completed": count})
    told = +told
    # A caller who left at the instant of his grant was admitted and never ran, and so was who was cancelled before the
    # task had begun in which he would have run.
    unseen = told - outcomes
    known = {"client_disconnect"} | ({"error", "deadline"} if world.plan.stack == "task inside" else set())
    if world.plan.stack == "task inside" and any(each.cancelled_at for each in world.wires):
        outcomes = told  # and one whose handler had returned may still be cancelled
    if outcomes - told or not set(unseen) <= known:
        yield f"outcomes {dict(told)}, but there were {dict(outcomes)}"
    refused = Counter(each.reason.value for each in world.events if isinstance(each, Refused))
    if refused != total(snapshot, "refused"):
        yield f"refused {dict(total(snapshot, 'refused'))}, but listeners heard of {dict(refused)}"
    cancelled = Counter(each.reason.value for each in world.events if isinstance(each, Cancelled))
    ours = Counter({name: count for name, count in outcomes.items() if name not in {"completed", "error"}})
    if ours - cancelled or not set(cancelled - ours) <= known:
        yield f"cancelled {dict(ours)}, but listeners heard of {dict(cancelled)}"
    names = STUBBORN | {"framework", "block", "hold", "child", "on_cancel"}
    if not any(has(each.steps, names) for each in world.plan.requests) and total_late(snapshot):
        yield "work is said to be late that did not resist"


def total(snapshot: AppSnapshot, what: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for route in snapshot.routes:
        counts.update(getattr(route, what))
    return counts


def total_late(snapshot: AppSnapshot) -> int:
    return sum(route.late for route in snapshot.routes)


def _outcome(handling: Handling) -> str:
    reason = handling.record.reason
    if reason is not None:
        return reason.value
    return "error" if handling.raised is not None else "completed"
