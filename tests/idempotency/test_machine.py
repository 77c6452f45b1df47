"""The machine of a request with a key, decision by decision."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_mw.core.rejection import Reason
from resilient_mw.idempotency import (
    About,
    Begun,
    Found,
    Full,
    IdempotencyRoute,
    IdempotencyRule,
    State,
    StoredAnswer,
)
from resilient_mw.idempotency.actions import (
    Abandon,
    AskStatus,
    Begin,
    Complete,
    HashBody,
    Lost,
    Pass,
    ReadBody,
    Refuse,
    Renew,
    Replay,
    Run,
    Wait,
)
from resilient_mw.idempotency.machine import IdempotentRequest
from resilient_mw.idempotency.work import Work
from tests.idempotency.scene import ONE, OTHER, asked, only, policy, record, request

REQUIRED = policy(use="required")


def work_of(each: IdempotentRequest) -> Work:
    assert each.work is not None
    return each.work


def running(**facts: Any) -> Work:
    """Return work that was begun at 0."""
    each = asked(policy(**facts))
    assert only(each.began(0.0, Begun(7))) == Run(7)
    return work_of(each)


class TestArrival:
    def test_no_key(self) -> None:
        assert only(request().arrived([])) == Pass()
        assert only(request(REQUIRED).arrived([])) == Refuse(Reason.IDEMPOTENCY_KEY_MISSING)

    @pytest.mark.parametrize("lines", [["not a key!"], ['"a"', '"b"'], [""], ['" "'], ["x" * 256]])
    @pytest.mark.parametrize("rules", [policy(), REQUIRED])
    def test_a_malformed_key_is_refused_also_where_none_is_needed(self, rules: Any, lines: list[str]) -> None:
        assert only(request(rules).arrived(lines)) == Refuse(Reason.IDEMPOTENCY_KEY_INVALID)

    def test_strict(self) -> None:
        assert only(request(policy(strict=True)).arrived(["bare"])) == Refuse(Reason.IDEMPOTENCY_KEY_INVALID)
        assert only(request(policy(strict=True)).arrived(['"quoted"'])) == ReadBody(65_536)

    def test_nobody_in_particular(self) -> None:
        """A stranger must not be shown what another stranger has got."""
        assert only(request(caller=None).arrived(["key"])) == Pass()
        assert only(request(REQUIRED, caller=None).arrived(["key"])) == Refuse(Reason.IDEMPOTENCY_NO_CALLER)

    def test_the_claim(self) -> None:
        """The caller is not stored in clear unless somebody asks for it; the key is."""
        rules = policy(single_tenant=False, caller="X-User", lease=9.0, keep=77.0, max_records=5)
        each = request(rules, caller="alice")
        each.arrived(["key"])
        claim = only(each.body_read(ONE)).claim
        assert (claim.lease, claim.keep, claim.most, claim.fingerprint) == (9.0, 77.0, 5, ONE)
        assert claim.about == About(key="key", method="POST", route="/payments")
        assert "alice" not in repr(claim)
        assert len(claim.record) == len(claim.caller) == 64
        assert not claim.take_unknown

    def test_the_caller_in_clear_for_who_asks(self) -> None:
        rules = policy(single_tenant=False, caller="X-User", show_caller=True)
        each = request(rules, caller="alice")
        each.arrived(["key"])
        assert only(each.body_read(ONE)).claim.about.caller == "alice"


class TestLongBodies:
    """Their fingerprint is not known before the work, so that a store could not see that they are another payload."""

    def test_they_do_not_take_what_they_may_not(self) -> None:
        each = asked(policy(on_unknown="retry"), fingerprint=None)
        assert each.claim is not None
        assert not each.claim.take_unknown
        refused = Refuse(Reason.IDEMPOTENCY_UNKNOWN)
        assert only(each.began(0.0, Found(record(State.UNKNOWN)))) == refused
        assert only(each.looked(0.0, record(State.UNKNOWN))) == refused

    def test_they_take_what_may_be_theirs(self) -> None:
        each = asked(policy(on_unknown="retry"), fingerprint=None)
        action = only(each.began(0.0, Found(record(State.UNKNOWN, fingerprint=None))))
        assert isinstance(action, Begin)
        assert action.claim == each.claim
        assert action.claim.take_unknown
        assert only(each.began(0.0, Begun(2, unknown=True))) == Run(2)

    def test_they_are_handed_over_with_what_the_policy_says(self) -> None:
        """The fingerprint is known when the handler takes the key."""
        rule = IdempotencyRule(in_transaction=True)
        each = request(policy(on_unknown="retry", routes=[IdempotencyRoute("/payments", rule)]))
        each.arrived(["key"])
        assert only(each.body_read(None)).claim.take_unknown


class TestOutcomes:
    def test_a_completed_one_is_replayed(self) -> None:
        action = only(asked().began(0.0, Found(record(State.COMPLETED))))
        assert action == Replay(StoredAnswer(201, (), b"first"))

    def test_a_body_that_was_not_kept(self) -> None:
        found = Found(record(State.COMPLETED, answer=StoredAnswer(200, (), None)))
        assert only(asked().began(0.0, found)) == Refuse(Reason.IDEMPOTENCY_BODY_NOT_KEPT)

    @pytest.mark.parametrize("state", State)
    def test_another_payload(self, state: State) -> None:
        """Whatever became of the first one."""
        action = only(asked(fingerprint=OTHER).began(0.0, Found(record(state))))
        assert action == Refuse(Reason.IDEMPOTENCY_KEY_REUSED)

    def test_too_many(self) -> None:
        assert only(asked().began(0.0, Full(12.2))) == Refuse(Reason.IDEMPOTENCY_TOO_MANY, 13)

    def test_unknown_is_said_and_never_run_silently(self) -> None:
        action = only(asked().began(0.0, Found(record(State.UNKNOWN))))
        assert action == Refuse(Reason.IDEMPOTENCY_UNKNOWN)

    def test_in_progress_at_once(self) -> None:
        """Retry-After is what such work usually still takes, else what is left of the lease."""
        rules = policy(wait="conflict")
        found = Found(record(age=2.0, lease_left=20.5))
        assert only(asked(rules).began(0.0, found)) == Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, 21)
        assert only(asked(rules, typical=5.0).began(0.0, found)) == Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, 3)
        assert only(asked(rules, typical=1.0).began(0.0, found)) == Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, 21)

    def test_a_large_body_is_read_for_a_comparison_only(self) -> None:
        each = asked(fingerprint=None)
        assert only(each.began(0.0, Found(record(State.COMPLETED)))) == HashBody()
        assert isinstance(only(each.body_hashed(0.1, ONE)), Replay)
        other = asked(fingerprint=None)
        other.began(0.0, Found(record(State.COMPLETED)))
        assert only(other.body_hashed(0.1, OTHER)) == Refuse(Reason.IDEMPOTENCY_KEY_REUSED)

    def test_a_large_body_is_not_read_while_the_first_one_runs(self) -> None:
        """It would be missing, should the key come free."""
        each = asked(fingerprint=None)
        assert only(each.began(0.0, Found(record()))) == Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, 21)

    def test_the_store_is_away(self) -> None:
        each = asked(policy(lease=9.0))
        give_up, refuse = each.store_failed()
        assert each.claim is not None
        assert give_up == Abandon(each.claim, "forget")
        assert refuse == Refuse(Reason.IDEMPOTENCY_STORE_UNAVAILABLE, 5)

    def test_the_store_is_away_from_who_would_take_over(self) -> None:
        each = asked(policy(on_unknown="retry"))
        assert each.store_failed()[0] == Abandon(each.claim, "unknown")  # type: ignore[arg-type]

    def test_the_store_is_away_and_the_policy_is_open(self) -> None:
        """The work runs; if the store has the record after all, and is back at the end, the answer is recorded."""
        each = asked(policy(store_down="open"))
        assert only(each.store_failed()) == Run(None)
        work = work_of(each)
        assert work.next_wakeup() is None
        work.head(200, [])
        assert isinstance(only(work.ended(cancelled=False)), Complete)


class TestWaiting:
    def test_it_looks_less_and_less_often_and_no_later_than_it_may_wait(self) -> None:
        each = asked(policy(max_wait=10.0))
        action = only(each.began(0.0, Found(record())))
        gaps, now = [], 0.0
        while isinstance(action, Wait):
            gaps.append(action.look_at - now)
            now = action.look_at
            action = only(each.looked(now, record()))
        assert action == Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, 21)
        assert now == 10.0
        assert gaps[0] == pytest.approx(0.05)
        assert gaps[:-1] == sorted(gaps[:-1])
        assert max(gaps) <= 1.0 + 1e-9

    def test_the_deadline_bounds_it(self) -> None:
        each = asked(deadline=0.03)
        assert only(each.began(0.0, Found(record()))).look_at == 0.03
        assert only(each.looked(0.03, record())) == Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, 21)

    def test_it_gets_the_answer(self) -> None:
        each = asked()
        each.began(0.0, Found(record()))
        assert isinstance(only(each.looked(0.1, record(State.COMPLETED))), Replay)

    def test_the_payload_is_compared_when_the_first_one_is_known(self) -> None:
        each = asked(fingerprint=OTHER)
        assert isinstance(only(each.began(0.0, Found(record(fingerprint=None)))), Wait)
        assert only(each.looked(0.1, record(State.COMPLETED))) == Refuse(Reason.IDEMPOTENCY_KEY_REUSED)

    def test_a_key_that_comes_free_is_begun(self) -> None:
        each = asked()
        each.began(0.0, Found(record()))
        assert only(each.looked(0.1, None)) == Begin(each.claim)  # type: ignore[arg-type]
        assert only(each.began(0.2, Begun(8))) == Run(8)

    def test_it_comes_to_an_unknown_end(self) -> None:
        each = asked()
        each.began(0.0, Found(record()))
        assert only(each.looked(0.1, record(State.UNKNOWN))) == Refuse(Reason.IDEMPOTENCY_UNKNOWN)
        taker = asked(policy(on_unknown="retry"))
        taker.began(0.0, Found(record()))
        assert isinstance(only(taker.looked(0.1, record(State.UNKNOWN))), Begin)

    def test_no_place(self) -> None:
        each = asked()
        each.began(0.0, Found(record()))
        assert only(each.no_place()) == Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, 21)

    def test_the_store_is_away_while_it_waits(self) -> None:
        """It runs nothing then, also where the policy is open: somebody else is at work."""
        each = asked(policy(store_down="open"))
        each.began(0.0, Found(record()))
        assert only(each.store_failed()) == Refuse(Reason.IDEMPOTENCY_STORE_UNAVAILABLE, 5)


class TestReconciliation:
    def asking(self) -> IdempotentRequest:
        rules = policy(single_tenant=False, caller="X-User", on_unknown=lambda about: "unknown")
        each = asked(rules, caller="alice")
        assert each.claim is not None
        assert each.claim.take_unknown
        action = only(each.began(0.0, Begun(2, unknown=True)))
        assert action == AskStatus(About(key="key", method="POST", route="/payments", caller="alice"))
        return each

    def test_a_new_key_asks_nobody(self) -> None:
        each = asked(policy(on_unknown=lambda about: "unknown"))
        assert only(each.began(0.0, Begun(1))) == Run(1)

    def test_it_was_done(self) -> None:
        each = self.asking()
        answer = StoredAnswer(201, ((b"Location", b"/1"), (b"Set-Cookie", b"a=1")), b"{}")
        safe = StoredAnswer(201, ((b"Location", b"/1"),), b"{}")
        assert each.told(answer) == (Complete(work_of(each).claim, safe), Replay(safe))

    def test_it_was_not_done(self) -> None:
        """Then it runs, and may say afterwards that nothing was done."""
        each = self.asking()
        assert only(each.told("not_done")) == Run(2)
        assert only(work_of(each).failed(cancelled=False)) == Abandon(work_of(each).claim, "forget")

    @pytest.mark.parametrize("verdict", ["unknown", None, 200, "done"])
    def test_nobody_knows(self, verdict: Any) -> None:
        each = self.asking()
        assert each.told(verdict) == (
            Abandon(work_of(each).claim, "unknown"),
            Refuse(Reason.IDEMPOTENCY_UNKNOWN),
        )

    def test_the_record_is_lost_meanwhile(self) -> None:
        """Who has it now decides; what was done is true all the same."""
        each = self.asking()
        assert only(work_of(each).renewed(False)) == Lost()
        assert isinstance(only(each.told("not_done")), Refuse)
        done = self.asking()
        work_of(done).renewed(False)
        assert done.told(StoredAnswer(201)) == (Replay(StoredAnswer(201)),)

    def test_the_lease_is_kept_while_it_is_asked(self) -> None:
        work = work_of(self.asking())
        assert work.next_wakeup() == 10.0
        assert isinstance(only(work.tick(10.0)), Renew)


class TestEnd:
    @pytest.mark.parametrize("status", [200, 201, 204, 301, 304, 400, 401, 404, 409, 422])
    def test_b88_what_is_kept(self, status: int) -> None:
        work = running()
        work.head(status, [(b"Location", b"/1")])
        work.piece(b"ab")
        work.piece(b"c")
        kept = StoredAnswer(status, ((b"Location", b"/1"),), b"abc")
        assert only(work.ended(cancelled=False)) == Complete(work.claim, kept)

    @pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
    def test_b88_what_is_not_kept_frees_the_key(self, status: int) -> None:
        work = running()
        work.head(status, [])
        assert only(work.ended(cancelled=False)) == Abandon(work.claim, "forget")

    def test_b88_a_504_after_the_work_began_is_unknown(self) -> None:
        """Whoever has sent it: a proxy, a client of the handler's, our own deadline inside; a refusal of ours was before it."""
        work = running()
        work.head(504, [])
        assert only(work.ended(cancelled=False)) == Abandon(work.claim, "unknown")
        work = running()
        work.head(504, [(b"X-Refusal-Reason", b"expired_in_queue")])
        assert only(work.ended(cancelled=False)) == Abandon(work.claim, "forget")

    def test_b88_a_route_can_say_otherwise(self) -> None:
        rule = IdempotencyRule(keep_statuses={500})
        work = running(routes=[IdempotencyRoute("/payments", rule)])
        work.head(500, [])
        assert isinstance(only(work.ended(cancelled=False)), Complete)
        work = running(routes=[IdempotencyRoute("/payments", rule)])
        work.head(200, [])
        assert isinstance(only(work.ended(cancelled=False)), Abandon)

    def test_b88_our_own_refusals_are_not_kept_whatever_their_status(self) -> None:
        """Such as a 413 of ours, which a route lets be kept otherwise: the work was not begun."""
        work = running()
        work.head(413, [(b"X-Refusal-Reason", b"body_too_large")])
        assert only(work.ended(cancelled=False)) == Abandon(work.claim, "forget")

    def test_a_cancelled_handler_cannot_record_success(self) -> None:
        work = running()
        work.head(200, [])
        work.piece(b"done, I say")
        assert only(work.ended(cancelled=True)) == Abandon(work.claim, "unknown")

    def test_a_cancelled_handler_cannot_free_the_key_either(self) -> None:
        """504 of our own deadline, 503 of its clean-up: what it had done by then nobody knows."""
        work = running()
        work.head(504, [])
        assert only(work.ended(cancelled=True)) == Abandon(work.claim, "unknown")
        assert only(running().failed(cancelled=True)).ending == "unknown"

    def test_b86_an_exception_frees_the_key(self) -> None:
        assert only(running().failed(cancelled=False)).ending == "forget"

    def test_a_truncated_answer_is_unknown(self) -> None:
        """The caller has seen 200: what was done cannot be said not to be."""
        work = running()
        work.head(200, [])
        work.piece(b"half")
        assert only(work.failed(cancelled=False)).ending == "unknown"

    def test_an_end_without_an_answer(self) -> None:
        assert only(running().ended(cancelled=False)).ending == "forget"

    def test_an_attempt_ends_once(self) -> None:
        work = running()
        work.head(200, [])
        assert work.ended(cancelled=False)
        assert work.ended(cancelled=False) == ()
        assert work.failed(cancelled=True) == ()
        assert work.given_up() == ()
        assert work.next_wakeup() is None

    def test_a_retry_of_the_unknown_leaves_it_unknown(self) -> None:
        """The attempt before may have done it: 503 of this one says nothing of that."""
        each = asked(policy(on_unknown="retry"))
        each.began(0.0, Begun(2, unknown=True))
        work = work_of(each)
        work.head(503, [])
        assert only(work.ended(cancelled=False)).ending == "unknown"

    def test_a_body_that_is_too_large(self) -> None:
        work = running(max_answer=3)
        work.head(200, [])
        for piece in (b"ab", b"cd", b"ef"):
            work.piece(piece)
        assert only(work.ended(cancelled=False)).answer == StoredAnswer(200, (), None)

    def test_a_body_that_goes_another_way(self) -> None:
        work = running()
        work.head(200, [])
        work.body_elsewhere()
        assert only(work.ended(cancelled=False)).answer == StoredAnswer(200, (), None)

    def test_the_fingerprint_of_a_large_body(self) -> None:
        each = asked(fingerprint=None)
        each.began(0.0, Begun(1))
        work = work_of(each)
        work.head(200, [])
        assert only(work.ended(cancelled=False, fingerprint=OTHER)).fingerprint == OTHER
        known = running()
        known.head(200, [])
        assert only(known.ended(cancelled=False, fingerprint=OTHER)).fingerprint is None

    def test_headers_that_a_policy_drops(self) -> None:
        work = running(drop_headers=["X-Debug"])
        work.head(200, [(b"x-debug", b"1"), (b"ETag", b'"a"')])
        assert only(work.ended(cancelled=False)).answer.headers == ((b"ETag", b'"a"'),)


class TestLease:
    def test_it_is_renewed_every_third_of_it(self) -> None:
        work = running(lease=30.0)
        assert work.next_wakeup() == 10.0
        assert work.tick(9.9) == ()
        assert only(work.tick(10.5)) == Renew(work.claim)
        assert work.renewed(True) == ()
        assert work.next_wakeup() == 20.5

    def test_a_heartbeat_of_the_policy(self) -> None:
        assert running(lease=30.0, heartbeat=2.0).next_wakeup() == 2.0

    def test_a_lost_record(self) -> None:
        work = running()
        assert only(work.renewed(False)) == Lost()
        assert work.next_wakeup() is None
        work.head(200, [])
        assert work.ended(cancelled=False) == (), "what is there is somebody else's"
        assert work.renewed(False) == ()

    def test_a_store_that_is_away_is_asked_again_soon(self) -> None:
        work = running(lease=30.0)
        work.tick(10.0)
        work.renew_failed(10.0)
        assert work.next_wakeup() == 12.5
        assert work.held
