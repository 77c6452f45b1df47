"""Waiting for a slot of the bulkhead: in order, within the deadline, and nothing granted is lost."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from resilient_mw.calls.bulkhead import BulkheadPolicy, Waiter, WaitingLine
from resilient_mw.calls.call import Call
from resilient_mw.calls.events import Actions, Expire, Failure, Head, Phase, Queue, Refuse, Start
from resilient_mw.core.rejection import Reason
from tests.calls.desk import AT_ONCE, EDGY, Desk


def _desk(*, limit: int = 1, max_wait: float = 1.0, queue: int | None = None, **fields: Any) -> Desk:
    return Desk(bulkhead=BulkheadPolicy(limit=limit, max_wait=max_wait, queue=queue), **fields)


def _waiter(actions: Actions) -> Waiter:
    action = actions[-1]
    assert isinstance(action, Queue)
    return action.waiter


def _finish(call: Call, now: float) -> None:
    call.head(now, call.attempts, Head(200))
    call.end(now, None)


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": 1, "max_wait": -1.0}, {"limit": 1, "queue": 0}, {"limit": True}]
)
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="BulkheadPolicy"):
        BulkheadPolicy(**wrong)


def test_a_slot_that_comes_back_goes_to_the_one_who_waits_longest() -> None:
    desk = _desk(limit=1, queue=2)
    calls = [desk.call() for _ in range(3)]
    calls[0].begin(0.0)
    first, second = (_waiter(call.begin(0.1)) for call in calls[1:])
    _finish(calls[0], 0.5)
    assert (first.granted, second.granted, desk.state.in_use) == (True, False, 1)
    assert calls[1].queued(0.5) == (Start(1, 2.0, 2.0),)
    _finish(calls[1], 0.6)
    assert second.granted


def test_b77_more_than_the_line_holds_are_refused_at_once() -> None:
    desk = _desk(limit=1, queue=1)
    desk.call().begin(0.0)
    _waiter(desk.call().begin(0.0))
    assert desk.call().begin(0.0) == (Refuse(Reason.BULKHEAD_FULL),)


def test_without_a_wait_nobody_queues() -> None:
    desk = _desk(max_wait=0.0)
    desk.call().begin(0.0)
    assert desk.call().begin(0.0) == (Refuse(Reason.BULKHEAD_FULL),)


def test_the_wait_ends_with_its_bound_or_with_the_deadline_whichever_is_first() -> None:
    desk = _desk(max_wait=1.0, queue=4, reserve=0.25)
    desk.call().begin(0.0)
    patient, pressed = desk.call(), desk.call(deadline_at=0.75)
    assert patient.begin(0.0)[-1].until == 1.0  # type: ignore[union-attr]
    assert pressed.begin(0.0)[-1].until == pytest.approx(0.5)  # type: ignore[union-attr]
    assert pressed.queued(0.5) == (Expire(Phase.BULKHEAD),)
    assert patient.queued(1.0) == (Refuse(Reason.BULKHEAD_FULL),)
    assert desk.state.expiries == {Phase.BULKHEAD: 1}
    assert desk.state.line is not None
    assert desk.state.line.waiting == 0


def test_who_is_woken_too_early_waits_on() -> None:
    desk = _desk()
    desk.call().begin(0.0)
    call = desk.call()
    actions = call.begin(0.0)
    assert call.queued(0.5) == actions


@pytest.mark.parametrize("end", ["timeout", "cancel", "deadline"])
def test_b76_a_slot_granted_in_the_instant_of_the_end_is_not_lost(end: str) -> None:
    desk = _desk(queue=2)
    holder, call, last = desk.call(), desk.call(deadline_at=1.0), desk.call()
    holder.begin(0.0)
    _waiter(call.begin(0.0))
    waiter = _waiter(last.begin(0.1))
    _finish(holder, 0.5)  # the slot is the call's now
    if end == "cancel":
        call.cancel(0.5)
    elif end == "timeout":
        assert isinstance(call.queued(0.9)[-1], Start), (
            "what was granted in time is used, however late it is heard of"
        )
        call.cancel(0.9)
    else:
        assert call.queued(1.0) == (Expire(Phase.BULKHEAD),)
    assert waiter.granted
    assert isinstance(last.queued(1.0)[-1], Start)
    _finish(last, 1.0)
    assert desk.at_rest()


def test_who_has_left_is_passed_over() -> None:
    desk = _desk(queue=2)
    holder, gone, next_one = desk.call(), desk.call(), desk.call()
    holder.begin(0.0)
    gone.begin(0.0)
    waiter = _waiter(next_one.begin(0.0))
    gone.cancel(0.1)
    _finish(holder, 0.2)
    assert waiter.granted
    next_one.cancel(0.3)
    assert desk.at_rest()


def test_a_circuit_that_opened_meanwhile_refuses_and_gives_the_slot_on() -> None:
    desk = _desk(breaker=EDGY)
    holder, call = desk.call(), desk.call()
    holder.begin(0.0)
    _waiter(call.begin(0.0))
    desk.open(0.1)
    _finish(holder, 0.2)
    assert call.queued(0.2)[-1].reason is Reason.CIRCUIT_OPEN  # type: ignore[union-attr]
    assert desk.at_rest()


def test_a_retry_waits_too_and_the_error_before_it_is_kept() -> None:
    desk = _desk(retry=AT_ONCE)
    call, other, late = desk.call(), desk.call(), desk.call()
    call.begin(0.0)
    _waiter(other.begin(0.0))
    waiter = _waiter(call.failed(0.1, 1, Failure(Phase.HEAD)))
    assert other.queued(0.1)[-1].number == 1  # type: ignore[union-attr]
    assert late.begin(0.1) == (Refuse(Reason.BULKHEAD_FULL),)
    _finish(other, 0.2)
    assert waiter.granted
    assert call.queued(0.2) == (Start(2, 2.0, 2.0),)
    call.cancel(0.3)
    assert desk.at_rest()


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_joining_leaving_and_handing_over_keeps_the_line_bounded_and_fair(seed: int) -> None:
    random = Random(seed)
    line = WaitingLine(BulkheadPolicy(limit=3, max_wait=1.0, queue=5))
    waiting: list[Waiter] = []
    for _ in range(500):
        match random.choice(["join", "join", "leave", "hand over"]):
            case "join":
                waiter = line.join()
                assert (waiter is None) == (len(waiting) == 5)
                waiting += [] if waiter is None else [waiter]
            case "leave" if waiting:
                waiter = waiting.pop(random.randrange(len(waiting)))
                assert not line.leave(waiter)
                assert not line.leave(waiter), "once"
            case "hand over":
                assert line.hand_over() == bool(waiting)
                if waiting:
                    granted = waiting.pop(0)
                    assert granted.granted, "the one who waits longest"
                    assert line.woken.pop() is granted
                    assert line.leave(granted), "it is the leaver's to give back"
                    assert not line.leave(granted), "once"
        assert line.waiting == len(waiting)
        assert len(line._line) <= 10, "those who have left are forgotten"
