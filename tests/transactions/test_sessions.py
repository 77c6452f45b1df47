"""What only sessions of SQLAlchemy have: objects, transactions that begin by themselves, and commits that are guarded alone."""
# ruff: noqa: PT012  an error ends the transaction that stands around it

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from resilient_mw import DeadlineExceeded, Reason, budget
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.idempotency.transaction import Operation
from resilient_mw.transactions import sqlite as own_sqlite
from resilient_mw_integrations import psycopg as own_psycopg
from resilient_mw_integrations.sqlalchemy import create_table, guard_commits, idempotent
from tests.transactions.ledgers import engine_url
from tests.transactions.test_blocking import MINE


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, postgres: Callable[[], str]) -> Iterator[Any]:
    url = engine_url(str(tmp_path / "orders.db") if request.param == "sqlite" else postgres())
    engine = sa.create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        create_table(connection)
        create_table(connection)
    yield engine
    engine.dispose()


def count(engine: Any) -> tuple[int, int]:
    with Session(engine) as session:
        orders = session.scalar(sa.select(sa.func.count()).select_from(Payment))
        return orders or 0, session.scalar(sa.text("SELECT count(*) FROM resilient_mw_idempotency")) or 0


def test_objects_are_flushed_and_committed(engine: Any) -> None:
    with Session(engine) as session, idempotent(session, **MINE) as op:
        session.add(Payment(amount=1))
        op.complete(201)
    assert count(engine) == (1, 1)
    with Session(engine) as session, idempotent(session, **MINE) as op:
        assert op.replayed
    assert count(engine) == (1, 1)


def test_an_object_that_cannot_be_flushed_undoes_all(engine: Any) -> None:
    for prepared in (False, True):
        with Session(engine) as session:
            if prepared:
                session.add(Payment(amount=5))
            with pytest.raises(sa.exc.IntegrityError), idempotent(session, **MINE) as op:
                session.add(Payment(amount=1))
                session.flush()
                session.add(Payment(amount=None))
                op.complete(201)
            assert count(engine) == (0, 0)
            session.rollback()


def test_a_transaction_that_began_by_itself_is_committed_by_the_block(engine: Any) -> None:
    with Session(engine) as session:
        session.add(Payment(amount=1))
        session.flush()
        with idempotent(session, **MINE) as op:
            session.add(Payment(amount=2))
            op.complete(201)
        assert not session.in_transaction()
    assert count(engine) == (2, 1)


def test_a_savepoint_of_the_users_is_not_committed(engine: Any) -> None:
    with Session(engine) as session:
        session.execute(sa.text("SELECT 1"))
        if engine.dialect.name == "sqlite":
            session.connection().exec_driver_sql("BEGIN IMMEDIATE")
        with session.begin_nested():
            with idempotent(session, **MINE) as op:
                session.add(Payment(amount=2))
                op.complete(201)
            assert session.in_nested_transaction()
        with (
            session.begin_nested(),
            pytest.raises(LookupError),
            idempotent(session, **{**MINE, "key": "k-2"}),
        ):
            session.add(Payment(amount=3))
            raise LookupError
        session.commit()
    assert count(engine) == (1, 1)


def test_savepoints_inside_the_block(engine: Any) -> None:
    with Session(engine) as session, idempotent(session, **MINE) as op:
        with session.begin_nested():
            session.add(Payment(amount=1))
        with pytest.raises(LookupError), session.begin_nested():
            session.add(Payment(amount=2))
            raise LookupError
        op.complete(201)
    assert count(engine) == (1, 1)


def test_a_commit_inside_is_noticed(engine: Any) -> None:
    with (
        Session(engine) as session,
        pytest.raises(RuntimeError, match="inside"),
        idempotent(session, **MINE) as op,
    ):
        session.add(Payment(amount=1))
        op.complete(201)
        session.commit()
    with Session(engine) as session, pytest.raises(IdempotencyRefused) as caught, idempotent(session, **MINE):
        raise AssertionError
    assert caught.value.reason is Reason.IDEMPOTENCY_IN_PROGRESS


