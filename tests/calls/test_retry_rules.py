"""What the rules of a retry say beyond the status: jitter, price, methods, ownership, and being told not to."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random
from typing import Any

import pytest

from resilient_mw.calls.backoff import decorrelated_jitter, equal_jitter
from resilient_mw.calls.budget import RetryBudget
from resilient_mw.calls.call import Call
from resilient_mw.calls.classify import classify_failure, classify_head
from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.events import DELIVER, FAIL, Discard, Failure, Head, Phase, Start, Wait
from resilient_mw.calls.ownership import RetryOwnership
from tests.calls.desk import Desk, Luck


def policy(**fields: Any) -> RetryPolicy:
    return RetryPolicy(**{"attempts": 3, "backoff_base": 0.0, "budget_ratio": None, **fields})


def again(call: Call, outcome: Head | Failure, now: float = 0.0) -> bool:
    """Whether an outcome of a first attempt is followed by another one."""
    actions = call.head(now, 1, outcome) if isinstance(outcome, Head) else call.failed(now, 1, outcome)
    assert isinstance(actions[-1], (Start, Wait)) or actions[-1] in {DELIVER, FAIL}
    return isinstance(actions[-1], (Start, Wait))


def begun(desk: Desk, method: str = "GET", **request: Any) -> Call:
    call = desk.call(method, **request)
    call.begin(0.0)
    return call


# -- jitter


def test_equal_jitter_is_the_upper_half() -> None:
    for attempts, most in [(1, 0.1), (2, 0.2), (6, 2.0), (10_000, 2.0)]:
        assert equal_jitter(Luck(0.0), attempts, 0.1, 2.0) == pytest.approx(most / 2)
        assert equal_jitter(Luck(1.0), attempts, 0.1, 2.0) == pytest.approx(most)


def test_decorrelated_jitter_grows_from_the_last_wait_and_stays_spread_at_the_cap() -> None:
    assert decorrelated_jitter(Luck(0.0), 0.0, 0.1, 2.0) == pytest.approx(0.1)
    assert decorrelated_jitter(Luck(1.0), 0.0, 0.1, 2.0) == pytest.approx(0.3)
    assert decorrelated_jitter(Luck(1.0), 0.3, 0.1, 2.0) == pytest.approx(0.9)
    assert decorrelated_jitter(Luck(0.5), 50.0, 0.1, 2.0) == pytest.approx(1.05)
    assert decorrelated_jitter(Luck(1.0), 50.0, 0.1, 2.0) == pytest.approx(2.0)


def test_a_call_draws_what_its_policy_says() -> None:
    waits = {}
    for jitter in ("full", "equal", "decorrelated"):
        desk = Desk(Luck(1.0), retry=policy(jitter=jitter, backoff_base=1.0, backoff_cap=60.0, attempts=4))
        call, now, seen = begun(desk), 0.0, []
        for _ in range(3):
            (*_, wait) = call.head(now, call.attempts, Head(503))
            assert isinstance(wait, Wait)
            seen.append(wait.until - now)
            now = wait.until
            call.resume(now)
        waits[jitter] = seen
    assert waits == {"full": [1.0, 2.0, 4.0], "equal": [1.0, 2.0, 4.0], "decorrelated": [3.0, 9.0, 27.0]}


@pytest.mark.parametrize("jitter", ["full", "equal", "decorrelated"])
@pytest.mark.parametrize("cap", [3.0, 5.0, 60.0])
@pytest.mark.parametrize("which", ["backoff_cap", "max_retry_after"])
def test_b56_a_thousand_clients_that_were_told_5_seconds(jitter: str, cap: float, which: str) -> None:
    random, begins = Random(56), []
    fields = {"backoff_base": 0.1, "max_retry_after": 60.0, "jitter": jitter, which: cap}
    desk = Desk(random, retry=policy(**fields))
    for _ in range(1000):
        call = begun(desk)
        actions = call.head(0.0, 1, Head(503, retry_after=5.0))
        if isinstance(actions[-1], Wait):
            begins.append(actions[-1].until)
        call.cancel(0.0)
    if which == "max_retry_after" and cap < 5.0:
        assert begins == []  # Given up, and never shortened.
        return
    assert len(begins) == 1000
    assert min(begins) >= 5.0
    assert max(begins) - min(begins) >= 0.5
    assert max(Counter(int(begin / 0.05) for begin in begins).values()) <= 50


# -- price


def test_a_retry_after_a_timeout_costs_twice() -> None:
    for failure, most in [(Failure(Phase.CONNECT), 10), (Failure(Phase.HEAD, timed_out=True), 5)]:
        desk = Desk(retry=policy(budget_ratio=0.0, budget_per_second=1.0))
        assert sum(again(begun(desk), failure) for _ in range(30)) == most
        assert desk.state.retry_refusals == {"budget": 30 - most}


def test_a_dear_retry_that_is_not_made_is_given_back_whole() -> None:
    desk = Desk(Luck(1.0), retry=policy(budget_ratio=0.0, budget_per_second=0.2, backoff_base=1.0))
    for _ in range(5):
        call = begun(desk)
        assert again(call, Failure(Phase.HEAD, timed_out=True))
        call.cancel(0.5)


def test_b80_the_budget_through_silence_and_failure() -> None:
    budget, now, random = RetryBudget(0.1, 1.0), 0.0, Random(80)

    def phase(seconds: float, per_second: float, *, failing: bool) -> tuple[int, int]:
        nonlocal now
        calls = retries = 0
        end = now + seconds
        while now < end:
            budget.call(now)
            calls += 1
            if failing:
                begin = now + random.uniform(0.0, 0.1)
                retries += budget.reserve(now, begin)
            now += 1.0 / per_second
        now = end
        return calls, retries

    assert phase(60, 100, failing=False)[1] == 0
    now += 300.0
    calls, retries = phase(60, 1, failing=True)
    assert retries >= 55  # the floor lets nearly all of them be retried after the silence
    calls, retries = phase(60, 100, failing=True)
    assert retries <= 0.1 * calls + 60.0 + 10.0
    assert retries >= 0.1 * calls * 0.8
    # Nothing is saved up in a quiet hour: at once no more than the floor of one window.
    now += 3600.0
    assert sum(budget.reserve(now, now) for _ in range(1000)) == 10
    assert budget._retries == [now] * 10


# -- methods


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_method_that_is_not_idempotent_here(method: str) -> None:
    retry = policy(not_idempotent={method})
    sent, unsent = Failure(Phase.HEAD), Failure(Phase.CONNECT)
    assert again(begun(Desk(retry=policy()), method), sent)
    desk = Desk(retry=retry)
    assert not again(begun(desk, method), sent)
    assert not again(begun(desk, method), Head(503))
    assert desk.state.retry_refusals == {"unsafe": 2}
    assert again(begun(desk, method), unsent)
    assert again(begun(desk, method), Head(503, refused=True))
    assert again(begun(desk, method, keyed=True), sent)
    assert again(begun(desk, "GET"), sent)


@pytest.mark.parametrize("methods", [{"GET"}, {"POST"}, "PUT", {"P T"}, {"HEAD"}])
def test_not_idempotent_holds_put_and_delete_only(methods: Any) -> None:
    with pytest.raises(ValueError, match="not_idempotent"):
        policy(not_idempotent=methods)


@pytest.mark.parametrize(
    "fields", [{"jitter": "none"}, {"insist": 1}, {"retry_if": "GET"}, {"jitter": None}, {"retry_if": True}]
)
def test_bad_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"RetryPolicy.{next(iter(fields))}"):
        policy(**fields)


@pytest.mark.parametrize("fields", [{"owner": "a b"}, {"owner": ""}, {"owner": 1}, {"owner_header": "a b"}, {"attempt_header": ""}])  # fmt: skip
def test_bad_names_of_owners_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"RetryOwnership.{next(iter(fields))}"):
        RetryOwnership(**fields)


# -- the table of outcomes and methods (docs/retries.md)

METHODS = ("GET", "PUT", "POST", "POST with a key")
OUTCOMES: dict[str, tuple[Head | Failure, str, bool | None]] = {
    # name: (outcome, methods that are repeated, whether the breaker counts it)
    "refused by a trusted dependency": (Head(503, refused=True), "all", None),
    "413, refused by a trusted dependency": (Head(413, refused=True), "none", None),
    "refused stream": (Failure(Phase.HEAD, refused=True), "all", None),
    "no free connection": (Failure(Phase.POOL, timed_out=True, ours=True), "all", None),
    "not connected": (Failure(Phase.CONNECT), "all", True),
    "no TLS": (Failure(Phase.TLS), "all", True),
    "not written": (Failure(Phase.WRITE), "safe", True),
    "kept connection closed": (Failure(Phase.HEAD, ours=True), "safe", None),
    "answer lost": (Failure(Phase.HEAD), "safe", True),
    "timeout": (Failure(Phase.HEAD, timed_out=True), "safe", True),
    "408": (Head(408), "safe", None),
    "425": (Head(425), "all", None),
    "429": (Head(429), "none", None),
    "429 that says when": (Head(429, retry_after=1.0), "safe", None),
    "500": (Head(500), "safe", True),
    "501": (Head(501), "none", False),
    "502": (Head(502), "safe", True),
    "503": (Head(503), "safe", True),
    "504": (Head(504), "safe", True),
    "507": (Head(507), "none", True),
    "404": (Head(404), "none", False),
    "200": (Head(200), "none", False),
}


@pytest.mark.parametrize(("name", "method"), list(itertools.product(OUTCOMES, METHODS)))
def test_outcomes_and_methods(name: str, method: str) -> None:
    outcome, repeated, failed = OUTCOMES[name]
    call = begun(Desk(retry=policy()), method.split(maxsplit=1)[0], keyed=method.endswith("key"))
    assert again(call, outcome) is (repeated == "all" or (repeated == "safe" and method != "POST"))
    verdict = (
        classify_head(outcome) if isinstance(outcome, Head) else classify_failure(outcome, cut_short=False)
    )
    assert verdict.failed is failed


# -- who retries


OWNED = [Head(503), Head(503, refused=True), Failure(Phase.CONNECT), Failure(Phase.HEAD)]


@pytest.mark.parametrize("outcome", OWNED)
def test_a_layer_below_the_owner_does_not_retry_unless_it_insists(outcome: Head | Failure) -> None:
    desk = Desk(retry=policy())
    assert not again(begun(desk, owned=True), outcome)
    assert desk.state.retry_refusals == {"not_owner": 1}
    assert again(begun(desk), outcome)
    insisting = Desk(retry=policy(insist=True))
    assert again(begun(insisting, owned=True), outcome)
    assert insisting.state.retry_refusals == {}


def test_an_answer_says_that_a_retry_is_useless() -> None:
    desk = Desk(retry=policy())
    call = begun(desk)
    assert call.head(0.0, 1, Head(503, told_not_to=True)) == (DELIVER,)
    assert desk.state.retry_refusals == {"told_not_to": 1}
    assert classify_head(Head(503, told_not_to=True)).failed is True
    # What nobody would have repeated is not counted.
    assert begun(desk).head(0.0, 1, Head(404, told_not_to=True)) == (DELIVER,)
    assert desk.state.retry_refusals == {"told_not_to": 1}


# -- a rule of the user


def test_a_rule_decides_what_may_pass_and_nothing_else() -> None:
    desk = Desk(retry=policy())
    assert begun(desk).head(0.0, 1, Head(404, wanted=True))[0] == Discard(1)
    assert begun(desk).head(0.0, 1, Head(200, wanted=True))[0] == Discard(1)
    assert begun(desk).head(0.0, 1, Head(503, wanted=False)) == (DELIVER,)
    assert not again(begun(desk, "POST"), Head(404, wanted=True))
    assert not again(begun(desk, "POST"), Failure(Phase.HEAD, wanted=True))
    assert not again(begun(desk), Failure(Phase.HEAD, wanted=False))
    assert again(begun(desk), Failure(Phase.HEAD, wanted=True))
    assert not again(begun(desk), Head(503, wanted=True, told_not_to=True))
    assert classify_head(Head(404, wanted=True)).failed is False
    assert classify_head(Head(503, wanted=False)).failed is True
    assert classify_head(Head(503, refused=True, wanted=True)).acted is False
