"""B86: a process that is killed between insert and commit leaves neither key nor work; conflicts of the database free the key."""
# ruff: noqa: PT012  an error ends the transaction that stands around it

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from resilient_mw import Reason
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw_integrations.psycopg import idempotent
from tests.transactions.ledgers import BLOCKING, Ledger, make_postgres
from tests.transactions.test_blocking import MINE, pay

ROOT = Path(__file__).parents[2]


def test_a_killed_process_leaves_nothing(ledger: Ledger, request: pytest.FixtureRequest) -> None:
    name = next(name for name in BLOCKING if f"[{name}]" in request.node.name)
    command = [sys.executable, "-m", "tests.transactions.killed", name, ledger.url]
    where = f"{ROOT}:{ROOT / 'integrations'}"
    process = subprocess.Popen(
        command, cwd=ROOT, env={"PYTHONPATH": where}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        assert ledger.count() == (0, 0)
    finally:
        process.kill()
        process.communicate()
    assert pay(ledger, wait=30)[0] is False
    assert ledger.count() == (1, 1)


@pytest.fixture
def connections(conninfo: str) -> Any:
    make_postgres(conninfo)
    with psycopg.connect(conninfo) as one, psycopg.connect(conninfo, autocommit=True) as other:
        yield one, other


def test_a_failed_serialization_frees_the_key(connections: Any) -> None:
    one, other = connections
    one.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    other.execute("INSERT INTO payments (amount) VALUES (1)")
    with pytest.raises(psycopg.errors.SerializationFailure), idempotent(one, **MINE) as op:
        one.execute("SELECT amount FROM payments").fetchall()
        other.execute("UPDATE payments SET amount = 2")
        one.execute("UPDATE payments SET amount = 3")
        op.complete()
    assert other.execute("SELECT count(*) FROM resilient_mw_idempotency").fetchone() == (0,)
    with idempotent(one, **MINE) as op:
        assert not op.replayed
        op.complete()


def test_who_sees_an_older_state_comes_again(connections: Any) -> None:
    one, other = connections
    one.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    one.execute("SELECT amount FROM payments").fetchall()
    with idempotent(other, **MINE) as op:
        op.complete()
    with pytest.raises(IdempotencyRefused) as caught, idempotent(one, **MINE):
        raise AssertionError
    assert caught.value.reason is Reason.IDEMPOTENCY_IN_PROGRESS
    one.rollback()
    with idempotent(one, **MINE) as op:
        assert op.replayed


def test_a_deadlock_frees_the_key(connections: Any, conninfo: str) -> None:
    one, other = connections
    other.execute("INSERT INTO payments (amount) VALUES (1), (2)")
    one.execute("SET deadlock_timeout = '20ms'")
    other.execute("SET deadlock_timeout = '600s'")
    one.commit()

    def crosses() -> None:
        with other.transaction():
            other.execute("UPDATE payments SET amount = 2 WHERE amount = 2")
            other.execute("UPDATE payments SET amount = 1 WHERE amount = 1")

    thread = threading.Thread(target=crosses)
    try:
        with pytest.raises(psycopg.errors.DeadlockDetected), idempotent(one, **MINE) as op:
            one.execute("UPDATE payments SET amount = 1 WHERE amount = 1")
            thread.start()
            until_somebody_waits(conninfo)
            op.complete()
            one.execute("UPDATE payments SET amount = 2 WHERE amount = 2")
    finally:
        thread.join(60)
    with idempotent(one, **MINE) as op:
        assert not op.replayed
        op.complete()


def until_somebody_waits(conninfo: str) -> None:
    ends = time.monotonic() + 60
    with psycopg.connect(conninfo, autocommit=True) as watcher:
        ask = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while watcher.execute(ask).fetchone() == (0,):
            assert time.monotonic() < ends
            time.sleep(0.01)


def test_records_of_the_store_are_seen(ledger: Ledger) -> None:
    """A key that a store has begun is in progress, then unknown: it is taken on demand only."""
    pay(ledger)
    past, future = (
        ("now() - interval '1 hour'", "now() + interval '20 s'") if ledger.postgres else ("1", "9e9")
    )
    with ledger.open() as connection, ledger.around(connection):
        ledger.execute(
            connection,
            f"UPDATE resilient_mw_idempotency SET state = 'running', token = 'x', answer = NULL, lease_until = {future}",
        )
    with pytest.raises(IdempotencyRefused) as caught:
        pay(ledger, on_unknown="retry")
    assert caught.value.reason is Reason.IDEMPOTENCY_IN_PROGRESS
    assert (caught.value.retry_after or 0) > 1
    with ledger.open() as connection, ledger.around(connection):
        ledger.execute(connection, f"UPDATE resilient_mw_idempotency SET lease_until = {past}")
    with pytest.raises(IdempotencyRefused) as caught:
        pay(ledger)
    assert caught.value.reason is Reason.IDEMPOTENCY_UNKNOWN
    assert pay(ledger, on_unknown="retry")[0] is False
    assert pay(ledger)[0] is True
    assert ledger.count() == (2, 1)
