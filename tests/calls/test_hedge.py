"""Hedges in the call machine: when a second attempt begins, when it does not and why, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.calls import HedgePolicy
from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import (
    Cancel,
    Deliver,
    Discard,
    Fail,
    Failure,
    Head,
    Phase,
    Refuse,
    Start,
)
from resilient_mw.calls.figures import dependency_snapshot
from resilient_mw.calls.hedge import HedgeRefusal
from resilient_mw.calls.state import DependencyState
from resilient_mw.calls.throttle import ThrottlePolicy
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.simulation import (
    Bimodal,
    Caller,
    Condition,
    Constant,
    Engine,
    Exponential,
    RemoteService,
    Workers,
)
from tests.calls.desk import EDGY, Desk, Luck

SOON = HedgePolicy(delay=0.1)
THREE = RetryPolicy(attempts=3, backoff_base=0.0, budget_per_second=100.0)


def begun(desk: Desk, method: str = "GET", *, insist: bool = False, **request: Any) -> tuple[Call, Start]:
    call = desk.call(method, **request)
    call.allow_hedges(method, keyed=request.get("keyed", False), insist=insist)
    (start,) = call.begin(0.0)
    assert isinstance(start, Start)
    return call, start


def refused(desk: Desk) -> dict[str, int]:
    hedging = desk.state.hedging
    assert hedging is not None
    return {reason.value: count for reason, count in hedging.refused.items()}


def test_a_call_says_when_to_look_again_and_starts_a_second_attempt_then() -> None:
    desk = Desk(hedge=SOON)
    call, start = begun(desk)
    assert start == Start(1, 2.0, 2.0, 0.1)
    assert call.next_wakeup() == 0.1
    assert call.wake(0.05) == ()
    assert call.next_wakeup() == 0.1
    assert call.wake(0.1) == (Start(2, 2.0, 2.0),)
    assert call.next_wakeup() == math.inf
    assert call.wake(0.2) == ()
    assert desk.state.in_use == 2


def test_the_winner_is_delivered_and_the_loser_keeps_its_slot_until_it_has_ended() -> None:
    desk = Desk(hedge=SOON)
    call, _ = begun(desk)
    call.wake(0.1)
    assert call.head(0.2, 2, Head(200)) == (Cancel(1), Deliver(2))
    assert desk.state.in_use == 2
    call.lost(0.3, 1)
    call.lost(0.3, 1)
    assert desk.state.in_use == 1
    assert call.end(0.4, None) == ()
    assert desk.at_rest()
    snapshot = dependency_snapshot("prices", desk.state, 1.0)
    assert snapshot.hedges is not None
    assert (snapshot.hedges.made, snapshot.hedges.won, snapshot.retries) == (1, 1, 0)
    assert snapshot.attempts == {"lost": 1, "2xx": 1}


def test_a_first_attempt_that_wins_is_no_hedge_that_won() -> None:
    desk = Desk(hedge=SOON)
    call, _ = begun(desk)
    call.wake(0.1)
    assert call.head(0.2, 1, Head(200)) == (Cancel(2), Deliver(1))
    assert desk.state.hedging is not None
    assert (desk.state.hedging.made, desk.state.hedging.won) == (1, 0)


def test_a_failing_attempt_is_not_the_end_while_another_flies() -> None:
    desk = Desk(hedge=SOON)
    call, _ = begun(desk)
    call.wake(0.1)
    assert call.failed(0.2, 1, Failure(Phase.HEAD)) == ()
    assert call.head(0.3, 2, Head(200)) == (Deliver(2),)


def test_when_all_have_failed_hedges_count_as_attempts() -> None:
    desk = Desk(hedge=SOON, retry=THREE)
    call, _ = begun(desk)
    call.wake(0.1)
    assert call.head(0.2, 1, Head(503)) == (Discard(1),)
    retried = call.head(0.3, 2, Head(503))
    assert retried == (Discard(2), Start(3, 2.0, 2.0))
    assert call.next_wakeup() == math.inf, "its one hedge was made"
    assert call.failed(0.4, 3, Failure(Phase.HEAD)) == (Fail(3),)
    assert desk.state.retries == 1


def test_a_call_without_retries_is_hedged_within_a_budget_of_its_own() -> None:
    desk = Desk(hedge=SOON)
    made = 0
    for _ in range(40):
        call, _ = begun(desk)
        made += len(call.wake(0.1))
        call.cancel(0.1)
    assert made == 14, "a tenth of 40 calls, and 1 a second"
    assert refused(desk) == {"budget": 26}


def test_each_further_hedge_comes_as_long_after_the_one_before() -> None:
    desk = Desk(hedge=HedgePolicy(delay=0.1, hedges=3))
    call, _ = begun(desk)
    for number, at in ((2, 0.1), (3, 0.2), (4, 0.3)):
        assert call.next_wakeup() == pytest.approx(at)
        (start,) = call.wake(at)
        assert isinstance(start, Start)
        assert start.number == number
    assert call.next_wakeup() == math.inf
    assert call.head(0.35, 3, Head(200)) == (Cancel(1), Cancel(2), Cancel(4), Deliver(3))


# -- what is not hedged


@pytest.mark.parametrize(
    ("method", "request_", "reason"),
    [
        ("POST", {}, "unsafe"),
        ("PATCH", {}, "unsafe"),
        ("POST", {"keyed": True, "replayable": False}, "body"),
        ("PUT", {}, "unsafe"),
        ("DELETE", {}, "unsafe"),
        ("GET", {"replayable": False}, "body"),
        ("GET", {"owned": True}, "not_owner"),
    ],
)
def test_what_cannot_be_hedged_says_why_once_it_was_due(
    method: str, request_: dict[str, Any], reason: str
) -> None:
    desk = Desk(hedge=SOON)
    call, start = begun(desk, method, **request_)
    assert start.look_at == math.inf
    assert call.wake(0.5) == ()
    call.head(0.5, 1, Head(200))
    assert refused(desk) == {reason: 1}
    fast, _ = begun(desk, method, **request_)
    fast.head(0.05, 1, Head(200))
    failing, _ = begun(desk, method, **request_)
    failing.failed(0.5, 1, Failure(Phase.HEAD))
    assert refused(desk) == {reason: 2}, "one that was fast needed no hedge"


def test_who_insists_hedges_below_a_layer_that_retries() -> None:
    _, start = begun(Desk(hedge=SOON), owned=True, insist=True)
    assert start.look_at == 0.1


@pytest.mark.parametrize("keyed", [False, True])
def test_methods_that_a_dependency_vouches_for_need_a_key_to_be_sent_side_by_side(*, keyed: bool) -> None:
    with pytest.warns(ResilienceWarning):
        retry = RetryPolicy(unsafe_methods=["POST"])
    _, start = begun(Desk(hedge=SOON, retry=retry), "POST", keyed=keyed)
    assert (start.look_at < math.inf) is keyed


def test_a_driver_that_cannot_is_not_asked_to() -> None:
    call = Desk(hedge=SOON).call()
    assert call.begin(0.0) == (Start(1, 2.0, 2.0),)
    assert call.next_wakeup() == math.inf


def test_a_conflict_of_a_key_with_itself_is_not_the_answer() -> None:
    call, _ = begun(Desk(hedge=SOON), "POST", keyed=True)
    call.wake(0.1)
    assert call.head(0.2, 2, Head(409)) == (Discard(2),)
    assert call.head(0.3, 1, Head(201)) == (Deliver(1),)
    other, _ = begun(Desk(hedge=SOON), keyed=True)
    other.wake(0.1)
    assert other.head(0.2, 2, Head(409)) == (Cancel(1), Deliver(2))


def _small(desk: Desk) -> None:
    for _ in range(100):
        desk.state._typical.add(1.0)


def _open(desk: Desk) -> None:
    desk.open(0.05)


def _full(desk: Desk) -> None:
    assert desk.state.take_slot()


def _spent(desk: Desk) -> None:
    assert desk.state.budget is not None
    while desk.state.budget.reserve(0.05, 0.05):
        pass


def _throttled(desk: Desk) -> None:
    assert desk.state.throttle is not None
    for _ in range(200):
        desk.state.throttle.sent(0.05)
        desk.state.throttle.ended(0.05, accepted=False)


@pytest.mark.parametrize(
    ("happens", "fields", "reason"),
    [
        (_small, {}, "deadline"),
        (_open, {"breaker": EDGY}, "circuit_open"),
        (_full, {"bulkhead": 2}, "bulkhead_full"),
        (_full, {"bulkhead": BulkheadPolicy(limit=2, max_wait=1.0)}, "bulkhead_full"),
        (_spent, {}, "budget"),
        (_throttled, {"throttle": ThrottlePolicy()}, "throttled"),
    ],
)
def test_a_hedge_waits_for_nothing_and_says_what_it_lacked(
    happens: Callable[[Desk], None], fields: dict[str, Any], reason: str
) -> None:
    desk = Desk(Luck(0.0), hedge=SOON, **fields)
    call, _ = begun(desk, deadline_at=0.5)
    happens(desk)
    held = desk.state.in_use
    kept = None if desk.state.budget is None else list(desk.state.budget._retries)
    assert call.wake(0.1) == ()
    assert refused(desk) == {reason: 1}
    assert desk.state.in_use == held
    assert kept == (None if desk.state.budget is None else list(desk.state.budget._retries))
    assert call.head(0.2, 1, Head(200)) == (Deliver(1),)


def test_a_hedge_is_no_trial_of_a_circuit() -> None:
    desk = Desk(hedge=SOON, breaker=EDGY)
    desk.open(0.0)
    call = desk.call()
    call.allow_hedges("GET", keyed=False)
    assert isinstance(call.begin(9.0)[0], Start)
    assert desk.state.breaker is not None
    assert desk.state.breaker.state is BreakerState.HALF_OPEN
    assert call.wake(9.2) == ()
    assert refused(desk) == {"circuit_open": 1}


def test_a_ramp_that_refuses_gives_everything_back() -> None:
    ramped = BreakerPolicy(window=4, minimum_calls=2, open_for=1.0, open_jitter=0.0, trials=1, ramp=10.0)
    desk = Desk(Luck(0.999), hedge=SOON, breaker=ramped)
    call, _ = begun(desk)
    breaker = desk.state.breaker
    assert breaker is not None
    breaker._ramp.begin(0.0)
    breaker.quiet_until = -math.inf
    assert call.wake(0.1) == ()
    assert refused(desk) == {"circuit_open": 1}
    assert desk.state.in_use == 1
    assert desk.state.budget is not None
    assert desk.state.budget._retries == []


def test_a_cancelled_call_holds_nothing() -> None:
    desk = Desk(hedge=SOON, breaker=EDGY)
    call, _ = begun(desk)
    call.wake(0.1)
    call.cancel(0.2)
    assert desk.at_rest()
    assert call.wake(0.3) == ()
    assert call.next_wakeup() == math.inf
    assert desk.state.attempts == {"cancelled": 2}


# -- the delay


def known(desk: Desk, seconds: float, count: int) -> None:
    heads = desk.state.group.heads
    assert heads is not None
    for _ in range(count):
        heads.add(0.0, seconds)


def test_nothing_is_hedged_before_enough_is_known() -> None:
    desk = Desk(hedge=HedgePolicy(quantile=0.9))
    known(desk, 0.1, 19)
    _, start = begun(desk)
    assert start.look_at == math.inf
    assert refused(desk) == {"samples": 1}
    known(desk, 0.1, 1)
    desk.state.group.heads._kept.clear()  # type: ignore[union-attr]
    _, start = begun(desk)
    assert 0.1 <= start.look_at <= 0.1 * 1.1


def test_the_head_is_what_counts_and_not_a_body_that_is_read_slowly() -> None:
    desk = Desk(hedge=HedgePolicy(quantile=0.5, minimum_samples=2))
    for _ in range(2):
        call, _ = begun(desk)
        call.head(0.1, 1, Head(200))
        call.end(1.9, None)
    _, start = begun(desk)
    assert start.look_at < 0.12


def test_a_lost_attempt_is_not_taken_for_a_fast_one() -> None:
    desk = Desk(hedge=HedgePolicy(quantile=0.5, minimum_samples=2))
    known(desk, 0.1, 2)
    call, _ = begun(desk)
    call.wake(0.2)
    call.head(0.25, 2, Head(200))
    call.lost(0.25, 1)
    heads = desk.state.group.heads
    assert heads is not None
    assert heads.samples(0.3) == 3
    assert sum(heads._now.cut) == 1


def test_failures_teach_nothing_about_the_delay() -> None:
    desk = Desk(hedge=HedgePolicy())
    call, _ = begun(desk)
    call.head(0.001, 1, Head(503))
    heads = desk.state.group.heads
    assert heads is not None
    assert heads.samples(0.1) == 0


def test_no_measured_delay_is_below_the_minimum() -> None:
    desk = Desk(hedge=HedgePolicy(minimum=0.05))
    known(desk, 0.001, 100)
    _, start = begun(desk)
    assert start.look_at == 0.05


def test_route_groups_have_delays_of_their_own() -> None:
    desk = Desk(hedge=HedgePolicy(), groups={"slow": "GET /slow"})
    assert desk.state.groups is not None
    slow = desk.state.groups.named["slow"]
    assert slow.heads is not None
    assert slow.heads is not desk.state.group.heads


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"quantile": 1.0}, "HedgePolicy.quantile"),
        ({"quantile": 0.4}, "HedgePolicy.quantile"),
        ({"delay": 0.0}, "HedgePolicy.delay"),
        ({"minimum": -1.0}, "HedgePolicy.minimum"),
        ({"hedges": 0}, "HedgePolicy.hedges"),
        ({"hedges": 4}, "HedgePolicy.hedges"),
        ({"quantile": 0.99, "minimum_samples": 99}, "HedgePolicy.minimum_samples"),
    ],
)
def test_a_policy_out_of_range_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        HedgePolicy(**fields)


def test_a_dependency_takes_no_other_thing_for_a_policy() -> None:
    with pytest.raises(ValueError, match="hedge=0.5 is not allowed"):
        Dependency("prices", "http://prices/*", hedge=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"hedge": HedgePolicy(delay=2.0)}, "not below the timeout"),
        ({"hedge": SOON, "bulkhead": 1}, "one attempt through"),
        ({"hedge": SOON, "retry": RetryPolicy(budget_ratio=None)}, "no budget"),
    ],
)
def test_what_has_no_effect_or_no_bound_is_said(fields: dict[str, Any], text: str) -> None:
    with pytest.warns(ResilienceWarning, match=text):
        Dependency("prices", "http://prices/*", **fields)


# -- in virtual time


def p99(hedge: HedgePolicy | None) -> tuple[float, float]:
    """Return the p99 of 6,000 calls at a dependency of which one in twenty takes 1 s, and attempts per call."""
    engine, random = Engine(), Random(5)
    usual = Bimodal(usual=Exponential(0.01), rare=Constant(1.0), share=0.05)
    fields: dict[str, Any] = {"hedge": hedge, "breaker": None}
    state = DependencyState(Dependency("prices", "http://prices/*", **fields), Random(6))
    remote = RemoteService(
        engine, Workers(1_000).build(engine, random), [(0.0, Condition(service=usual))], random
    )
    caller, took = Caller(engine, state, remote), list[float]()

    def call() -> None:
        at = engine.now
        caller.call(ended=lambda each: took.append(engine.now - at))

    for number in range(7_000):
        engine.at(number / 100.0, call)
    engine.run(100.0)
    assert state.in_use == 0
    took = sorted(took[1_000:])
    attempts = sum(state.attempts.values()) / 7_000
    return took[int(0.99 * len(took))], attempts


def test_the_slow_one_in_twenty_is_not_waited_for() -> None:
    assert p99(None)[0] == pytest.approx(1.0, abs=0.05)
    # Clearly below the share that is fast: at 0.95 the quantile would now and then be one of the slow answers itself.
    hedged, attempts = p99(HedgePolicy(quantile=0.94))
    assert hedged < 0.15, "the delay and a usual attempt"
    assert attempts < 1.11


# -- any order of events


@st.composite
def orders(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    step = st.tuples(
        st.sampled_from(["wake", "head", "failed", "lost", "cancel"]),
        st.integers(1, 5),
        st.sampled_from([200, 503, 409]),
    )
    return draw(st.lists(step, min_size=1, max_size=14))


class Watch:
    """Plays events in any order, and knows what must be held."""

    def __init__(self, hedges: int, retry: RetryPolicy | None, *, keyed: bool) -> None:
        self.desk = Desk(hedge=HedgePolicy(delay=0.1, hedges=hedges), retry=retry, bulkhead=4)
        self.call, start = begun(self.desk, "POST" if keyed else "GET", keyed=keyed)
        self.flying, self.dying, self.seen, self.now = {1}, set[int](), [start], 0.0
        self.delivered = self.over = False

    def step(self, kind: str, number: int, status: int) -> None:
        self.now += 0.11
        if kind == "cancel":
            self.call.cancel(self.now)
            self.flying, self.dying, self.delivered, self.over = set(), set(), False, True
        elif kind == "lost" and number in self.dying:
            self.dying.discard(number)
            self.call.lost(self.now, number)
        elif kind == "wake":
            actions = self.call.wake(self.now)
            assert not actions or self.flying, "a hedge beside nothing"
            self.obey(actions)
        elif kind in {"head", "failed"} and number in self.flying:
            self.flying.discard(number)
            told = Head(status) if kind == "head" else Failure(Phase.HEAD)
            self.obey(getattr(self.call, kind)(self.now, number, told))
        self.check()

    def obey(self, actions: tuple[object, ...]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self.flying.add(action.number)
                self.seen.append(action)
            elif isinstance(action, Cancel):
                self.flying.discard(action.number)
                self.dying.add(action.number)
            elif isinstance(action, Deliver | Fail | Refuse):
                assert not self.over, "a call ended twice"
                self.over = True
                self.delivered = isinstance(action, Deliver)

    def check(self) -> None:
        assert not (self.over and self.flying), "an attempt flies on"
        assert self.desk.state.in_use == len(self.flying) + len(self.dying) + self.delivered


@given(orders(), st.integers(1, 3), st.sampled_from([None, THREE]), st.booleans())
def test_any_order_of_events_leaves_nothing_and_delivers_once(
    order: list[tuple[str, int, int]], hedges: int, retry: RetryPolicy | None, keyed: bool
) -> None:
    watch = Watch(hedges, retry, keyed=keyed)
    for step in order:
        watch.step(*step)
    assert [each.number for each in watch.seen] == list(range(1, len(watch.seen) + 1))
    assert len(watch.seen) <= (1 if retry is None else retry.attempts) + hedges
    watch.call.end(watch.now, None)
    watch.call.cancel(watch.now)
    assert watch.desk.at_rest()


def test_every_reason_is_shown_here() -> None:
    assert {reason.value for reason in HedgeRefusal} == {
        "unsafe", "body", "not_owner", "samples", "deadline", "circuit_open", "throttled", "bulkhead_full", "budget",
    }  # fmt: skip
