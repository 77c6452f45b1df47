"""The machine over a store, with attempts that interleave, crash, are cancelled, and lose their store, at any point.

Held: work is done once where nobody said that it may be done again; one answer is recorded and everybody gets that one; what was
cancelled is never recorded; after a lease nobody is kept out for ever.
"""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from resilient_mw.core.rejection import Reason
from resilient_mw.idempotency import About, StoredAnswer, Verdict
from resilient_mw.idempotency.actions import (
    Abandon,
    Action,
    AskStatus,
    Begin,
    Complete,
    Refuse,
    Renew,
    Replay,
    Run,
    Wait,
)
from resilient_mw.idempotency.machine import IdempotentRequest
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.testing import ManualClock
from tests.idempotency.scene import asked, policy

LEASE = 9.0


class Attempt:
    """One request, and how far it has come."""

    def __init__(self, number: int, request: IdempotentRequest, first: Action) -> None:
        self.number = number
        self.request = request
        self.todo: list[Action] = [first]
        self.effect = False
        self.cancelled = False
        self.end: Action | None = None

    @property
    def handling(self) -> bool:
        return bool(self.todo) and isinstance(self.todo[0], Run)


class World(RuleBasedStateMachine):
    """Attempts at one key over one store."""

    on_unknown: Any = "refuse"

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = MemoryIdempotencyStore(clock=self.clock)
        self.attempts: list[Attempt] = []
        self.effects: list[int] = []
        self.answers: list[StoredAnswer] = []
        self.cancelled: set[int] = set()
        self.count = 0
        self.away = ""

    def status(self, _: About) -> Verdict:
        raise NotImplementedError

    def the_policy(self) -> Any:
        how = self.status if self.on_unknown == "status" else self.on_unknown
        return policy(on_unknown=how, lease=LEASE, max_wait=30.0)

    @initialize()
    def begin_one(self) -> None:
        self.arrive()

    @rule()
    def arrive(self) -> None:
        if len(self.attempts) > 5:
            return
        self.count += 1
        request = asked(self.the_policy(), now=self.clock.now())
        assert request.claim is not None
        self.attempts.append(Attempt(self.count, request, Begin(request.claim)))

    @rule(index=st.integers(0, 5))
    def step(self, index: int) -> None:
        """Take the next action of an attempt; its handler does its work, then answers."""
        if self.attempts:
            self.take(self.one(index))

    @rule(index=st.integers(0, 5))
    def crash(self, index: int) -> None:
        """Kill its process: nothing of it is done any more."""
        if self.attempts:
            self.attempts.remove(self.one(index))

    @rule(index=st.integers(0, 5), swallowed=st.booleans())
    def cancel(self, index: int, swallowed: bool) -> None:
        """Cancel a handler; it may answer all the same."""
        if self.attempts and self.one(index).handling:
            attempt = self.one(index)
            self.cancelled.add(attempt.number)
            attempt.cancelled = True
            if not swallowed:
                work = attempt.request.work
                assert work is not None
                attempt.todo = list(work.failed(cancelled=True))

    @rule(index=st.integers(0, 5))
    def fail(self, index: int) -> None:
        """Have a handler raise before it has done anything."""
        if self.attempts and self.one(index).handling and not self.one(index).effect:
            attempt = self.one(index)
            work = attempt.request.work
            assert work is not None
            attempt.todo = list(work.failed(cancelled=False))

    @rule(away=st.sampled_from(["", "", "before", "after"]))
    def store_away(self, away: str) -> None:
        """Have the store fail before it does what it is asked, or after it, when it can no longer say so."""
        self.away = away

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 8.9, 9.1, 20.0]))
    def advance(self, seconds: float) -> None:
        """Let time pass; attempts may be too slow to renew."""
        self.clock.advance(seconds)

    @rule()
    def renew(self) -> None:
        for attempt in self.attempts:
            self.beat(attempt)

    def one(self, index: int) -> Attempt:
        return self.attempts[index % len(self.attempts)]

    def beat(self, attempt: Attempt) -> None:
        work = attempt.request.work
        if work is None:
            return
        for action in work.tick(self.clock.now()):
            assert isinstance(action, Renew)
            if self.away:
                work.renew_failed(self.clock.now())
            else:
                work.renewed(self.store.renew(action.claim))

    def take(self, attempt: Attempt) -> None:
        if not attempt.todo:
            return
        action = attempt.todo[0]
        following: tuple[Action, ...] = ()
        if isinstance(action, (Begin, Wait)):
            following = self.asked_store(attempt.request, action)
        elif isinstance(action, AskStatus):
            following = attempt.request.told(self.status(action.about))
        elif isinstance(action, Run):
            if not attempt.effect:
                attempt.effect = True
                self.effects.append(attempt.number)
                return
            work = attempt.request.work
            assert work is not None
            work.head(201, [])
            work.piece(b"%d" % attempt.number)
            following = work.ended(cancelled=attempt.cancelled)
        elif isinstance(action, (Complete, Abandon)):
            self.written(action)
        else:
            attempt.end = action
            if isinstance(action, Replay):
                self.answers.append(action.answer)
        attempt.todo = [*following, *attempt.todo[1:]]

    def asked_store(self, request: IdempotentRequest, action: Begin | Wait) -> tuple[Action, ...]:
        now = self.clock.now()
        if self.away == "before":
            return request.store_failed()
        if isinstance(action, Begin):
            outcome = self.store.begin(action.claim)
            return request.store_failed() if self.away else request.began(now, outcome)
        seen = self.store.look(action.record)
        return request.store_failed() if self.away else request.looked(now, seen)

    def written(self, action: Complete | Abandon) -> None:
        if self.away == "before":
            return
        if isinstance(action, Complete):
            self.store.complete(action.claim, action.answer)
        else:
            self.store.abandon(action.claim, action.ending)

    @invariant()
    def everybody_gets_the_one_answer(self) -> None:
        assert len(set(self.answers)) <= 1

    @invariant()
    def what_was_cancelled_is_never_recorded(self) -> None:
        for key in self.store.records():
            found = self.store.look(key.record)
            if found is not None and found.answer is not None:
                assert found.answer.body is not None
                assert int(found.answer.body) not in self.cancelled
                assert int(found.answer.body) in self.effects

    def teardown(self) -> None:
        """All die, the lease ends: the next one is told the truth, and is not kept waiting."""
        self.away = ""
        self.attempts.clear()
        self.clock.advance(LEASE)
        self.arrive()
        (last,) = self.attempts
        for _ in range(10):
            self.take(last)
        assert last.end is not None or last.request.work is not None
        self.settled(last)

    def settled(self, last: Attempt) -> None:
        if isinstance(last.end, Refuse):
            assert last.end.reason is Reason.IDEMPOTENCY_UNKNOWN


