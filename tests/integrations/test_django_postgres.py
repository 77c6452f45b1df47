"""Statements of Django's ORM on a real PostgreSQL, under the budget of their request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from resilient_mw import DeadlineExceeded, budget
from tests.django_project import ready
from tests.runtime.postgres_server import find_binaries, running

ready()

from django.db import DatabaseError, OperationalError  # noqa: E402  Django has to be set up first
from django.db.backends.postgresql.base import DatabaseWrapper  # noqa: E402

from resilient_mw_integrations.django import budgeted  # noqa: E402

BINARIES = find_binaries()
pytestmark = [pytest.mark.postgres, pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL binaries")]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    assert BINARIES is not None
    with running(BINARIES) as port:
        yield port


def connected(port: int, **options: Any) -> Any:
    return DatabaseWrapper(
        {
            "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres", "PASSWORD": "",
            "HOST": "127.0.0.1", "PORT": str(port), "OPTIONS": options, "TIME_ZONE": None, "AUTOCOMMIT": True,
            "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False, "ATOMIC_REQUESTS": False, "TEST": {},
        },
        alias="main",
    )  # fmt: skip


@pytest.fixture
def connection(port: int) -> Iterator[Any]:
    made = connected(port)
    yield made
    made.close()


def ask(connection: Any, statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


def timeout_of(connection: Any) -> int:
    found: int = ask(connection, "SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'")
    return found


def test_a_statement_ends_with_the_budget_and_its_connection_is_kept(connection: Any) -> None:
    with budgeted(connection):
        with budget(0.3), pytest.raises(DeadlineExceeded):
            ask(connection, "SELECT pg_sleep(15)")
        server = connection.connection
        assert ask(connection, "SELECT 1") == 1
        assert connection.connection is server
        assert timeout_of(connection) == 0


def test_a_transaction_is_rolled_back_and_the_next_one_has_its_own_time(connection: Any) -> None:
    ask(connection, "CREATE TEMPORARY TABLE row (n int)")
    with budgeted(connection):
        with pytest.raises(DeadlineExceeded), budget(0.4):
            write_and_sleep(connection)
        assert not connection.in_atomic_block
        assert ask(connection, "SELECT count(*) FROM row") == 0
        with budget(20):
            write_and_sleep(connection, 0)
            assert 15_000 < timeout_of(connection) <= 20_000
        assert ask(connection, "SELECT count(*) FROM row") == 1
        assert timeout_of(connection) == 0


def write_and_sleep(connection: Any, seconds: float = 15) -> None:
    connection.set_autocommit(False)
    try:
        ask(connection, "INSERT INTO row VALUES (1)")
        ask(connection, f"SELECT pg_sleep({seconds})")
    except BaseException:
        connection.rollback()
        raise
    else:
        assert 0 < timeout_of(connection) <= 20_000
        connection.commit()
    finally:
        connection.set_autocommit(True)


def test_a_savepoint_that_is_rolled_back_changes_nothing_about_the_time(connection: Any) -> None:
    with budgeted(connection), budget(20):
        ask(connection, "SELECT 1")
        connection.set_autocommit(False)
        sid = connection.savepoint()
        with pytest.raises(DatabaseError):
            ask(connection, "SELECT 1 FROM nowhere")
        connection.savepoint_rollback(sid)
        with budget(0.3), pytest.raises(DeadlineExceeded):
            ask(connection, "SELECT pg_sleep(15)")
        connection.rollback()
        connection.set_autocommit(True)
        assert 0 < timeout_of(connection) <= 20_000


def test_the_time_is_not_set_anew_for_each_statement(connection: Any) -> None:
    with budgeted(connection), budget(20):
        ask(connection, "SELECT 1")
        first = timeout_of(connection)
        assert [timeout_of(connection) for _ in range(5)] == [first] * 5
        with budget(5):
            assert 0 < timeout_of(connection) <= 5_000
        assert timeout_of(connection) > 10_000  # nor is the time of a smaller budget kept


def test_a_shorter_time_of_the_project_is_kept(port: int) -> None:
    connection = connected(port, options="-c statement_timeout=700")
    try:
        with budgeted(connection):
            assert timeout_of(connection) == 700
            with budget(20):
                assert timeout_of(connection) == 700
                with pytest.raises(OperationalError):
                    ask(connection, "SELECT pg_sleep(15)")
            with budget(0.5):
                assert 0 < timeout_of(connection) <= 500
            assert timeout_of(connection) == 700
    finally:
        connection.close()


def test_behind_a_pooler_the_session_is_left_alone(connection: Any) -> None:
    connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = True
    with budgeted(connection), budget(20):
        assert timeout_of(connection) == 0
        connection.set_autocommit(False)
        assert 0 < timeout_of(connection) <= 20_000
        connection.rollback()
        connection.set_autocommit(True)
        assert timeout_of(connection) == 0
