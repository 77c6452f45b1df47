"""The call machine, step by step: what it answers, what it holds, and what it gives back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.events import (
    DELIVER,
    DISCARD,
    FAIL,
    Actions,
    Deliver,
    Expire,
    Fail,
    Failure,
    Head,
    Phase,
    Refuse,
    Start,
    Wait,
)
from resilient_mw.calls.figures import dependency_snapshot
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.rejection import Reason
from tests.calls.desk import AT_ONCE, EDGY, Desk, Luck

RESET = Failure(Phase.HEAD)
REFUSED = Failure(Phase.CONNECT)
TIMED_OUT = Failure(Phase.HEAD, timed_out=True)
RETRY = RetryPolicy(attempts=3, backoff_base=1.0, backoff_cap=8.0, budget_ratio=None, max_retry_after=5.0)


def _start(actions: Actions) -> Start:
    assert isinstance(actions[-1], Start), actions
    return actions[-1]


def _cancel(call: Call, now: float) -> object:
    call.cancel(now)
    return call


def _retried(actions: Actions) -> bool:
    """Whether the last attempt is to be followed by another one."""
    return isinstance(actions[-1], (Wait, Start))


# -- the first attempt


def test_an_attempt_gets_the_smallest_of_budget_and_timeouts() -> None:
    desk = Desk(timeout=2.0, connect_timeout=0.5, reserve=0.25)
    assert desk.call().begin(10.0) == (Start(1, 2.0, 0.5),)
    assert desk.call(deadline_at=11.25).begin(10.0) == (Start(1, 1.0, 0.5),)
    assert desk.call(deadline_at=10.5).begin(10.0) == (Start(1, 0.25, 0.25),)
    assert Desk(timeout=None).call().begin(10.0) == (Start(1, math.inf, math.inf),)


@pytest.mark.parametrize(
    ("left", "reserve", "smallest", "sent"),
    [
        (1.0, 0.0, 0.5, True), (0.5, 0.0, 0.5, True), (0.49, 0.0, 0.5, False), (0.0, 0.0, 0.0, False),
        (-5.0, 0.0, 0.0, False), (0.5, 0.5, 0.0, False), (0.75, 0.5, 0.25, True), (0.75, 0.5, 0.26, False),
    ],
)  # fmt: skip
def test_below_the_smallest_useful_budget_nothing_is_sent(
    left: float, reserve: float, smallest: float, sent: bool
) -> None:
    desk = Desk(reserve=reserve, smallest_budget=smallest, bulkhead=1, breaker=EDGY)
    actions = desk.call(deadline_at=100.0 + left).begin(100.0)
    assert (actions == (Refuse(Reason.INSUFFICIENT_BUDGET),)) is not sent
    assert desk.state.in_use == sent
    assert desk.state.refusals == ({} if sent else {Reason.INSUFFICIENT_BUDGET: 1})


def test_the_budget_told_shrinks_as_time_passes_and_ends_at_nothing() -> None:
    desk = Desk(timeout=2.0, reserve=0.5)
    call = desk.call(deadline_at=13.0)
    call.begin(10.0)
    assert [call.budget(now) for now in (10.0, 10.5, 12.0, 20.0)] == [2.0, 1.5, 0.0, 0.0]
    call = desk.call(deadline_at=11.0)
    call.begin(10.0)
    assert [call.budget(now) for now in (10.0, 10.25, 10.5)] == [0.5, 0.25, 0.0]


# -- what is held, and given back exactly once

EXITS: dict[str, Callable[[Call], object]] = {
    "a complete body": lambda call: (call.head(1.0, call.attempts, Head(200)), call.end(2.0, None)),
    "a body that ended twice": lambda call: (call.head(1.0, call.attempts, Head(200)), call.end(2.0, None), call.end(3.0, RESET)),
    "a body that was cut off": lambda call: (call.head(1.0, call.attempts, Head(200)), call.end(2.0, Failure(Phase.BODY))),
    "a body that the budget cut off": lambda call: (call.head(1.0, call.attempts, Head(200)), call.end(9.0, TIMED_OUT)),
    "a bad answer": lambda call: (call.head(1.0, call.attempts, Head(503)), call.end(2.0, None)),
    "a bad answer that is never read": lambda call: (call.head(1.0, call.attempts, Head(503)), _cancel(call, 2.0)),
    "an error": lambda call: call.failed(1.0, call.attempts, RESET),
    "an error, and a cancel after it": lambda call: (call.failed(1.0, call.attempts, RESET), _cancel(call, 2.0)),
    "an end by the budget": lambda call: call.failed(9.0, call.attempts, TIMED_OUT),
    "a cancel of the attempt": lambda call: _cancel(call, 1.0),
    "two cancels": lambda call: (_cancel(call, 1.0), _cancel(call, 1.0)),
    "a cancel of the body": lambda call: (call.head(1.0, call.attempts, Head(200)), _cancel(call, 2.0), call.end(3.0, None)),
}  # fmt: skip


@pytest.mark.parametrize("way_out", EXITS.values(), ids=list(EXITS))
@pytest.mark.parametrize("half_open", [False, True])
def test_every_way_out_gives_slot_and_permit_back_once(
    way_out: Callable[[Call], object], half_open: bool
) -> None:
    desk = Desk(bulkhead=2, breaker=replace(EDGY, trials=1) if half_open else EDGY, timeout=20.0)
    now = 0.0
    if half_open:
        desk.open(-8.0)
    call, other = desk.call(deadline_at=9.0), desk.call()
    _start(call.begin(now))
    desk.state.take_slot()  # somebody else's: it must still be there
    way_out(call)
    assert desk.state.in_use == 1
    desk.state.give_slot()
    assert desk.at_rest()
    assert other.begin(30.0) == (Start(1, 20.0, 20.0),), "a place is free, or the open time has passed"
    with pytest.raises(RuntimeError, match="belongs to the stage 'new'"):
        call.begin(31.0)


def test_slot_and_permit_are_held_to_the_end_of_the_body() -> None:
    desk = Desk(bulkhead=1, breaker=replace(EDGY, trials=1))
    desk.open(0.0)
    call = desk.call()
    _start(call.begin(8.0))
    assert call.head(9.0, call.attempts, Head(200)) == (DELIVER,)
    assert desk.call().begin(10.0) == (Refuse(Reason.BULKHEAD_FULL),)
    assert dependency_snapshot("prices", desk.state).breaker == "half_open"
    assert call.end(11.0, None) == ()
    assert dependency_snapshot("prices", desk.state).breaker == "closed"
    _start(desk.call().begin(12.0))


def test_a_failure_status_is_told_to_the_breaker_at_the_head() -> None:
    desk = Desk(breaker=EDGY)
    calls = [desk.call() for _ in range(2)]
    for call in calls:
        call.begin(0.0)
    for call in calls:
        assert call.head(1.0, call.attempts, Head(503)) == (DELIVER,)
    assert desk.call().begin(2.0) == (Refuse(Reason.CIRCUIT_OPEN, 7.0),)
    assert desk.state.in_use == 2, "their bodies are still open"
    for call in calls:
        call.end(3.0, None)
    assert desk.at_rest()


def test_slots_given_back_twice_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="that nobody holds"):
        Desk().state.give_slot()


STEPS: dict[str, Callable[[Call], object]] = {
    "begin": lambda call: call.begin(5.0),
    "resume": lambda call: call.resume(5.0),
    "head": lambda call: call.head(5.0, call.attempts, Head(200)),
    "failed": lambda call: call.failed(5.0, call.attempts, RESET),
}
STAGES: dict[str, tuple[str, Callable[[Call], object]]] = {
    "new": ("begin", lambda call: None),
    "attempt": ("head failed", lambda call: call.begin(0.0)),
    "backoff": ("resume", lambda call: (call.begin(0.0), call.failed(1.0, call.attempts, RESET))),
    "body": ("", lambda call: (call.begin(0.0), call.head(1.0, call.attempts, Head(200)))),
    "over": ("", lambda call: (call.begin(0.0), _cancel(call, 1.0))),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_does_not_belong_there_is_an_error_and_changes_nothing(stage: str, step: str) -> None:
    desk = Desk(bulkhead=1, breaker=EDGY, retry=RETRY)
    call = desk.call()
    allowed, lead = STAGES[stage]
    lead(call)
    before = (call._stage, call._flying, call.attempts, dependency_snapshot("prices", desk.state).attempts)
    if step in allowed.split():
        assert STEPS[step](call)
        return
    with pytest.raises(RuntimeError, match=f"at {stage!r}"):
        STEPS[step](call)
    assert before == (
        call._stage,
        call._flying,
        call.attempts,
        dependency_snapshot("prices", desk.state).attempts,
    )


# -- the bulkhead, and the breaker


def test_the_next_one_is_refused_at_once_when_the_bulkhead_is_full() -> None:
    desk = Desk(bulkhead=2)
    calls = [desk.call() for _ in range(3)]
    assert [calls[0].begin(0.0), calls[1].begin(0.0)] == [(Start(1, 2.0, 2.0),)] * 2
    assert calls[2].begin(0.0) == (Refuse(Reason.BULKHEAD_FULL),)
    calls[0].cancel(1.0)
    _start(desk.call().begin(1.0))


def test_an_open_circuit_refuses_and_says_when_to_come_back() -> None:
    desk = Desk(breaker=EDGY, bulkhead=1)
    desk.open(0.0)
    assert desk.call().begin(3.0) == (Refuse(Reason.CIRCUIT_OPEN, 5.0),)
    assert desk.state.in_use == 0
    _start(desk.call().begin(8.0))
    assert desk.call().begin(8.0) == (Refuse(Reason.BULKHEAD_FULL),)


def test_the_circuit_is_the_reason_where_the_bulkhead_is_full_as_well() -> None:
    desk = Desk(breaker=EDGY, bulkhead=1)
    _start(desk.call().begin(0.0))
    desk.open(0.0)
    assert desk.call().begin(3.0) == (Refuse(Reason.CIRCUIT_OPEN, 5.0),)


def test_b65_a_bulkhead_that_is_full_costs_no_trial() -> None:
    desk = Desk(breaker=replace(EDGY, trials=1), bulkhead=1)
    holder = desk.call()
    _start(holder.begin(0.0))
    desk.open(0.0)
    assert desk.call().begin(8.0) == (Refuse(Reason.BULKHEAD_FULL),)
    holder.cancel(8.0)
    _start(desk.call().begin(8.0))


@pytest.mark.parametrize("status", [301, 304, 400, 401, 404, 408, 409, 422, 425, 429, 501, 505])
def test_b70_what_the_caller_did_wrong_never_opens_the_circuit(status: int) -> None:
    desk = Desk(breaker=EDGY)
    for _ in range(50):
        call = desk.call()
        _start(call.begin(0.0))
        assert call.head(0.0, call.attempts, Head(status)) == (DELIVER,)
        call.end(0.0, None)
    assert desk.state.breaker is not None
    assert not desk.state.breaker.transitions


@pytest.mark.parametrize("status", [500, 502, 503, 504, 507])
def test_b70_what_the_dependency_did_wrong_opens_it(status: int) -> None:
    desk = Desk(breaker=EDGY)
    for _ in range(2):
        call = desk.call()
        _start(call.begin(0.0))
        call.head(0.0, call.attempts, Head(status))
        call.end(0.0, None)
    assert isinstance(desk.call().begin(0.0)[0], Refuse)


@pytest.mark.parametrize(
    ("status", "budget", "blamed"), [(504, 0.3, False), (504, 2.0, True), (503, 0.3, True)]
)
def test_a_504_of_a_small_budget_says_nothing_about_the_dependency(
    status: int, budget: float, blamed: bool
) -> None:
    """It was told how little there was, and answers that this was not enough."""
    desk = Desk(breaker=EDGY)
    for _ in range(2):
        call = desk.call(deadline_at=budget)
        _start(call.begin(0.0))
        call.head(0.25, call.attempts, Head(status))
        call.end(0.25, None)
    assert desk.at_rest()
    assert isinstance(desk.call().begin(0.3)[0], Refuse) is blamed


def test_b70_what_counts_can_be_set() -> None:
    desk = Desk(breaker=replace(EDGY, failure_statuses={404}))
    for status, passes in ((503, True), (404, False)):
        for _ in range(2):
            call = desk.call()
            _start(call.begin(0.0))
            call.head(0.0, call.attempts, Head(status))
            call.end(0.0, None)
        assert isinstance(desk.call().begin(0.0)[0], Start) is passes


def test_refusals_of_a_trusted_dependency_never_open_the_circuit() -> None:
    # Or the less important requests that it sheds would cut off the important ones.
    desk = Desk(breaker=EDGY)
    for _ in range(50):
        call = desk.call()
        _start(call.begin(0.0))
        call.head(0.0, call.attempts, Head(503, 1.0, refused=True))
        call.end(0.0, None)
    _start(desk.call().begin(0.0))


NEITHER: dict[str, Callable[[Call], object]] = {
    "404": lambda call: (call.head(9.0, call.attempts, Head(404)), call.end(9.0, None)),
    "429": lambda call: (call.head(9.0, call.attempts, Head(429)), call.end(9.0, None)),
    "redirect": lambda call: (call.head(9.0, call.attempts, Head(302)), call.end(9.0, None)),
    "no connection in our pool": lambda call: call.failed(
        9.0, call.attempts, Failure(Phase.POOL, timed_out=True, ours=True)
    ),
    "the caller's budget": lambda call: call.failed(9.0, call.attempts, TIMED_OUT),
    "a cancel": lambda call: _cancel(call, 9.0),
    "a cancel of the body": lambda call: (call.head(9.0, call.attempts, Head(200)), _cancel(call, 9.0)),
}


@pytest.mark.parametrize("outcome", NEITHER.values(), ids=list(NEITHER))
def test_b65_a_trial_that_ends_in_neither_success_nor_failure_lets_the_next_one_in(
    outcome: Callable[[Call], object],
) -> None:
    desk = Desk(breaker=replace(EDGY, trials=1))
    desk.open(0.0)
    trial = desk.call(deadline_at=9.0)
    _start(trial.begin(8.0))
    assert desk.call().begin(8.0) == (Refuse(Reason.CIRCUIT_OPEN),)
    outcome(trial)
    _start(desk.call().begin(9.0))


# -- retries: what may be repeated


def _after(outcome: Head | Failure, method: str = "GET", desk: Desk | None = None, **request: Any) -> Actions:
    call = (desk or Desk(retry=AT_ONCE)).call(method, **request)
    _start(call.begin(0.0))
    return (
        call.head(0.0, call.attempts, outcome)
        if isinstance(outcome, Head)
        else call.failed(0.0, call.attempts, outcome)
    )


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "outcome", [Head(500), Head(503), Head(408), Head(429, 0.0), RESET, Failure(Phase.WRITE)]
)
def test_idempotent_methods_are_repeated(method: str, outcome: Head | Failure) -> None:
    assert _retried(_after(outcome, method))


@pytest.mark.parametrize("method", ["POST", "PATCH", "CONNECT", "LOCK"])
@pytest.mark.parametrize(
    ("outcome", "repeated"),
    [
        (Head(500), False), (Head(503), False), (Head(429, 0.0), False), (RESET, False), (TIMED_OUT, False),
        (Failure(Phase.WRITE), False),
        (Head(425), True), (Head(503, refused=True), True), (Head(429, 0.0, refused=True), True), (REFUSED, True),
        (Failure(Phase.DNS), True), (Failure(Phase.TLS), True), (Failure(Phase.POOL, timed_out=True, ours=True), True),
        (Failure(Phase.CONNECT, timed_out=True), True),
    ],
)  # fmt: skip
def test_others_are_repeated_only_if_the_dependency_cannot_have_acted(
    method: str, outcome: Head | Failure, repeated: bool
) -> None:
    desk = Desk(retry=AT_ONCE)
    actions = _after(outcome, method, desk)
    assert _retried(actions) is repeated
    assert repeated or {reason.value: count for reason, count in desk.state.retry_refusals.items()} == {
        "unsafe": 1
    }


def test_a_key_or_the_word_of_the_user_makes_any_method_repeatable() -> None:
    assert _retried(_after(Head(503), "POST", keyed=True))
    with pytest.warns(ResilienceWarning, match="repeating POST"):
        policy = replace(AT_ONCE, unsafe_methods={"post"})
    assert _retried(_after(Head(503), "POST", Desk(retry=policy)))
    assert not _retried(_after(Head(503), "PATCH", Desk(retry=policy)))


def test_b52_a_body_that_cannot_be_sent_again_is_not_but_one_that_was_never_sent_is() -> None:
    desk = Desk(retry=AT_ONCE)
    assert _after(Head(503), "PUT", desk, replayable=False) == (DELIVER,)
    assert _after(RESET, "PUT", desk, replayable=False) == (FAIL,)
    assert _after(Head(503, refused=True), "PUT", desk, replayable=False) == (DELIVER,)
    assert [reason.value for reason in desk.state.retry_refusals] == ["body"]
    assert _retried(_after(REFUSED, "PUT", replayable=False))


@pytest.mark.parametrize("status", [200, 304, 400, 401, 403, 404, 422, 429, 501, 505, 507])
def test_what_will_not_pass_is_delivered_and_no_retry_is_counted_as_refused(status: int) -> None:
    desk = Desk(retry=AT_ONCE)
    assert _after(Head(status), "GET", desk) == (DELIVER,)
    assert desk.state.retry_refusals == {}


def test_without_a_policy_nothing_is_repeated_and_nothing_counted() -> None:
    desk = Desk()
    assert _after(Head(503), desk=desk) == (DELIVER,)
    assert _after(RESET, desk=desk) == (FAIL,)
    assert desk.state.retry_refusals == {}


# -- retries: when


def test_a_retry_closes_the_response_waits_and_starts_again() -> None:
    desk = Desk(Luck(0.5), retry=RETRY, bulkhead=1, breaker=EDGY)
    call = desk.call()
    _start(call.begin(0.0))
    assert call.head(1.0, call.attempts, Head(503)) == (DISCARD, Wait(1.5))
    assert desk.at_rest(), "nothing is held during a back-off"
    assert call.resume(1.5) == (Start(2, 2.0, 2.0),)
    assert call.head(2.0, call.attempts, Head(200)) == (Deliver(2),)
    assert call.attempts == 2
    assert desk.state.retries == 1


def test_the_back_off_grows_and_the_attempts_end() -> None:
    desk = Desk(Luck(0.5), retry=RETRY)
    call = desk.call()
    _start(call.begin(0.0))
    assert call.failed(0.0, call.attempts, RESET) == (Wait(0.5),)
    assert _start(call.resume(0.5)).number == 2
    assert call.failed(1.0, call.attempts, RESET) == (Wait(2.0),)
    assert _start(call.resume(2.0)).number == 3
    assert call.failed(3.0, call.attempts, RESET) == (Fail(3),)
    assert {reason.value for reason in desk.state.retry_refusals} == {"attempts"}


def test_no_back_off_starts_at_once() -> None:
    desk = Desk(retry=AT_ONCE, bulkhead=1)
    call = desk.call()
    _start(call.begin(0.0))
    assert call.head(1.0, call.attempts, Head(503)) == (DISCARD, Start(2, 2.0, 2.0))
    assert call.failed(2.0, call.attempts, RESET) == (Start(3, 2.0, 2.0),)
    assert call.failed(3.0, call.attempts, RESET) == (Fail(3),)
    assert desk.at_rest()


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("outcome", [Head(503, 2.0), Head(429, 2.0), Head(503, 2.0, refused=True)])
def test_b55_retry_after_is_obeyed_and_never_shortened(luck: float, outcome: Head) -> None:
    call = Desk(Luck(luck), retry=replace(RETRY, backoff_base=0.1, backoff_cap=0.1)).call()
    call.begin(0.0)
    actions = call.head(1.0, call.attempts, outcome)
    assert actions[0] == DISCARD
    assert isinstance(actions[1], Wait)
    assert actions[1].until == pytest.approx(3.0 + 0.8 * luck)
    assert actions[1].until >= 3.0


@pytest.mark.parametrize(("most", "comes_back"), [(3.0, False), (5.0, True), (60.0, True)])
def test_b56_a_thousand_clients_that_were_told_5_s_come_back_spread_out_or_not_at_all(
    most: float, comes_back: bool
) -> None:
    desk = Desk(Random(3), retry=replace(RETRY, max_retry_after=most))
    instants = []
    for _ in range(1000):
        call = desk.call()
        call.begin(0.0)
        actions = call.head(0.0, call.attempts, Head(503, 5.0))
        assert _retried(actions) is comes_back
        instants += [action.until for action in actions if isinstance(action, Wait)]
    if comes_back:
        assert min(instants) >= 5.0
        assert max(Counter(int(instant / 0.05) for instant in instants).values()) <= 50, "5 % within 50 ms"


def test_b55_a_longer_back_off_is_kept_and_no_wait_is_an_ordinary_back_off() -> None:
    for retry_after in (0.0, 0.2, -5.0):
        call = Desk(Luck(0.5), retry=RETRY).call()
        call.begin(0.0)
        assert call.head(1.0, call.attempts, Head(503, retry_after)) == (DISCARD, Wait(1.5))


def test_b55_too_long_a_wait_is_given_up() -> None:
    desk = Desk(Luck(0.0), retry=RETRY)
    for retry_after, repeated in ((5.0, True), (5.001, False), (math.inf, False), (2.0**31, False)):
        call = desk.call()
        call.begin(0.0)
        assert _retried(call.head(1.0, call.attempts, Head(503, retry_after))) is repeated
    assert {reason.value: count for reason, count in desk.state.retry_refusals.items()} == {"retry_after": 3}


@pytest.mark.parametrize(
    ("deadline_at", "repeated"), [(math.inf, True), (100.0, True), (4.75, True), (4.74, False), (2.0, False)]
)
def test_only_if_back_off_typical_attempt_and_reserve_fit(deadline_at: float, repeated: bool) -> None:
    desk = Desk(Luck(0.5), retry=RETRY, reserve=0.25)
    for _ in range(10):
        call = desk.call()
        call.begin(0.0)
        call.head(1.0, call.attempts, Head(200))
        call.end(2.0, None)
    assert desk.state.typical() == 2.0
    call = desk.call(deadline_at=deadline_at)
    call.begin(0.0)
    actions = call.failed(2.0, call.attempts, RESET)  # 2.0 + 0.5 + 2.0 + 0.25
    assert _retried(actions) is repeated
    assert repeated or {reason.value for reason in desk.state.retry_refusals} == {"deadline"}


def test_only_answers_that_did_not_fail_teach_how_long_an_attempt_takes() -> None:
    desk = Desk()
    for outcome in (Head(503), Head(429), RESET, TIMED_OUT):
        for _ in range(20):
            call = desk.call()
            call.begin(0.0)
            if isinstance(outcome, Head):
                call.head(1.0, call.attempts, outcome)
                call.end(1.0, None)
            else:
                call.failed(1.0, call.attempts, outcome)
    for _ in range(20):
        call = desk.call()
        call.begin(0.0)
        call.head(1.0, call.attempts, Head(200))
        call.end(1.0, Failure(Phase.BODY))
    assert desk.state.typical() == 0.0
    assert sum(desk.state.seconds.counts) == 0


def test_the_smallest_budget_counts_where_no_typical_attempt_is_known() -> None:
    desk = Desk(retry=AT_ONCE, smallest_budget=0.5, reserve=0.25)
    for deadline_at, repeated in ((1.75, True), (1.74, False)):
        call = desk.call(deadline_at=deadline_at)
        call.begin(0.0)
        assert _retried(call.failed(1.0, call.attempts, RESET)) is repeated


def test_a_retry_is_within_the_retry_budget_or_not_made() -> None:
    desk = Desk(retry=replace(RETRY, attempts=2, budget_ratio=0.1, budget_per_second=0.0))
    outcomes = [_retried(_after(RESET, desk=desk)) for _ in range(40)]
    assert outcomes.count(True) == 4
    assert {reason.value: count for reason, count in desk.state.retry_refusals.items()} == {"budget": 36}


def test_calls_that_were_refused_are_no_traffic_that_retries_may_be_a_share_of() -> None:
    desk = Desk(retry=replace(RETRY, budget_ratio=0.5, budget_per_second=0.0), bulkhead=2)
    held = [desk.call(), desk.call()]
    for call in held:
        _start(call.begin(0.0))
    for _ in range(100):
        assert desk.call().begin(0.0) == (Refuse(Reason.BULKHEAD_FULL),)
    assert [_retried(call.failed(0.0, call.attempts, RESET)) for call in held] == [True, False]


def test_the_first_reason_is_the_one_that_is_counted() -> None:
    desk = Desk(retry=replace(RETRY, attempts=1), breaker=replace(EDGY, minimum_calls=1))
    _after(Head(503, 100.0), "POST", desk, replayable=False, deadline_at=0.1)
    assert {reason.value: count for reason, count in desk.state.retry_refusals.items()} == {"attempts": 1}


# -- retries and the breaker


@pytest.mark.parametrize(("outcome", "last"), [(Head(503), Deliver(2)), (RESET, Fail(2))])
def test_b71_when_the_circuit_opens_the_remaining_retries_are_not_slept_through(
    outcome: Head | Failure, last: object
) -> None:
    desk = Desk(retry=RETRY, breaker=EDGY)
    call = desk.call()
    _start(call.begin(0.0))
    assert _retried(
        call.head(1.0, call.attempts, outcome)
        if isinstance(outcome, Head)
        else call.failed(1.0, call.attempts, outcome)
    )
    _start(call.resume(2.0))
    assert (
        call.head(3.0, call.attempts, outcome)
        if isinstance(outcome, Head)
        else call.failed(3.0, call.attempts, outcome)
    ) == (last,)
    assert {reason.value: count for reason, count in desk.state.retry_refusals.items()} == {"circuit_open": 1}
    call.end(4.0, None)
    assert desk.at_rest()


def test_b71_attempts_count_calls_do_not_and_a_budget_bounds_what_is_sent() -> None:
    # Ten calls, each of which fails twice and then succeeds.
    sent = []
    for policy in (BreakerPolicy(window=40, minimum_calls=40), EDGY):
        desk = Desk(retry=AT_ONCE, breaker=policy)
        for _ in range(10):
            call = desk.call()
            actions = call.begin(0.0)
            for outcome in (Head(503), Head(503), Head(200)):
                if not isinstance(actions[-1], Start):
                    break
                actions = call.head(0.0, call.attempts, outcome)
            call.end(0.0, None)
        sent.append(sum(desk.state.attempts.values()))
    assert sent == [30, 2]
    desk = Desk(retry=replace(AT_ONCE, budget_ratio=0.1, budget_per_second=0.0))
    for _ in range(100):
        _after(Head(503), desk=desk)
    assert desk.state.calls + desk.state.retries == 110


def test_a_retry_waits_past_the_open_time_if_it_was_told_to() -> None:
    desk = Desk(Luck(0.0), retry=replace(RETRY, max_retry_after=60.0), breaker=EDGY)
    call = desk.call()
    _start(call.begin(0.0))
    other = desk.call()
    _start(other.begin(0.0))
    other.failed(0.0, other.attempts, RESET)
    assert call.head(0.0, call.attempts, Head(503, 9.0)) == (DISCARD, Wait(9.0)), "it is open until 8"
    assert _start(call.resume(9.0)).number == 2


def test_a_circuit_that_opened_in_the_back_off_leaves_the_error_or_a_refusal_that_tells_of_the_attempt() -> (
    None
):
    for outcome, expected in ((RESET, FAIL), (Head(503), Refuse(Reason.CIRCUIT_OPEN, 7.5, attempts=1))):
        desk = Desk(Luck(0.5), retry=replace(RETRY, budget_ratio=0.0, budget_per_second=0.1), breaker=EDGY)
        call = desk.call()
        _start(call.begin(0.0))
        assert _retried(
            call.head(0.0, call.attempts, outcome)
            if isinstance(outcome, Head)
            else call.failed(0.0, call.attempts, outcome)
        )
        desk.open(0.0)
        assert call.resume(0.5) == (expected,)
        assert desk.at_rest()
        assert desk.state.refusals == {Reason.CIRCUIT_OPEN: 1}
        assert {reason.value: count for reason, count in desk.state.retry_refusals.items()} == {
            "circuit_open": 1
        }
        assert desk.state.budget is not None
        assert desk.state.budget.reserve(0.5, 0.5), "its place in the retry budget is free again"


def test_a_bulkhead_that_filled_up_in_the_back_off_does_the_same() -> None:
    for outcome, expected in ((RESET, FAIL), (Head(503), Refuse(Reason.BULKHEAD_FULL, attempts=1))):
        desk = Desk(Luck(0.5), retry=RETRY, bulkhead=1)
        call = desk.call()
        _start(call.begin(0.0))
        assert _retried(
            call.head(0.0, call.attempts, outcome)
            if isinstance(outcome, Head)
            else call.failed(0.0, call.attempts, outcome)
        )
        _start(desk.call().begin(0.1))
        assert call.resume(0.5) == (expected,)
        assert desk.state.in_use == 1
        assert {reason.value: count for reason, count in desk.state.retry_refusals.items()} == {
            "bulkhead_full": 1
        }


def test_the_error_of_an_older_attempt_is_not_raised_for_a_newer_answer() -> None:
    desk = Desk(Luck(0.5), retry=RETRY, bulkhead=1)
    call = desk.call()
    _start(call.begin(0.0))
    call.failed(0.0, call.attempts, RESET)
    _start(call.resume(0.5))
    call.head(1.0, call.attempts, Head(503))
    _start(desk.call().begin(1.0))
    assert call.resume(3.0) == (Refuse(Reason.BULKHEAD_FULL, attempts=2),)


def test_a_timer_that_was_too_late_is_an_end_in_the_back_off() -> None:
    for late in (9.99, 10.0, 50.0):
        desk = Desk(
            Luck(0.5), retry=replace(RETRY, budget_ratio=0.0, budget_per_second=0.1), smallest_budget=0.1
        )
        call = desk.call(deadline_at=10.0)
        _start(call.begin(0.0))
        assert call.failed(0.0, call.attempts, RESET) == (Wait(0.5),)
        assert call.resume(late) == (Expire(Phase.BACKOFF),)
        assert desk.at_rest()
        assert desk.state.expiries == {Phase.BACKOFF: 1}
        assert desk.state.budget is not None
        assert desk.state.budget._retries == []


def test_a_cancel_in_the_back_off_frees_its_place_in_the_retry_budget() -> None:
    desk = Desk(Luck(0.5), retry=replace(RETRY, budget_ratio=0.0, budget_per_second=0.1))
    call, other = desk.call(), desk.call()
    for each in (call, other):
        _start(each.begin(0.0))
    assert call.failed(0.0, call.attempts, RESET) == (Wait(0.5),)
    call.cancel(0.25)
    assert other.failed(0.25, other.attempts, RESET) == (Wait(0.75),)


def test_the_place_in_the_retry_budget_is_kept_once_the_retry_has_begun() -> None:
    desk = Desk(Luck(0.5), retry=replace(RETRY, budget_ratio=0.0, budget_per_second=0.1))
    call, other = desk.call(), desk.call()
    for each in (call, other):
        _start(each.begin(0.0))
    call.failed(0.0, call.attempts, RESET)
    _start(call.resume(0.75))
    call.cancel(1.0)
    assert other.failed(10.0, other.attempts, RESET) == (FAIL,)
    last = desk.call()
    _start(last.begin(10.0))
    assert last.failed(10.25, last.attempts, RESET) == (Wait(10.75),), "it counts from when it really began"


# -- the end of the budget


@pytest.mark.parametrize("phase", [Phase.POOL, Phase.DNS, Phase.CONNECT, Phase.TLS, Phase.WRITE, Phase.HEAD])
def test_the_callers_budget_ends_an_attempt_with_the_phase_and_blames_nobody(phase: Phase) -> None:
    desk = Desk(timeout=4.0, retry=AT_ONCE, breaker=replace(EDGY, minimum_calls=1))
    call = desk.call(deadline_at=3.0)
    assert _start(call.begin(0.0)).timeout == 3.0
    assert call.failed(3.0, call.attempts, Failure(phase, timed_out=True)) == (Expire(phase),)
    assert desk.state.expiries == {phase: 1}
    _start(desk.call().begin(4.0))


def test_a_timer_may_fire_a_hair_early() -> None:
    call = Desk(timeout=4.0).call(deadline_at=3.0)
    call.begin(0.0)
    assert call.failed(3.0 - 0.0005, call.attempts, TIMED_OUT) == (Expire(Phase.HEAD),)


def test_a_timeout_of_the_dependencys_own_is_its_fault_and_may_be_retried() -> None:
    desk = Desk(timeout=2.0, retry=AT_ONCE, breaker=EDGY)
    call = desk.call(deadline_at=9.0)
    call.begin(0.0)
    assert call.failed(2.0, call.attempts, TIMED_OUT) == (Start(2, 2.0, 2.0),)
    assert call.failed(4.0, call.attempts, TIMED_OUT) == (Fail(2),), "and it opens the circuit"
    assert desk.state.expiries == {}


def test_a_connect_timeout_is_not_the_callers_budget_however_small_that_is() -> None:
    desk = Desk(timeout=4.0, connect_timeout=0.5, retry=AT_ONCE, breaker=replace(EDGY, minimum_calls=3))
    call = desk.call(deadline_at=1.2)
    assert _start(call.begin(0.0)) == Start(1, 1.2, 0.5)
    assert _start(call.failed(0.5, call.attempts, Failure(Phase.CONNECT, timed_out=True))).number == 2
    third = _start(call.failed(1.0, call.attempts, Failure(Phase.CONNECT, timed_out=True)))
    assert third.timeout == third.connect_timeout == pytest.approx(0.2)
    assert call.failed(1.2, call.attempts, Failure(Phase.CONNECT, timed_out=True)) == (Expire(Phase.CONNECT),)
    assert desk.state.breaker is not None
    assert list(desk.state.breaker._outcomes) == [True, True]


def test_one_that_had_nearly_its_usual_time_is_judged() -> None:
    # Outside a request the budget is the dependency's own total timeout; it must be able to open the circuit.
    desk = Desk(timeout=2.0, total_timeout=1.0, breaker=EDGY)
    for deadline_at, blamed in ((0.5, 0), (0.89, 0), (0.95, 1), (0.999, 2)):
        call = desk.call(deadline_at=deadline_at)
        _start(call.begin(0.0))
        assert call.failed(deadline_at, call.attempts, TIMED_OUT) == (Expire(Phase.HEAD),)
        assert desk.state.breaker is not None
        assert sum(desk.state.breaker._outcomes) == blamed or desk.state.breaker.state is BreakerState.OPEN
    assert desk.state.breaker is not None
    assert desk.state.breaker.state is BreakerState.OPEN


def test_a_body_that_is_cut_off_is_the_dependencys_fault_unless_the_budget_did_it() -> None:
    for deadline_at, at, failure, expired, failures in (
        (math.inf, 1.0, Failure(Phase.BODY), False, 1),
        (math.inf, 2.0, Failure(Phase.BODY, timed_out=True), False, 1),
        (1.0, 1.0, Failure(Phase.BODY, timed_out=True), True, 0),
        (1.0, 0.9, Failure(Phase.BODY, timed_out=True), False, 1),
        (1.0, 1.0, Failure(Phase.BODY), False, 1),
    ):
        desk = Desk(breaker=EDGY)
        call = desk.call(deadline_at=deadline_at)
        call.begin(0.0)
        assert call.head(0.5, call.attempts, Head(200)) == (DELIVER,)
        assert call.end(at, failure) == ((Expire(Phase.BODY),) if expired else ())
        assert desk.state.expiries == ({Phase.BODY: 1} if expired else {})
        assert desk.state.breaker is not None
        assert sum(desk.state.breaker._outcomes) == failures
        assert desk.state.attempts == {"body": 1}


def test_the_budget_never_grows_from_attempt_to_attempt() -> None:
    desk = Desk(Luck(0.5), timeout=3.0, connect_timeout=1.0, retry=replace(RETRY, attempts=5), reserve=0.1)
    call = desk.call(deadline_at=9.0)
    actions, now, timeouts = call.begin(0.0), 0.0, []
    while not isinstance(actions[-1], (Fail, Expire)):
        last = actions[-1]
        if isinstance(last, Start):
            assert last.timeout <= 9.0 - 0.1 - now
            assert last.connect_timeout <= last.timeout
            timeouts.append(last.timeout)
            now += 1.5
            actions = call.failed(now, call.attempts, RESET)
        else:
            assert isinstance(last, Wait)
            now = last.until
            actions = call.resume(now)
    assert len(timeouts) >= 3
    assert timeouts == sorted(timeouts, reverse=True)


# -- what is counted


def test_the_figures() -> None:
    desk = Desk(Luck(0.0), retry=replace(RETRY, attempts=2), breaker=BreakerPolicy(), bulkhead=2)
    call = desk.call(deadline_at=50.0)
    call.begin(0.0)
    call.head(1.0, call.attempts, Head(503))
    call.head(1.5, call.attempts, Head(200))
    call.end(2.0, None)
    call = desk.call()
    call.begin(2.0)
    call.failed(2.5, call.attempts, TIMED_OUT)
    call.failed(3.0, call.attempts, RESET)
    call = desk.call(deadline_at=4.0)
    call.begin(3.0)
    call.failed(4.0, call.attempts, TIMED_OUT)
    call = desk.call()
    call.begin(5.0)
    call.cancel(5.5)
    desk.call(deadline_at=5.0).begin(6.0)
    desk.call().begin(7.0)
    snapshot = dependency_snapshot("prices", desk.state)
    assert snapshot.dependency == "prices"
    assert snapshot.calls == 6
    assert snapshot.attempts == {"5xx": 1, "2xx": 1, "timeout": 2, "error": 1, "cancelled": 1}
    assert snapshot.retries == 2
    assert snapshot.refused == {"insufficient_budget": 1}
    assert snapshot.retries_refused == {"attempts": 1}
    assert snapshot.expired == {"head": 1}
    assert (snapshot.in_use, snapshot.bulkhead, snapshot.breaker) == (1, 2, "closed")
    assert snapshot.transitions == {}
    assert (sum(snapshot.seconds.counts), snapshot.seconds.total) == (1, 1.0)
    assert sum(snapshot.budgets.counts) == 3
    assert snapshot.seconds is not desk.state.seconds, "it must not change under its reader"
