"""A key and its work in one transaction, by each blocking library: all of it is committed, or nothing."""

# ruff: noqa: PT012  an error ends the transaction that stands around it
from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from resilient_mw import CancelReason, DeadlineExceeded, Reason, RequestCancelled, budget, current
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.idempotency import StoredAnswer
from resilient_mw.runtime.context import CURRENT, RequestContext
from resilient_mw.runtime.handed import HANDED, Handed
from resilient_mw.transactions.terms import Terms
from tests.transactions.ledgers import Ledger

MINE: dict[str, Any] = {"key": "k-1", "caller": "ann", "operation": "POST /payments"}


def pay(ledger: Ledger, **more: Any) -> tuple[bool, StoredAnswer | None]:
    with ledger.open() as connection, ledger.idempotent(connection, **{**MINE, **more}) as op:
        if not op.replayed:
            ledger.pay(connection)
            op.complete(201, json={"paid": 1}, headers={"Location": "/payments/1", "Set-Cookie": "no=1"})
        return op.replayed, op.answer


def reason_of(ledger: Ledger, **more: Any) -> Reason:
    with pytest.raises(IdempotencyRefused) as caught:
        pay(ledger, **more)
    return caught.value.reason


class TestOnce:
    def test_a_repeat_gets_the_stored_answer(self, ledger: Ledger) -> None:
        first, second = pay(ledger), pay(ledger)
        assert first[0] is False
        assert second == (True, first[1])
        assert first[1] is not None
        assert first[1].status == 201
        assert first[1].body == b'{"paid":1}'
        assert [name for name, _ in first[1].headers] == [b"Location", b"Content-Type"]
        assert ledger.count() == (1, 1)

    def test_other_callers_operations_and_keys_are_other_work(self, ledger: Ledger) -> None:
        pay(ledger)
        for more in ({"caller": "bob"}, {"operation": "POST /refunds"}, {"key": "k-2"}):
            assert pay(ledger, **more)[0] is False
        assert ledger.count() == (4, 4)

    def test_another_payload_is_refused(self, ledger: Ledger) -> None:
        pay(ledger, payload={"amount": 1, "to": "x"})
        assert pay(ledger, payload={"to": "x", "amount": 1})[0] is True
        assert reason_of(ledger, payload={"amount": 2, "to": "x"}) is Reason.IDEMPOTENCY_KEY_REUSED
        assert ledger.count() == (1, 1)

    def test_many_threads_write_once(self, ledger: Ledger) -> None:
        """B85."""
        start = threading.Barrier(50)

        def one(_: int) -> str:
            start.wait(60)
            try:
                return "replayed" if pay(ledger, wait=20)[0] else "ran"
            except IdempotencyRefused as error:
                return error.reason.value

        with ThreadPoolExecutor(50) as pool:
            outcomes = list(pool.map(one, range(50)))
        assert outcomes.count("ran") == 1
        assert set(outcomes) <= {"ran", "replayed", "idempotency_in_progress"}
        assert ledger.count() == (1, 1)

    def test_the_bound_of_a_caller_counts(self, ledger: Ledger) -> None:
        claim = Terms(key="k-1", caller="ann", operation="x").claim()
        pay(ledger, operation="x")
        token = HANDED.set(Handed(_changed(claim, record="f" * 64, most=1), lambda: None))
        try:
            reason = reason_of(ledger, key=None, caller=None, operation=None)
        finally:
            HANDED.reset(token)
        assert reason is Reason.IDEMPOTENCY_TOO_MANY
        assert ledger.count() == (1, 1)

    def test_an_answer_that_is_too_large_is_not_kept(self, ledger: Ledger) -> None:
        answer = pay(ledger, max_answer=3)[1]
        assert answer is not None
        assert answer.body == b'{"paid":1}'
        assert reason_of(ledger) is Reason.IDEMPOTENCY_BODY_NOT_KEPT

    def test_an_expired_key_runs_again(self, ledger: Ledger) -> None:
        pay(ledger)
        old = "now() - interval '1 hour'" if ledger.postgres else "1"
        with ledger.open() as connection, ledger.around(connection):
            ledger.execute(connection, f"UPDATE resilient_mw_idempotency SET expires = {old}")
        assert pay(ledger)[0] is False
        assert ledger.count() == (2, 1)