def test_the_outer_commit_of_a_request_that_is_over_is_refused(engine: Any) -> None:
    with pytest.raises(DeadlineExceeded), Session(engine) as session, session.begin():
        with idempotent(session, **MINE) as op:
            session.add(Payment(amount=1))
            op.complete(201)
        over = budget(0)
        over.__enter__()
        try:
            session.commit()
        finally:
            over.__exit__(None, None, None)
    assert count(engine) == (0, 0)


def test_commits_are_guarded_alone(engine: Any) -> None:
    made = sessionmaker(engine)
    guard_commits(made)
    guard_commits(made)
    with made() as session, budget(0) as request:
        session.add(Payment(amount=1))
        with pytest.raises(DeadlineExceeded):
            session.commit()
        session.rollback()
        session.add(Payment(amount=2))
        with request.shield(10):
            session.commit()
    assert count(engine) == (1, 0)


async def test_commits_of_async_sessions_are_guarded_alone(conninfo: str) -> None:
    engine = create_async_engine(engine_url(conninfo))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(create_table)
            await connection.run_sync(Base.metadata.drop_all)
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(engine) as session:
            guard_commits(session)
            session.add(Payment(amount=1))
            with budget(0), pytest.raises(DeadlineExceeded):
                await session.commit()
            await session.rollback()
            assert (await session.scalar(sa.select(sa.func.count()).select_from(Payment))) == 0
    finally:
        await engine.dispose()


def test_autocommit_and_other_databases_are_refused(engine: Any) -> None:
    if engine.dialect.name == "postgresql":
        auto = engine.execution_options(isolation_level="AUTOCOMMIT")
        with (
            Session(auto) as session,
            pytest.raises(ValueError, match="AUTOCOMMIT"),
            idempotent(session, **MINE),
        ):
            raise AssertionError
    else:
        engine.dialect.name = "oracle"
        with (
            Session(engine) as session,
            pytest.raises(ValueError, match="oracle"),
            idempotent(session, **MINE),
        ):
            raise AssertionError


def test_transactions_of_drivers_are_guarded_alone(tmp_path: Path, conninfo: str) -> None:
    import psycopg

    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE t (a)")
    with budget(0) as request:
        with pytest.raises(DeadlineExceeded), own_sqlite.guard_commits(connection):
            connection.execute("INSERT INTO t VALUES (1)")
        with request.shield(10), own_sqlite.guard_commits(connection):
            connection.execute("INSERT INTO t VALUES (2)")
    assert connection.execute("SELECT a FROM t").fetchall() == [(2,)]
    connection.close()
    with psycopg.connect(conninfo, autocommit=True) as pg:
        pg.execute("CREATE TEMPORARY TABLE t (a integer)")
        with budget(0) as request:
            with pytest.raises(DeadlineExceeded), own_psycopg.guard_commits(pg):
                pg.execute("INSERT INTO t VALUES (1)")
            with request.shield(10), own_psycopg.guard_commits(pg):
                pg.execute("INSERT INTO t VALUES (2)")
        assert pg.execute("SELECT a FROM t").fetchall() == [(2,)]


def test_the_transaction_of_a_sqlite_connection_that_is_ended_inside_is_noticed(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    own_sqlite.create_table(connection)
    with pytest.raises(RuntimeError, match="inside"), own_sqlite.idempotent(connection, **MINE) as op:
        op.complete()
        connection.commit()
    connection.close()


class TestOperation:
    def test_answers(self) -> None:
        op = Operation()
        with pytest.raises(RuntimeError, match="op.complete"):
            op.value()
        assert op.complete().status == 200
        assert op.value() is None
        op.complete(200, "é", headers=[("content-type", "text/plain"), ("X-A", "1"), ("X-A", "2")])
        assert op.headers() == [("content-type", "text/plain"), ("X-A", "1"), ("X-A", "2")]
        assert op.stored().body == "é".encode()
        op.complete(201, json=None)
        assert op.stored().body == b"null"
        with pytest.raises(ValueError, match="one of them"):
            op.complete(201, b"x", json=1)
        for status in (100, 600, "200"):
            with pytest.raises(ValueError, match="status"):
                op.complete(status)  # type: ignore[arg-type]
