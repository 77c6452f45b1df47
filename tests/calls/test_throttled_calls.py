"""What the throttle and the adaptive limit do to calls: when they are asked, what they hear, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_mw.calls.adaptive import AdaptivePolicy
from resilient_mw.calls.attempt import Attempt
from resilient_mw.calls.call import Call
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import DELIVER, Discard, Fail, Failure, Head, Phase, Refuse, Start
from resilient_mw.calls.figures import dependency_snapshot
from resilient_mw.calls.refusals import RetryRefusal
from resilient_mw.calls.throttle import ThrottlePolicy
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.rejection import Reason
from tests.calls.desk import AT_ONCE, EDGY, Desk, Luck

SHED = Head(503, refused=True)


def desk(luck: float = 0.0, **fields: Any) -> Desk:
    return Desk(Luck(luck), throttle=ThrottlePolicy(per_second=0.0), **fields)


def begun(one: Desk, now: float = 1.0) -> Call:
    call = one.call()
    assert isinstance(call.begin(now)[0], Start)
    return call


def window(one: Desk) -> tuple[int, int]:
    assert one.state.throttle is not None
    return one.state.throttle.window()


def shedding(times: int, **fields: Any) -> Desk:
    """A dependency that has refused so many, and from now on bad luck for all who are to be refused here."""
    one = desk(0.99, **fields)
    for _ in range(times):
        call = begun(one)
        call.head(1.0, 1, SHED)
        call.end(1.0, None)
    one.luck.value = 0.0  # type: ignore[attr-defined]
    return one


@pytest.mark.parametrize(
    ("head", "accepted"),
    [
        (SHED, 0),
        (Head(504, refused=True), 0),
        (Head(503), 1),
        (Head(500), 1),
        (Head(200), 1),
        (Head(404), 1),
        (Head(429, refused=True), 1),  # The quota of one caller says nothing about the load.
        (Head(413, refused=True), 1),
    ],
)
def test_what_an_answer_says(head: Head, accepted: int) -> None:
    one = desk()
    call = begun(one)
    call.head(1.1, 1, head)
    assert window(one) == (1, accepted), "told at the head, not at the end of the body"
    call.end(1.2, None)
    assert window(one) == (1, accepted)


@pytest.mark.parametrize(
    ("failure", "requests"),
    [
        (Failure(Phase.HEAD, timed_out=True), 1),
        (Failure(Phase.CONNECT), 1),
        (Failure(Phase.HEAD), 1),
        (Failure(Phase.POOL, timed_out=True, ours=True), 0),
    ],
)
def test_what_a_failure_says(failure: Failure, requests: int) -> None:
    one = desk()
    assert begun(one).failed(1.5, 1, failure) == (Fail(1),)
    assert window(one) == (requests, 0)


def test_a_caller_who_gives_up_says_nothing() -> None:
    one = desk()
    begun(one).cancel(1.5)
    assert window(one) == (0, 0)
    answered = begun(one)
    answered.head(1.1, 1, Head(200))
    answered.cancel(1.5)
    assert window(one) == (1, 1), "its head had told already"


def test_a_timeout_of_the_small_budget_of_a_caller_says_nothing() -> None:
    one = desk()
    call = one.call(deadline_at=1.1)
    call.begin(1.0)
    call.failed(1.1, 1, Failure(Phase.HEAD, timed_out=True))
    assert window(one) == (0, 0)


def test_a_call_that_it_refuses_is_neutral_for_the_breaker() -> None:
    one = shedding(4, breaker=EDGY)
    refused = one.call().begin(1.0)
    assert refused == (Refuse(Reason.THROTTLED, 0.0, 0),)
    breaker = one.state.breaker
    assert breaker is not None
    assert not breaker._outcomes
    assert one.at_rest()
    assert one.state.refusals == {Reason.THROTTLED: 1}
    assert dependency_snapshot("prices", one.state, 1.0).throttle == pytest.approx(5 / 6)


def test_a_retry_that_it_refuses_ends_the_retries_with_a_counted_reason() -> None:
    one = desk(retry=AT_ONCE)
    answer = begun(one).head(1.1, 1, SHED)
    assert answer == (Discard(1), Refuse(Reason.THROTTLED, 0.0, 1))
    assert one.state.retry_refusals == {RetryRefusal.THROTTLED: 1}
    assert one.at_rest()


def test_a_retry_after_an_answer_is_a_request_of_its_own() -> None:
    one = desk(0.99, retry=AT_ONCE)
    call = begun(one)
    assert isinstance(call.head(1.1, 1, SHED)[-1], Start)
    call.cancel(1.2)
    assert window(one) == (1, 0), "the second attempt had no head, whatever the first one had"
    assert one.state.throttle is not None
    assert not any(one.state.throttle._open)


def test_an_error_is_raised_as_it_is_where_its_retry_is_throttled() -> None:
    one = desk(retry=AT_ONCE)
    assert begun(one).failed(1.1, 1, Failure(Phase.CONNECT)) == (Fail(1),)
    assert one.state.retry_refusals == {RetryRefusal.THROTTLED: 1}


def test_trials_of_a_circuit_are_not_throttled() -> None:
    one = shedding(20, breaker=EDGY)
    one.open(1.0)
    assert isinstance(one.call().begin(9.5)[0], Start)
    assert window(one)[0] == 21


def test_an_attempt_without_a_slot_is_not_counted_as_sent() -> None:
    one = desk(bulkhead=1)
    begun(one)
    assert one.call().begin(1.0) == (Refuse(Reason.BULKHEAD_FULL, 0.0, 0),)
    assert window(one) == (1, 0)


def test_the_adaptive_limit_is_what_counts_below_the_bulkhead() -> None:
    one = Desk(bulkhead=10, adaptive=AdaptivePolicy(initial=4))
    for _ in range(4):
        begun(one)
    assert one.call().begin(1.0) == (Refuse(Reason.BULKHEAD_FULL, 0.0, 0),)
    assert dependency_snapshot("prices", one.state).bulkhead == 4


@pytest.mark.parametrize("loss", [SHED, Failure(Phase.HEAD, timed_out=True)])
def test_losses_of_calls_cut_the_limit(loss: Head | Failure) -> None:
    one = Desk(bulkhead=100, adaptive=AdaptivePolicy(initial=50))
    for step in range(150):
        call, now = begun(one, float(step)), step + 0.5
        if isinstance(loss, Head):
            assert call.head(now, 1, loss) == (DELIVER,)
            call.end(now, None)
        else:
            call.failed(now, 1, loss)
    assert one.state.adaptive is not None
    assert (one.state.adaptive.cuts, one.state.adaptive.limit) == (1, 40)


@pytest.mark.parametrize("outcome", ["cancelled", "error", "pool"])
def test_what_says_nothing_about_load_does_not(outcome: str) -> None:
    one = Desk(bulkhead=100, adaptive=AdaptivePolicy(initial=50))
    for step in range(300):
        call, now = begun(one, float(step)), step + 0.5
        if outcome == "cancelled":
            call.cancel(now)
        elif outcome == "error":
            call.failed(now, 1, Failure(Phase.CONNECT))
        else:
            call.failed(now, 1, Failure(Phase.POOL, timed_out=True, ours=True))
    assert one.state.adaptive is not None
    assert (one.state.adaptive.cuts, one.state.adaptive.limit) == (0, 50)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"throttle": 1}, "throttle=1 is not allowed: it must be a ThrottlePolicy"),
        ({"adaptive": 1}, "adaptive=1 is not allowed: it must be an AdaptivePolicy"),
        ({"throttle": ThrottlePolicy(window=2.0)}, "window must be longer than the timeout, 2"),
        ({"adaptive": AdaptivePolicy()}, "not allowed with bulkhead=None"),
        ({"adaptive": AdaptivePolicy(), "bulkhead": 3}, "not allowed with bulkhead=3"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Dependency("prices", "http://prices/*", **fields)


def test_a_throttle_that_hears_no_refusal_is_warned_of() -> None:
    with pytest.warns(ResilienceWarning, match="throttle hears of timeouts"):
        Dependency("prices", "http://prices/*", throttle=ThrottlePolicy(), trusted=False)


def test_the_slower_of_two_attempts_of_a_call_says_nothing() -> None:
    one = desk(0.99)
    call = begun(one)
    call._flying = (*call._flying, Attempt(2, None, 1.0, 2.0))
    one.state.in_use += 1
    one.state.attempt_begins(call, 1.0, 9.0, retry=True)
    call.head(1.1, 1, Head(200))
    assert window(one) == (2, 1)
    call.lost(1.2, 2)
    assert window(one) == (1, 1)
