"""What must hold for each request of a sequence of the fuzz test. Each check yields what it objects to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from math import inf, ulp

from resilient_mw.asgi.exchange import HttpExchange
from resilient_mw.core.cancel import CancelReason
from tests.asgi.driver import Message
from tests.asgi.fuzz_handler import Handling
from tests.asgi.fuzz_plan import (
    MAXIMUM,
    MOVING,
    QUICK,
    STREAMS,
    STUBBORN,
    TRUSTED,
    Plan,
    RequestPlan,
    has,
)
from tests.asgi.fuzz_wire import Wire
from tests.asgi.fuzz_world import World

EXACT = 1e-6
LATE = 0.001 + EXACT
"""Seconds by which an instant may be missed: a timer that fires early, if only by a rounding, is armed again for 1 ms."""
WATCHED = 0.1
"""Seconds after which somebody listens for the disconnect of every running request."""
HANGS = 0.5
"""Seconds that the last message gets to leave once the caller has gone."""
STOPS_WITHIN = 0.3
"""Seconds after which a handler that does not resist has ended."""

TICKS = 0.051
"""Seconds within which a drain that is over is noticed."""

LEAKING = frozenset({"group"})
OURS = {(504, CancelReason.DEADLINE), (503, CancelReason.SHUTDOWN)}
"""Status and reason of our answers to requests that ran."""


def slack(world: World) -> float:
    """Return by how much an instant may be missed: a blocked loop cannot be on time."""
    return LATE + world.blocked + world.plan.early


def budget(plan: Plan, request: RequestPlan, *, outer: bool = False) -> float:
    """Return the seconds that a request has: the documented rule, told once more."""
    default, minimum, trusted = plan.outer_default, 0.0, False
    if not outer:
        default = QUICK if request.path == "/quick" else plan.policy["deadline_default"]
        minimum = plan.policy["deadline_minimum"]
        trusted = plan.policy["trusted_peers"] == (TRUSTED,) and request.peer.startswith("10.")
    if request.wish == 0.0:
        return 0.0
    if trusted and request.wish is not None:
        seconds = min(request.wish, MAXIMUM)
    else:
        wish = default if request.wish is None else min(request.wish, default)
        seconds = min(max(wish, minimum), MAXIMUM)
    return (
        min(seconds, budget(plan, request, outer=True)) if plan.stack == "double" and not outer else seconds
    )


def ended(world: World, wire: Wire, handling: Handling | None) -> Iterator[str]:
    """It ended, and left its task as it was."""
    if wire.task is None or not wire.task.done():
        yield "it has not ended"
        return
    if wire.task.cancelled():  # before its first step
        return
    if not wire.restored:
        yield "the context variable was not put back"
    waited_for = wire in world.waited_for
    wanted = len(wire.cancelled_at) + waited_for
    # A group whose child fails while it ends leaves a cancel behind, before Python 3.13: nobody can tell it from another.
    leaks = sys.version_info < (3, 13) and handling is not None and has(wire.plan.steps, LEAKING)
    if wire.cancelling != wanted and not (leaks and wire.cancelling > wanted):
        yield f"the task's cancel count is {wire.cancelling}, the server cancelled {wanted} times"
    if waited_for and not (wire.gone_at < inf and wire.plan.lost == "hang"):
        yield f"it had to be cancelled at the end; it sent {wire.out}"
    reason = handling.record.reason if handling is not None else None
    foreign = isinstance(wire.raised, asyncio.CancelledError)
    if foreign and not wanted and not leaks:
        yield "a cancellation left the middleware that nobody asked for"
    # The outer one of two may have ended it; a task around it may be cancelled when it has returned.
    another = world.plan.stack == "double" or ("task" in world.plan.stack and foreign and bool(wanted))
    if handling is not None and reason is None and not another and wire.raised is not handling.raised:
        yield f"{handling.raised!r} left the handler, and {wire.raised!r} the middleware"
    over = reason is not None or handling is None
    if over and not foreign and wire.raised is not None:
        yield f"{wire.raised!r} left the middleware"
    if over and bool(wanted) is not foreign and not (leaks and foreign):
        yield f"the server's cancel was lost, or {wire.raised!r} left the middleware"


def on_the_wire(world: World, wire: Wire, handling: Handling | None) -> Iterator[str]:
    """The server saw what the handler sent, in order, or one answer of ours, and nothing after the end."""
    sent = [message for message, _ in handling.sent] if handling is not None else []
    known = {id(message) for message in sent}
    passed = [each for _, each in wire.out if id(each) in known and not _is_hint(each)]
    ours = [(at, each) for at, each in wire.out if id(each) not in known]
    if [*map(id, passed)] != [id(each) for each in sent if not _is_hint(each)][: len(passed)]:
        yield f"the handler sent {sent}, the server saw {passed}"
    if any(id(each) not in known for each in wire.unexpected):
        yield f"the middleware sent {wire.unexpected} to a server that expected nothing of the kind"
    if ours and passed:
        yield f"two answers: {ours} and {passed}"
    if not ours:
        return
    (at, head), *rest = ours
    if head["type"] != "http.response.start" or head["status"] not in {503, 504}:
        yield f"a strange answer: {head}"
    # The outer one of two may cut off what the inner one sends.
    broken_off = wire.gone_at < inf or wire.cancelling or world.plan.stack == "double"
    if [each["type"] for _, each in rest] != ["http.response.body"] and not (broken_off and not rest):
        yield f"an incomplete answer of ours: {ours}"
    if rest and (wire.plan.method == "HEAD") is bool(rest[0][1]["body"]):
        yield "the body does not fit the method"
    # A drain may end it inside when the outer one of two is about to answer, or has.
    drained = handling is not None and handling.record.reason is CancelReason.SHUTDOWN
    # It may also end by itself at the very instant at which the outer one answers.
    by_itself = (
        handling is not None and handling.record.reason is None and handling.left_at >= at - slack(world)
    )
    outside = world.plan.stack == "double" and (drained or by_itself) and head["status"] == 504
    if handling is not None and not outside and (head["status"], handling.record.reason) not in OURS:
        yield f"an answer of ours to a request that ran: {head}"


def never_entered(world: World, wire: Wire) -> Iterator[str]:
    """A request that the handler did not see was refused, on time; or its caller had left, or the server gave it up."""
    seconds = budget(world.plan, wire.plan)
    waits = min(world.plan.policy["max_wait"], world.plan.policy["wait_share"] * seconds)
    given_up = min([wire.gone_at, *wire.cancelled_at])
    late = slack(world)
    if not wire.out:
        if given_up == inf:
            yield "no answer, although nobody gave it up"
        # He may have left while an answer was about to be sent, which hangs.
        elif _listens(wire.plan) and wire.returned_at > given_up + late and wire.plan.lost != "hang":
            yield f"it waited on until {wire.returned_at} when it was given up at {given_up}"
        return
    at, head = wire.out[0]
    if at > wire.arrived_at + waits + late:
        yield f"refused at {at}, {at - wire.arrived_at} s after its arrival; it may wait {waits} s"
    reasons = [value for name, value in head["headers"] if name == b"x-refusal-reason"]
    if len(reasons) != 1 and world.plan.stack != "double":
        yield f"a refusal without its reason: {head}"
    expected = _reason_on_arrival(world, seconds)
    if wire.plan.path in STREAMS and reasons == [b"stream_limit"]:
        expected = b"stream_limit"  # that is asked first
    if world.plan.stack != "double" and expected is not None and reasons != [expected]:
        yield f"refused because of {reasons}, and not {expected!r}"
    if reasons == [b"queue_timeout"] and at < wire.arrived_at + waits - late:
        yield f"refused after {at - wire.arrived_at} s, before its {waits} s were over"


def _reason_on_arrival(world: World, seconds: float) -> bytes | None:
    if seconds == 0.0:
        return b"expired_on_arrival"
    smallest = max(world.plan.policy["smallest_budget"], ulp(0.0))
    return b"insufficient_budget" if seconds < smallest - EXACT else None


def ran(world: World, wire: Wire, handling: Handling) -> Iterator[str]:
    """A request that ran had its deadline, and everything that ends one ended it on time."""
    record, late = handling.record, slack(world)
    if not isinstance(record, HttpExchange):
        yield "it ran outside the middleware"
        return
    if wire.plan.path in MOVING:
        return
    deadline_at = wire.arrived_at + budget(world.plan, wire.plan)
    if abs(record.deadline_at - deadline_at) > EXACT + world.blocked:
        yield f"its deadline is {record.deadline_at} and should be {deadline_at}"
    if handling.entered_at >= record.deadline_at + (
        world.blocked if world.plan.stack == "task inside" else 0.0
    ):
        yield "it was begun after its deadline"
    yield from _expired(world, wire, handling, deadline_at, late)
    yield from _abandoned(world, wire, handling, deadline_at, late)
    yield from _stopped(world, wire, handling, deadline_at, late)


def _expired(world: World, wire: Wire, handling: Handling, deadline_at: float, late: float) -> Iterator[str]:
    record = handling.record
    ours = [at for at, each in wire.out if all(each is not message for message, _ in handling.sent)]
    answered = any(each["type"] == "http.response.start" for _, each in wire.out)
    # What ended it otherwise, or may have.
    others = min([handling.left_at, handling.complete_at, wire.gone_at, world.stop_at, *wire.cancelled_at])
    sections = has(wire.plan.steps, frozenset({"section"}))
    if others > deadline_at + late:
        if record.reason is not CancelReason.DEADLINE:
            yield f"its deadline passed at {deadline_at} and its reason is {record.reason}"
        if not answered:
            yield "its deadline passed and it has no answer"
        if handling.over_at is not None and handling.over_at > deadline_at + late and not sections:
            yield f"its work was told at {handling.over_at} that the deadline had passed at {deadline_at}"
    for at in ours[:1]:
        if record.reason is CancelReason.SHUTDOWN:
            # Health checks are let in afterwards, too.
            on_time = world.stop_at - EXACT <= at <= max(world.stop_at, handling.entered_at) + TICKS + late
            if not on_time and world.plan.stack != "double":
                yield f"503 at {at}, it was to end at {world.stop_at}"
        elif not deadline_at - EXACT <= at <= deadline_at + late:
            yield f"504 at {at}, its deadline was at {deadline_at}"


def _stopped(world: World, wire: Wire, handling: Handling, deadline_at: float, late: float) -> Iterator[str]:
    """Its callback was called once, and a handler that does not resist ended."""
    reason = handling.record.reason
    heard = not handling.reasons or handling.reasons == [reason]
    surely = handling.plan.notes and not wire.cancelled_at and _listens(wire.plan)
    surely = surely and getattr(handling.record, "_outer", None) is None  # that one may have ended it first
    if surely and not handling.reasons and reason is not None:
        # An application that notices first ends before its callbacks are called.
        over = max(wire.gone_at, handling.entered_at + WATCHED)
        if reason is not CancelReason.CLIENT_DISCONNECT:
            over = (
                deadline_at
                if reason is CancelReason.DEADLINE
                else max(world.stop_at, handling.entered_at) + TICKS
            )
        heard = handling.left_at <= over + late
    # A section is cut off by its own scopes, by a group whose other child has failed, and by the server.
    others = wire.cancelled_at or wire in world.waited_for or has(wire.plan.steps, LEAKING)
    if handling.interrupted and not others:
        yield "a section was cancelled before its time was over"
    if not heard:
        yield f"its callback heard {handling.reasons} and not {reason}"
    tame = handling.over_at is not None and not has(wire.plan.steps, STUBBORN)
    if tame and handling.left_at > (handling.over_at or 0.0) + STOPS_WITHIN + late:
        yield f"it was over at {handling.over_at} and ran until {handling.left_at}"


def _abandoned(
    world: World, wire: Wire, handling: Handling, deadline_at: float, late: float
) -> Iterator[str]:
    assert isinstance(handling.record, HttpExchange)
    reason, outer = handling.record.reason, handling.record._outer
    if outer is not None and reason is not CancelReason.CLIENT_DISCONNECT:
        reason = outer.reason or reason  # the outer one may have noticed first
    noticed = max(wire.gone_at, handling.entered_at + WATCHED) + late
    if handling.finishing_at <= noticed:
        noticed += HANGS  # it is the normal end of an exchange, unless the last message hangs
    others = min([handling.left_at, handling.complete_at, deadline_at, world.stop_at, *wire.cancelled_at])
    if others > noticed and _listens(wire.plan) and reason is not CancelReason.CLIENT_DISCONNECT:
        yield f"its caller left at {wire.gone_at} and its reason is {reason}"
    if reason is CancelReason.CLIENT_DISCONNECT and wire.gone_at == inf:
        yield "it was cancelled because its caller had left, which he had not"
    if reason is CancelReason.SHUTDOWN and (world.stop_at == inf or handling.left_at < world.stop_at - EXACT):
        yield f"it was cancelled by a drain whose end is at {world.stop_at}"
    if reason not in {None, CancelReason.CLIENT_DISCONNECT, CancelReason.DEADLINE, CancelReason.SHUTDOWN}:
        yield f"a strange reason: {reason}"
    # The outer deadline may come while the answer to one that was drained inside is on its way.
    drained = handling.record.reason is CancelReason.SHUTDOWN
    ended_at = min(handling.left_at, wire.returned_at)
    if reason is CancelReason.DEADLINE and not drained and ended_at < deadline_at - EXACT:
        yield f"it was cancelled at its deadline of {deadline_at}, after it had ended at {handling.left_at}"


def _listens(plan: RequestPlan) -> bool:
    """Return whether the whole body can be read ahead, so that the disconnect behind it is seen."""
    return len(plan.body) < 16 and sum(size for _, size in plan.body) < 65_536


def received(wire: Wire, handling: Handling) -> Iterator[str]:
    """The handler got the messages of the server, each once and in order."""
    got = [*map(id, (each for each in handling.received if each["type"] == "http.request"))]
    handed = [*map(id, wire.handed)]
    if handling.most_listening > 1 or "_alone" in repr(handling.plan.steps):
        if len(set(got)) != len(got) or not set(got) <= set(handed):
            yield "it received a message twice, or one that was never sent"
    elif got != handed[: len(got)]:
        yield f"it received {handling.received} of {wire.handed}"
    elif len(got) < len(handed) and handling.record.reason is None:
        before = [each["type"] for each in handling.received if each["type"] == "http.disconnect"]
        if before and handling.left_at == inf:
            yield "a part of the body was not received before the disconnect"


def _is_hint(message: Message) -> bool:
    return bool(message["type"] == "http.response.early_hint")