class TestUndone:
    def test_an_error_leaves_no_key(self, ledger: Ledger) -> None:
        with (
            pytest.raises(LookupError),
            ledger.open() as connection,
            ledger.idempotent(connection, **MINE) as op,
        ):
            ledger.pay(connection)
            op.complete(201)
            raise LookupError
        assert ledger.count() == (0, 0)
        assert pay(ledger)[0] is False

    def test_an_error_of_the_database_leaves_no_key(self, ledger: Ledger) -> None:
        with (
            pytest.raises(ledger.error),
            ledger.open() as connection,
            ledger.idempotent(connection, **MINE) as op,
        ):
            ledger.pay(connection)
            op.complete(201)
            ledger.execute(connection, "INSERT INTO payments (amount) VALUES (NULL)")
        assert ledger.count() == (0, 0)

    def test_a_block_without_an_answer_is_undone(self, ledger: Ledger) -> None:
        with (
            pytest.raises(RuntimeError, match="op.complete"),
            ledger.open() as connection,
            ledger.idempotent(connection, **MINE),
        ):
            ledger.pay(connection)
        assert ledger.count() == (0, 0)

    def test_work_of_who_does_not_look_is_undone(self, ledger: Ledger) -> None:
        pay(ledger)
        with (
            pytest.raises(RuntimeError, match="op.replayed"),
            ledger.open() as connection,
            ledger.idempotent(connection, **MINE) as op,
        ):
            ledger.pay(connection)
            op.complete(201)
        with ledger.open() as connection, ledger.idempotent(connection, **MINE):
            ledger.pay(connection)
        assert ledger.count() == (1, 1)


class TestInside:
    """The block as a savepoint of the user's own transaction."""

    def test_the_outer_commit_is_the_commit(self, ledger: Ledger) -> None:
        with ledger.open() as connection:
            with ledger.around(connection):
                ledger.pay(connection)
                with ledger.idempotent(connection, **MINE) as op:
                    ledger.pay(connection)
                    op.complete(201)
                assert ledger.count() == (0, 0)
            assert ledger.count() == (2, 1)

    def test_an_outer_error_undoes_all(self, ledger: Ledger) -> None:
        with pytest.raises(LookupError), ledger.open() as connection, ledger.around(connection):
            with ledger.idempotent(connection, **MINE) as op:
                ledger.pay(connection)
                op.complete(201)
            raise LookupError
        assert ledger.count() == (0, 0)

    def test_an_inner_error_that_is_caught_undoes_the_block_only(self, ledger: Ledger) -> None:
        with ledger.open() as connection, ledger.around(connection):
            ledger.pay(connection)
            with pytest.raises(LookupError), ledger.idempotent(connection, **MINE) as op:
                ledger.pay(connection)
                op.complete(201)
                raise LookupError
        assert ledger.count() == (1, 0)

    def test_a_replay_leaves_the_transaction_around_alone(self, ledger: Ledger) -> None:
        pay(ledger)
        with ledger.open() as connection, ledger.around(connection):
            ledger.pay(connection)
            with ledger.idempotent(connection, **MINE) as op:
                assert op.replayed
        assert ledger.count() == (2, 1)

    def test_a_refusal_leaves_the_transaction_around_alone(self, ledger: Ledger) -> None:
        pay(ledger, payload=b"a")
        with ledger.open() as connection, ledger.around(connection):
            ledger.pay(connection)
            with (
                pytest.raises(IdempotencyRefused),
                ledger.idempotent(connection, **MINE, payload=b"b"),
            ):
                raise AssertionError
        assert ledger.count() == (2, 1)


class TestWaiting:
    def test_a_repeat_waits_for_the_open_transaction_and_no_longer_than_it_may(self, ledger: Ledger) -> None:
        with ledger.open() as connection, ledger.idempotent(connection, **MINE) as op:
            ledger.pay(connection)
            op.complete(201)
            with pytest.raises(IdempotencyRefused) as caught:
                pay(ledger, wait=0.05)
            assert caught.value.reason is Reason.IDEMPOTENCY_IN_PROGRESS
            assert caught.value.retry_after == 1
            with budget(0.2):
                assert reason_of(ledger, wait=3600) is Reason.IDEMPOTENCY_IN_PROGRESS
        assert ledger.count() == (1, 1)

    def test_a_repeat_that_waits_gets_the_answer(self, ledger: Ledger) -> None:
        with ThreadPoolExecutor(1) as pool:
            with ledger.open() as connection, ledger.idempotent(connection, **MINE) as op:
                ledger.pay(connection)
                op.complete(201, json={"paid": 1})
                waits = pool.submit(pay, ledger, wait=30)
            replayed, answer = waits.result(60)
        assert replayed
        assert answer is not None
        assert answer.body == b'{"paid":1}'

    def test_a_repeat_runs_if_the_first_one_fails(self, ledger: Ledger) -> None:
        with ThreadPoolExecutor(1) as pool:
            with (
                pytest.raises(LookupError),
                ledger.open() as connection,
                ledger.idempotent(connection, **MINE) as op,
            ):
                ledger.pay(connection)
                op.complete(201)
                waits = pool.submit(pay, ledger, wait=30)
                raise LookupError
            assert waits.result(60)[0] is False
        assert ledger.count() == (1, 1)

    def test_the_code_inside_waits_as_it_did_before(self, ledger: Ledger) -> None:
        ask = "SHOW lock_timeout" if ledger.postgres else "PRAGMA busy_timeout"
        with ledger.open() as connection, ledger.idempotent(connection, **MINE, wait=0.123) as op:
            assert ledger.execute(connection, ask).fetchone()[0] in {"0", 30_000, 5_000}
            op.complete()


