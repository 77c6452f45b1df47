"""An independent account of calls to one dependency: what each step should be answered, and what is held.

It restates the rules as plainly as it can: the retry budget is counted by hand, slots are a number, and a second breaker
is told what the first one should have been told.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.calls.backoff import full_jitter, spread
from resilient_mw.calls.breaker import Breaker, Permit
from resilient_mw.calls.budget import WINDOW
from resilient_mw.calls.call import Call
from resilient_mw.calls.events import (
    Actions,
    Deliver,
    Discard,
    Expire,
    Fail,
    Failure,
    Head,
    Phase,
    Refuse,
    Start,
    Wait,
)
from resilient_mw.core.rejection import Reason
from tests.calls.desk import Desk, Luck

BEFORE_THE_REQUEST = {Phase.POOL, Phase.DNS, Phase.CONNECT, Phase.TLS}


@dataclass(eq=False)
class Entry:
    """One call, as the account sees it. Times are instants; `stage` is where the caller's side of it stands."""

    call: Call
    deadline_at: float
    safe: bool
    replayable: bool
    stage: str = "new"
    attempts: int = 0
    permit: Permit | None = None
    started_at: float = 0.0
    until: float = 0.0
    left: float = 0.0
    timeout: float = float("inf")
    wakes_at: float = 0.0
    reserved: float | None = None
    price: int = 1
    error: bool = False
    told: bool = False
    failed: bool | None = False