class Refusing(World):
    """Nobody said that unknown work may run again: it never does."""

    @invariant()
    def at_most_once(self) -> None:
        assert len(self.effects) <= 1


class Retrying(World):
    """The unknown is run again; nobody is refused for it."""

    on_unknown = "retry"

    def settled(self, last: Attempt) -> None:
        assert not isinstance(last.end, Refuse)


class Reconciling(World):
    """The ledger is asked. Attempts renew in time here, and see that they are lost: so each effect happens once."""

    on_unknown = "status"

    def status(self, _: About) -> Verdict:
        return StoredAnswer(201, (), b"%d" % self.effects[0]) if self.effects else "not_done"

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.9]))
    def advance(self, seconds: float) -> None:
        """No attempt that lives is too slow."""
        self.clock.advance(seconds)
        away, self.away = self.away, ""
        self.renew()
        self.away = away

    @rule(seconds=st.sampled_from([9.1, 20.0]))
    def all_die(self, seconds: float) -> None:
        self.attempts.clear()
        self.clock.advance(seconds)

    @invariant()
    def exactly_once(self) -> None:
        assert len(self.effects) <= 1

    @invariant()
    def what_was_cancelled_is_never_recorded(self) -> None:
        """But what it did is, once the ledger says so."""

    def settled(self, last: Attempt) -> None:
        assert not isinstance(last.end, Refuse)
        assert len(self.effects) == 1


# Without `explain`: what failed is a list of steps, which says it all.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
RUNS = settings(max_examples=40, stateful_step_count=40, deadline=None, phases=PHASES)
TestRefusing = Refusing.TestCase
TestRefusing.settings = RUNS
TestRetrying = Retrying.TestCase
TestRetrying.settings = RUNS
TestReconciling = Reconciling.TestCase
TestReconciling.settings = RUNS