class TestCommitGuard:
    def test_nothing_is_begun_for_a_request_that_is_over(self, ledger: Ledger) -> None:
        with budget(0), pytest.raises(DeadlineExceeded):
            pay(ledger)
        assert ledger.count() == (0, 0)

    def test_a_deadline_that_passes_inside_leaves_nothing(self, ledger: Ledger) -> None:
        with running() as context:
            with (
                pytest.raises(DeadlineExceeded),
                ledger.open() as connection,
                ledger.idempotent(connection, **MINE) as op,
            ):
                ledger.pay(connection)
                op.complete(201)
                context.deadline_at = 0.0
            assert ledger.count() == (0, 0)

    def test_a_caller_who_leaves_leaves_nothing(self, ledger: Ledger) -> None:
        with running() as context:
            with (
                pytest.raises(RequestCancelled),
                ledger.open() as connection,
                ledger.idempotent(connection, **MINE) as op,
            ):
                ledger.pay(connection)
                op.complete(201)
                context.reason = CancelReason.CLIENT_DISCONNECT
            assert ledger.count() == (0, 0)

    def test_what_is_shielded_commits(self, ledger: Ledger) -> None:
        with running() as context, ledger.open() as connection, context.shield(10):
            with ledger.idempotent(connection, **MINE) as op:
                ledger.pay(connection)
                op.complete(201)
                context.reason = CancelReason.CLIENT_DISCONNECT
            assert ledger.count() == (1, 1)


class TestTerms:
    @pytest.mark.parametrize(
        "terms",
        [
            {"wait": -1},
            {"wait": "1"},
            {"keep": 0},
            {"max_answer": -1},
            {"on_unknown": "ask"},
            {"caller": None},
            {"operation": None},
        ],
    )
    def test_what_is_wrong_is_named(self, terms: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="is not allowed|must"):
            Terms(**{**MINE, **terms}).claim()

    def test_a_key_is_asked_for(self) -> None:
        with pytest.raises(IdempotencyRefused) as caught:
            Terms(caller="", operation="x").claim()
        assert caught.value.reason is Reason.IDEMPOTENCY_KEY_MISSING
        for key in ("", "x" * 256):
            with pytest.raises(IdempotencyRefused) as caught:
                Terms(key=key, caller="", operation="x").claim()
            assert caught.value.reason is Reason.IDEMPOTENCY_KEY_INVALID

    def test_the_field_of_the_request_is_read(self) -> None:
        class Received(RequestContext):
            def received(self, name: str) -> list[str]:
                return ['"k-1"'] if name == "idempotency-key" else []

        token = CURRENT.set(Received())
        try:
            assert (
                Terms(caller="ann", operation="POST /payments").claim().record == Terms(**MINE).claim().record
            )
        finally:
            CURRENT.reset(token)

    def test_what_is_handed_over_is_taken_unless_more_is_said(self) -> None:
        claim = Terms(**MINE).claim()
        token = HANDED.set(Handed(_changed(claim, record="f" * 64, keep=7.0), lambda: "d" * 64))
        try:
            taken = Terms(on_unknown="retry").claim()
            assert (taken.record, taken.keep, taken.fingerprint) == ("f" * 64, 7.0, "d" * 64)
            assert taken.take_unknown
            assert taken.token != claim.token
            assert Terms(**MINE).claim().record == claim.record
        finally:
            HANDED.reset(token)


class running:  # noqa: N801  reads as what it does
    """Inside a request whose context a test can end."""

    def __enter__(self) -> RequestContext:
        context = RequestContext()
        self._token = CURRENT.set(context)
        assert current() is context
        return context

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._token)


def _changed(claim: Any, **facts: Any) -> Any:
    from dataclasses import replace

    return replace(claim, **facts)
