"""Decisions of a transaction's block, without a database, or with one connection more."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from resilient_mw import DeadlineExceeded, Reason, budget
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.idempotency.statements import POSTGRES, SQLITE
from resilient_mw.idempotency.transaction import Asked, Done, Operation, beginning, ending
from resilient_mw.transactions.sqlite import create_table, idempotent
from resilient_mw.transactions.terms import LONGEST_MS, Terms

MINE: dict[str, Any] = {"key": "k-1", "caller": "ann", "operation": "POST /payments"}


def test_a_row_that_is_gone_is_not_committed() -> None:
    op = Operation()
    op.complete(201)
    steps = ending(Terms(**MINE).claim(), op, SQLITE)
    next(steps)
    with pytest.raises(IdempotencyRefused) as caught:
        steps.send(Done(changed=0))
    assert caught.value.reason is Reason.IDEMPOTENCY_UNKNOWN


def test_what_comes_and_goes_is_in_progress() -> None:
    steps = beginning(Terms(**MINE).claim(), POSTGRES, 50)
    asked: list[str] = []
    given = next(steps)
    with pytest.raises(IdempotencyRefused) as caught:  # noqa: PT012
        while True:
            asked.append(given.sql)
            given = steps.send(_nothing_for(given))
    assert caught.value.reason is Reason.IDEMPOTENCY_IN_PROGRESS
    assert asked.count(POSTGRES.insert) == 3


def _nothing_for(asked: Asked) -> Done:
    if asked.sql == POSTGRES.bound:
        return Done([("0", "50")])
    return Done([(0, None)]) if asked.sql == POSTGRES.full else Done()


@pytest.mark.parametrize("key", ["", "k" * 256, "a\0b", "a\ud800b"])
def test_a_key_that_no_database_takes_is_refused(key: str) -> None:
    """JSON, for one, may have all of these in a text."""
    with pytest.raises(IdempotencyRefused) as caught:
        Terms(**{**MINE, "key": key}).claim()
    assert caught.value.reason is Reason.IDEMPOTENCY_KEY_INVALID
    assert Terms(**{**MINE, "key": "k" * 255}).claim().about.key == "k" * 255


def test_a_wait_ends_with_the_budget() -> None:
    with budget(2):
        assert 0 < Terms(**MINE, wait=5).milliseconds() <= 2_000
    assert Terms(**MINE, wait=5).milliseconds() == 5_000
    assert Terms(**MINE, wait=0).milliseconds() == 1
    assert Terms(**MINE, wait=3_600).milliseconds() <= LONGEST_MS


def test_nothing_is_waited_for_when_the_request_is_over() -> None:
    with budget(0), pytest.raises(DeadlineExceeded):
        Terms(**MINE).milliseconds()


def test_who_begins_is_a_writer(tmp_path: Path) -> None:
    """One that has read first could not wait for the writer afterwards: SQLite refuses it at once."""
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        create_table(connection)
        said: list[str] = []
        connection.set_trace_callback(said.append)
        with idempotent(connection, **MINE) as op:
            op.complete()
    assert "BEGIN IMMEDIATE" in said
    assert said[-1] == "COMMIT"


def test_statements_have_each_parameter_by_name() -> None:
    formatted = POSTGRES.formatted()
    assert "%(record)s" in formatted.insert
    assert (
        ":" not in formatted.insert + formatted.read + formatted.clear + formatted.full + formatted.complete
    )