class Account:
    """Predicts the answers and keeps the books."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.rules = desk.dependency
        self.breaker = None if self.rules.breaker is None else Breaker(self.rules.breaker, Luck())
        self.slots = 0
        self.calls: list[float] = []
        self.reserved: list[float] = []
        self.begun: list[float] = []
        self.late: list[float] = []

    # -- steps, each with the answer that it should get

    def begin(self, now: float, entry: Entry) -> Actions:
        return self._attempt(now, entry)

    def resume(self, now: float, entry: Entry) -> Actions:
        return self._attempt(now, entry)

    def head(self, now: float, entry: Entry, head: Head) -> Actions:
        entry.failed = {408: None, 425: None, 429: None, 501: False, 505: False}.get(
            head.status, head.status >= 500
        )
        may_pass = head.status in {408, 425, 500, 502, 503, 504} or (
            head.status == 429 and head.retry_after is not None
        )
        acted = head.status != 425
        entry.price = 1
        if head.refused and head.status >= 400:
            entry.failed, may_pass, acted = None, True, False
        if head.status == 504 and entry.failed and self._was_short(entry):
            entry.failed = None
        if entry.failed:
            self._tell(now, entry, True)
        retry_at = (
            self._retry_at(now, entry, head.retry_after) if may_pass and (entry.safe or not acted) else None
        )
        if retry_at is None or not entry.replayable:
            entry.stage = "body"
            return (Deliver(entry.attempts),)
        entry.error = False
        self._over(now, entry, entry.failed)
        return (Discard(entry.attempts), *self._again(now, entry, retry_at))

    def failed(self, now: float, entry: Entry, failure: Failure) -> Actions:
        by_budget = self._by_budget(now, entry, failure)
        blamed = not failure.ours and not (by_budget and self._was_short(entry))
        self._over(now, entry, True if blamed else None)
        entry.error = True
        if by_budget:
            entry.stage = "over"
            return (Expire(failure.phase),)
        sent = failure.phase not in BEFORE_THE_REQUEST
        allowed = (entry.safe and entry.replayable) or not sent
        entry.price = 2 if failure.timed_out else 1
        retry_at = self._retry_at(now, entry, None) if allowed else None
        if retry_at is None:
            entry.stage = "over"
            return (Fail(entry.attempts),)
        return self._again(now, entry, retry_at)

    def end(self, now: float, entry: Entry, failure: Failure | None) -> Actions:
        if entry.stage != "body":
            return ()
        entry.stage = "over"
        if failure is None:
            self._over(now, entry, entry.failed)
            return ()
        by_budget = self._by_budget(now, entry, failure)
        self._over(now, entry, None if by_budget and self._was_short(entry) else True)
        return (Expire(Phase.BODY),) if by_budget else ()

    def cancel(self, now: float, entry: Entry) -> None:
        if entry.stage in {"attempt", "body"}:
            self._over(now, entry, None)
        self._forgo(entry)
        entry.stage = "over"

    # -- rules

    def _attempt(self, now: float, entry: Entry) -> Actions:
        rules = self.rules
        left = entry.deadline_at - now - rules.reserve
        useless = left <= 0 or left < rules.smallest_budget
        if useless and entry.attempts:
            self._forgo(entry)
            entry.stage = "over"
            return (Expire(Phase.BACKOFF),)
        refusal, retry_in = self._refusal(now, entry, useless)
        if refusal is not None:
            self._forgo(entry)
            entry.stage = "over"
            return (Fail(entry.attempts),) if entry.error else (Refuse(refusal, retry_in, entry.attempts),)
        if entry.attempts:
            if entry.reserved is not None:
                late = now > entry.reserved
                self._forgo(entry)
                self.late += [now] * entry.price if late else []
            self.begun += [now] * entry.price
        else:
            self.calls.append(now)
        self.slots += 1
        entry.attempts += 1
        entry.stage = "attempt"
        entry.told = self.breaker is None
        entry.started_at = now
        entry.left = left
        timeout = left if rules.timeout is None else min(left, rules.timeout)
        entry.until = now + timeout
        connect = timeout if rules.connect_timeout is None else min(timeout, rules.connect_timeout)
        assert timeout <= entry.timeout, "the budget has grown"
        entry.timeout = timeout
        return (Start(entry.attempts, timeout, connect),)

    def _refusal(self, now: float, entry: Entry, useless: bool) -> tuple[Reason | None, float]:
        bulkhead, breaker = self.rules.most_attempts, self.breaker
        if useless:
            return Reason.INSUFFICIENT_BUDGET, 0.0
        if breaker is not None and breaker.retry_in(now) > 0:
            return Reason.CIRCUIT_OPEN, breaker.retry_in(now)
        if bulkhead is not None and self.slots >= bulkhead:
            return Reason.BULKHEAD_FULL, 0.0
        entry.permit = None if breaker is None else breaker.ask(now)
        return (Reason.CIRCUIT_OPEN if breaker is not None and entry.permit is None else None), 0.0

    def _retry_at(self, now: float, entry: Entry, retry_after: float | None) -> float | None:
        """The instant of a retry that may pass and may be made; it reserves its place in the retry budget."""
        policy, rules = self.rules.retry, self.rules
        if policy is None or entry.attempts >= policy.attempts:
            return None
        delay = full_jitter(self.desk.luck, entry.attempts, policy.backoff_base, policy.backoff_cap)
        if retry_after is not None:
            if retry_after > policy.max_retry_after:
                return None
            delay = max(delay, spread(self.desk.luck, retry_after))
            assert delay >= retry_after
        at = now + delay
        needed = max(self.desk.state.typical(), rules.smallest_budget)
        left = entry.deadline_at - at - rules.reserve
        if left <= 0 or left < needed:
            return None
        if (
            self.breaker is not None
            and self.breaker.retry_in(now) > 0
            and at < now + self.breaker.retry_in(now)
        ):
            return None
        if policy.budget_ratio is not None and not self._has_room(at, entry.price):
            return None
        return at

    def _has_room(self, at: float, price: int) -> bool:
        policy = self.rules.retry
        assert policy is not None
        assert policy.budget_ratio is not None
        with_it = [*self.begun, *self.reserved, *[at] * price]
        for end in {at, *(other for other in self.reserved if at <= other < at + WINDOW)}:
            inside = sum(end - WINDOW < other <= end for other in with_it)
            calls = sum(end - WINDOW < other <= end for other in self.calls)
            if inside > policy.budget_ratio * calls + policy.budget_per_second * WINDOW:
                return False
        return True

    def _by_budget(self, now: float, entry: Entry, failure: Failure) -> bool:
        limit = self.rules.timeout
        cut = limit is None or entry.left < limit
        return failure.timed_out and cut and now >= entry.until - 0.001

    def _was_short(self, entry: Entry) -> bool:
        limit = self.rules.timeout
        return limit is None or entry.left < 0.9 * limit

    # -- books

    def _again(self, now: float, entry: Entry, at: float) -> Actions:
        if self.rules.retry is not None and self.rules.retry.budget_ratio is not None:
            entry.reserved = at
            self.reserved += [at] * entry.price
        if at > now:
            entry.stage = "backoff"
            entry.wakes_at = at
            return (Wait(at),)
        return self._attempt(now, entry)

    def _over(self, now: float, entry: Entry, failed: bool | None) -> None:
        self.slots -= 1
        self._tell(now, entry, failed)

    def _tell(self, now: float, entry: Entry, failed: bool | None) -> None:
        if not entry.told and self.breaker is not None and entry.permit is not None:
            entry.told = True
            self.breaker.record(now, entry.permit, failed=failed)

    def _forgo(self, entry: Entry) -> None:
        if entry.reserved is not None:
            for _ in range(entry.price):
                self.reserved.remove(entry.reserved)
            entry.reserved = None

    def check(self) -> None:
        state = self.desk.state
        assert state.in_use == self.slots, "slots are lost, or were given back twice"
        if self.breaker is not None:
            real = state.breaker
            assert real is not None
            assert real.state is self.breaker.state
            assert real._period == self.breaker._period
            assert real.recent.outcomes() == self.breaker.recent.outcomes()
            assert real._trials._begun == self.breaker._trials._begun
            assert real._trials._passed == self.breaker._trials._passed
        if state.budget is not None:
            kept = state.budget._retries
            known = sorted([*self.begun, *self.reserved])
            assert kept == known[len(known) - len(kept) :], "the retry budget counts what was not"
