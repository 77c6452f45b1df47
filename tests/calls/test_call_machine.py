"""Calls to one dependency under any order of events, checked by an independent account.

Timers are early or late, bodies stay open, callers give up at any stage, and threads bring their news in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.events import Actions, Failure, Head, Phase, Refuse, Start
from tests.calls.account import Account, Entry
from tests.calls.desk import PROFILE, Desk, Luck, chosen_settings

TICK = 1 / 64  # every instant is a multiple: sums are exact


def _breaker(window: int, least: int, trials: int) -> BreakerPolicy:
    return BreakerPolicy(
        window=window, minimum_calls=least, open_for=5.0, open_jitter=0.0, trials=trials, trial_lease=10.0
    )


def _retry(attempts: int, base: float, ratio: float | None, per_second: float) -> RetryPolicy:
    return RetryPolicy(
        attempts=attempts, backoff_base=base, backoff_cap=4.0, budget_ratio=ratio, budget_per_second=per_second,
        max_retry_after=6.0,
    )  # fmt: skip


DEPENDENCIES: list[dict[str, Any]] = [
    {"retry": _retry(3, 1.0, 0.5, 0.1), "breaker": _breaker(4, 2, 2), "bulkhead": 3, "connect_timeout": 0.5},
    {"retry": _retry(2, 0.0, None, 0.0), "breaker": _breaker(1, 1, 1), "bulkhead": 1, "reserve": 4 * TICK},
    {"retry": _retry(4, 0.5, 0.25, 0.2), "breaker": _breaker(6, 6, 3), "smallest_budget": 0.5},
    {
        "retry": _retry(3, 2.0, 0.1, 1.0),
        "breaker": None,
        "bulkhead": 2,
        "timeout": None,
        "connect_timeout": 1.0,
    },
    {"retry": None, "breaker": _breaker(3, 1, 1), "reserve": 0.25, "smallest_budget": 0.25},
    {"retry": _retry(5, 0.0, 1.0, 0.0), "breaker": _breaker(10, 10, 1), "bulkhead": 4, "timeout": 8.0},
]

# (method, seconds of budget, whether the body can be sent again, whether there is a key)
REQUESTS = st.sampled_from(
    [
        ("GET", 1e9, True, False), ("GET", 1e9, True, False), ("GET", 6.0, True, False), ("GET", 2.0, True, False),
        ("GET", 1.0, True, False), ("GET", 1.9, True, False), ("PUT", 8.0, False, False), ("POST", 1e9, True, False),
        ("POST", 8.0, True, True), ("POST", 3.0, False, True), ("GET", 0.25, True, False), ("GET", 0.0, True, False),
        ("GET", -1.0, True, False),
    ]
)  # fmt: skip
HEADS = st.sampled_from(
    [
        Head(200), Head(200), Head(200), Head(404), Head(503), Head(503), Head(500), Head(502, 2.0), Head(503, 7.0),
        Head(429), Head(429, 1.0), Head(425), Head(408), Head(501), Head(507), Head(503, 1.0, refused=True),
        Head(504, refused=True), Head(200, refused=True), Head(503, 0.0), Head(301),
    ]
)  # fmt: skip
FAILURES = st.sampled_from(
    [
        Failure(Phase.CONNECT), Failure(Phase.HEAD), Failure(Phase.WRITE), Failure(Phase.TLS), Failure(Phase.DNS),
        Failure(Phase.HEAD, timed_out=True), Failure(Phase.CONNECT, timed_out=True),
        Failure(Phase.POOL, timed_out=True, ours=True),
    ]
)  # fmt: skip
CUTS = st.sampled_from([None, None, Failure(Phase.BODY), Failure(Phase.BODY, timed_out=True)])
PAUSES = st.sampled_from([0, 1, 4, 16, 32, 64, 128, 320, 640])
PICKS = st.integers(0, 15)


class CallMachine(RuleBasedStateMachine):
    """Any number of calls, each at its own stage."""

    @initialize(which=st.integers(0, len(DEPENDENCIES) - 1), luck=st.sampled_from([0.0, 0.5, 1.0]))
    def start(self, which: int, luck: float) -> None:
        self.desk = Desk(Luck(luck), **DEPENDENCIES[which])
        self.account = Account(self.desk)
        self.now = 0.0
        self.entries: list[Entry] = []

    # -- what happens

    @rule(pause=PAUSES)
    def wait(self, pause: int) -> None:
        self.now += pause * TICK

    @rule(request=REQUESTS)
    def begin(self, request: tuple[str, float, bool, bool]) -> None:
        self._begin(request)

    @rule(request=REQUESTS, count=st.integers(2, 5))
    def begin_together(self, request: tuple[str, float, bool, bool], count: int) -> None:
        for _ in range(count):
            self._begin(request)

    @precondition(lambda self: self._at("attempt"))
    @rule(pick=PICKS, head=HEADS)
    def head(self, pick: int, head: Head) -> None:
        entry = self._pick("attempt", pick)
        expected = self.account.head(self.now, entry, head)
        self._check(entry, entry.call.head(self.now, entry.call.attempts, head), expected)

    @precondition(lambda self: self._at("attempt"))
    @rule(pick=PICKS, failure=FAILURES)
    def failed(self, pick: int, failure: Failure) -> None:
        self._failed(self._pick("attempt", pick), failure)

    @precondition(lambda self: self._at("attempt"))
    @rule(pick=PICKS)
    def time_out(self, pick: int) -> None:
        entry = self._pick("attempt", pick)
        if entry.until < 1e6:
            self.now = max(self.now, entry.until)
        self._failed(entry, Failure(Phase.HEAD, timed_out=True))

    @precondition(lambda self: self._at("attempt"))
    @rule(failure=FAILURES)
    def all_fail(self, failure: Failure) -> None:
        for entry in self._at("attempt"):
            self._failed(entry, failure)

    @precondition(lambda self: self._at("backoff"))
    @rule(pick=PICKS, late=st.sampled_from([0, 0, 0, 1, 64, 640]))
    def resume(self, pick: int, late: int) -> None:
        self._resume(self._pick("backoff", pick), late)

    @precondition(lambda self: self._at("backoff"))
    @rule()
    def all_resume(self) -> None:
        for entry in sorted(self._at("backoff"), key=lambda entry: entry.wakes_at):
            self._resume(entry, 0)

    @precondition(lambda self: self._at("body"))
    @rule(pick=PICKS, failure=CUTS)
    def end(self, pick: int, failure: Failure | None) -> None:
        entry = self._pick("body", pick)
        expected = self.account.end(self.now, entry, failure)
        assert entry.call.end(self.now, failure) == expected
        self.account.check()

    @precondition(lambda self: self._at("attempt") or self._at("backoff") or self._at("body"))
    @rule(pick=PICKS)
    def cancel(self, pick: int) -> None:
        under_way = [entry for entry in self.entries if entry.stage not in {"new", "over"}]
        self._cancel(under_way[pick % len(under_way)])

    @precondition(lambda self: self.entries)
    @rule(pick=PICKS, head=HEADS, failure=FAILURES)
    def news_that_come_too_late(self, pick: int, head: Head, failure: Failure) -> None:
        entry = self.entries[pick % len(self.entries)]
        call = entry.call
        steps: dict[str, list[Callable[[], object]]] = {
            "attempt": [
                partial(call.head, self.now, call.attempts, head),
                partial(call.failed, self.now, call.attempts, failure),
            ],
            "backoff": [partial(call.resume, self.now)],
            "new": [partial(call.begin, self.now)],
        }
        for stage, wrong in steps.items():
            for step in wrong if stage != entry.stage else []:
                with pytest.raises(RuntimeError):
                    step()
        if entry.stage != "body":
            assert call.end(self.now, failure) == ()
        if entry.stage == "over":
            call.cancel(self.now)
        self.account.check()

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        for number, entry in enumerate(self.entries):
            if entry.stage == "body" and number % 2:
                self.account.end(self.now, entry, None)
                entry.call.end(self.now, None)
            else:
                self._cancel(entry)
        assert self.desk.at_rest(), "something is held by nobody"
        assert self.account.reserved == []
        self._check_figures()
        self.check_retries()
        # No wedge: with the dependency well again, calls get through, and the circuit closes.
        self.now += 16.0
        for _ in range(3):
            entry = self._begin(("GET", 1e9, True, False))
            assert entry.stage == "attempt", "it is wedged"
            self.account.head(self.now, entry, Head(200))
            entry.call.head(self.now, entry.call.attempts, Head(200))
            self.account.end(self.now, entry, None)
            entry.call.end(self.now, None)
        breaker = self.desk.state.breaker
        assert breaker is None or breaker.state is BreakerState.CLOSED
        assert self.desk.at_rest()

    # -- parts

    def _at(self, stage: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.stage == stage]

    def _pick(self, stage: str, pick: int) -> Entry:
        entries = self._at(stage)
        return entries[pick % len(entries)]

    def _begin(self, request: tuple[str, float, bool, bool]) -> Entry:
        method, budget, replayable, keyed = request
        deadline_at = self.now + budget if budget < 1e6 else float("inf")
        call = self.desk.call(method, deadline_at, replayable=replayable, keyed=keyed)
        entry = Entry(call, deadline_at, keyed or method != "POST", replayable)
        self.entries.append(entry)
        expected = self.account.begin(self.now, entry)
        self._check(entry, call.begin(self.now), expected)
        return entry

    def _failed(self, entry: Entry, failure: Failure) -> None:
        expected = self.account.failed(self.now, entry, failure)
        self._check(entry, entry.call.failed(self.now, entry.call.attempts, failure), expected)

    def _resume(self, entry: Entry, late: int) -> None:
        self.now = max(self.now, entry.wakes_at + late * TICK)
        expected = self.account.resume(self.now, entry)
        self._check(entry, entry.call.resume(self.now), expected)

    def _cancel(self, entry: Entry) -> None:
        self.account.cancel(self.now, entry)
        entry.call.cancel(self.now)
        self.account.check()

    def _check(self, entry: Entry, actions: Actions, expected: Actions) -> None:
        assert actions == expected
        last = actions[-1]
        if isinstance(last, Start):
            left = entry.deadline_at - self.now - self.desk.dependency.reserve
            assert 0 < last.timeout <= left
            assert entry.call.budget(self.now) == pytest.approx(min(last.timeout, left))
            assert entry.call.budget(self.now + 1.0) <= max(0.0, left - 1.0) + 1e-9
        if isinstance(last, Refuse):
            assert last.retry_in >= 0.0
        assert entry.call.attempts == entry.attempts
        self.account.check()

    def _check_figures(self) -> None:
        state = self.desk.state
        starts = sum(entry.attempts for entry in self.entries)
        assert state.calls == len(self.entries)
        assert sum(state.attempts.values()) == starts
        assert state.retries == sum(max(0, entry.attempts - 1) for entry in self.entries)

    def check_retries(self) -> None:
        account, policy = self.account, self.desk.dependency.retry
        if policy is None or policy.budget_ratio is None:
            return
        for end in set(account.begun) - set(account.late):
            inside = sum(end - 10.0 < at <= end for at in account.begun)
            late = sum(end - 10.0 < at <= end for at in account.late)
            calls = sum(end - 10.0 < at <= end for at in account.calls)
            assert inside - late <= policy.budget_ratio * calls + policy.budget_per_second * 10.0


@pytest.mark.timeout(0 if PROFILE == "long" else 300)
def test_any_order_of_events_gets_the_right_answers_and_leaves_nothing_held() -> None:
    run_state_machine_as_test(CallMachine, settings=chosen_settings(steps=22))
