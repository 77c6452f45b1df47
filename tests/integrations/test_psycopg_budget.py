"""Statements of psycopg and of SQLAlchemy on a real PostgreSQL, under the budget of their request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from resilient_mw import DeadlineExceeded, RequestCancelled, budget
from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import CURRENT
from resilient_mw.runtime.thread_context import ThreadContext
from resilient_mw_integrations.postgres import AsyncBudgetCursor, BudgetCursor
from tests.runtime.postgres_server import find_binaries, running

BINARIES = find_binaries()
pytestmark = [pytest.mark.postgres, pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL binaries")]
SLOW = "SELECT pg_sleep(60) /* of a request */"
TIMEOUT = "SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    assert BINARIES is not None
    with running(BINARIES) as port:
        yield port


def connected(port: int, **facts: Any) -> psycopg.Connection[Any]:
    dsn = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    return psycopg.connect(dsn, cursor_factory=BudgetCursor, **facts)


def ask(connection: Any, statement: str) -> Any:
    return connection.execute(statement).fetchone()[0]


@pytest.mark.parametrize("autocommit", [True, False])
def test_b22_a_statement_ends_with_the_budget_and_its_connection_is_kept(port: int, autocommit: bool) -> None:
    with connected(port, autocommit=autocommit) as connection:
        with budget(0.3), pytest.raises(DeadlineExceeded):
            ask(connection, SLOW)
        connection.rollback()
        with budget(0), pytest.raises(DeadlineExceeded):
            ask(connection, "SELECT 1")
        connection.rollback()
        assert ask(connection, TIMEOUT) == 0
        assert ask(connection, "SELECT 1") == 1


def test_a_smaller_budget_inside_a_transaction_ends_with_its_scope(port: int) -> None:
    with connected(port) as connection, budget(50):
        assert 20_000 < ask(connection, TIMEOUT) <= 50_000
        with budget(20):
            assert 0 < ask(connection, TIMEOUT) <= 20_000
        assert 20_000 < ask(connection, TIMEOUT) <= 50_000
        with pytest.raises(psycopg.errors.UndefinedTable), connection.transaction():
            connection.execute("SELECT FROM nowhere")
        assert 20_000 < ask(connection, TIMEOUT) <= 50_000


def test_without_a_budget_nothing_is_said(port: int) -> None:
    with connected(port) as connection:
        with budget(20):
            assert 0 < ask(connection, TIMEOUT) <= 20_000
        assert ask(connection, TIMEOUT) == 0


def test_a_shorter_time_of_the_connection_is_kept(port: int) -> None:
    for autocommit in (True, False):
        with connected(port, options="-c statement_timeout=700", autocommit=autocommit) as connection:
            assert ask(connection, TIMEOUT) == 700
            with budget(20):
                assert ask(connection, TIMEOUT) == 700
                with budget(0.5):
                    assert 0 < ask(connection, TIMEOUT) <= 500
                assert ask(connection, TIMEOUT) == 700
            connection.cursor().executemany("SELECT %s", [(1,), (2,)])


def test_b20_what_a_thread_waits_for_is_cancelled_with_its_request(port: int) -> None:
    """Long before its time is over: the caller has gone. The connection is whole afterwards, the view is told why."""
    request = ThreadContext(MONOTONIC.now() + 1000, MONOTONIC)
    with connected(port) as connection, ThreadPoolExecutor(1) as thread:

        def view() -> None:
            CURRENT.set(request)
            assert ask(connection, "SELECT 1") == 1
            ask(connection, SLOW)

        working = thread.submit(view)
        waits(port)
        request.cancel(CancelReason.CLIENT_DISCONNECT)
        with pytest.raises(RequestCancelled):
            working.result(30)
        connection.rollback()
        assert ask(connection, "SELECT 1") == 1


def waits(port: int) -> None:
    """Return when the server works on the slow statement."""
    end = time.monotonic() + 30
    with psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=postgres", autocommit=True) as one:
        while not one.execute(
            "SELECT FROM pg_stat_activity WHERE query = %s AND state = 'active'", (SLOW,)
        ).fetchall():
            assert time.monotonic() < end
            time.sleep(0.01)


async def test_the_same_for_coroutines(port: int) -> None:
    dsn = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    async with await psycopg.AsyncConnection.connect(dsn, cursor_factory=AsyncBudgetCursor) as connection:
        with budget(0.3), pytest.raises(DeadlineExceeded):
            await connection.execute(SLOW)
        await connection.rollback()
        with budget(20):
            cursor = await connection.execute(TIMEOUT)
            row = await cursor.fetchone()
            assert row is not None
            assert 0 < row[0] <= 20_000
        await connection.cursor().executemany("SELECT %s", [(1,), (2,)])


def test_under_sqlalchemy(port: int) -> None:
    engine = sqlalchemy.create_engine(
        f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres",
        connect_args={"cursor_factory": BudgetCursor},
    )
    with engine.connect() as connection:
        with budget(0.3), pytest.raises(DeadlineExceeded):
            connection.execute(sqlalchemy.text(SLOW))
        connection.rollback()
        with budget(20):
            assert 0 < connection.execute(sqlalchemy.text(TIMEOUT)).scalar_one() <= 20_000
    engine.dispose()


async def test_under_sqlalchemy_in_an_event_loop(port: int) -> None:
    engine = create_async_engine(
        f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres",
        connect_args={"cursor_factory": AsyncBudgetCursor},
    )
    async with engine.connect() as connection:
        with budget(0.3), pytest.raises(DeadlineExceeded):
            await connection.execute(sqlalchemy.text(SLOW))
        await connection.rollback()
        with budget(20):
            assert 0 < (await connection.execute(sqlalchemy.text(TIMEOUT))).scalar_one() <= 20_000
    await engine.dispose()
