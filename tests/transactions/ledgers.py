"""A ledger of payments in each database and by each library: the work that must happen once."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from resilient_mw.transactions import sqlite as own_sqlite
from resilient_mw_integrations import psycopg as own_psycopg
from resilient_mw_integrations import sqlalchemy as own_sqlalchemy

PAY = "INSERT INTO payments (amount) VALUES (1)"
TABLE = "CREATE TABLE payments (amount integer NOT NULL)"


class Ledger:
    """One library on one database, blocking.

    Attributes:
        open: yields a connection or a session.
        around: yields inside a transaction of the user's on one.
        idempotent: of the library.
        guard: has the commits of one guarded, as the block does.
        pay: writes a payment.
        fails: has the database refuse a statement.
        count: the payments that are there, and the keys.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.postgres = url.startswith("host=")

    idempotent: Callable[..., Any]
    error: type[Exception]

    @contextmanager
    def open(self) -> Iterator[Any]:
        raise NotImplementedError
        yield

    @contextmanager
    def around(self, connection: Any) -> Iterator[None]:
        raise NotImplementedError
        yield

    def execute(self, connection: Any, statement: str) -> Any:
        return connection.execute(statement)

    def pay(self, connection: Any) -> None:
        self.execute(connection, PAY)

    def count(self) -> tuple[int, int]:
        """The payments, and the keys."""
        if self.postgres:
            with psycopg.connect(self.url, autocommit=True) as connection:
                return _counted(connection)
        with closing(sqlite3.connect(self.url, timeout=30)) as plain:
            return _counted(plain)


def _counted(connection: Any) -> tuple[int, int]:
    paid = connection.execute("SELECT count(*) FROM payments").fetchone()[0]
    return paid, connection.execute("SELECT count(*) FROM resilient_mw_idempotency").fetchone()[0]


class SqliteLedger(Ledger):
    idempotent = staticmethod(own_sqlite.idempotent)
    error = sqlite3.Error

    @contextmanager
    def open(self) -> Iterator[Any]:
        with closing(sqlite3.connect(self.url, timeout=30)) as connection:
            yield connection

    @contextmanager
    def around(self, connection: Any) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            yield


class PsycopgLedger(Ledger):
    idempotent = staticmethod(own_psycopg.idempotent)
    error = psycopg.Error

    @contextmanager
    def open(self) -> Iterator[Any]:
        with psycopg.connect(self.url) as connection:
            yield connection

    @contextmanager
    def around(self, connection: Any) -> Iterator[None]:
        with connection.transaction():
            yield


class SessionLedger(Ledger):
    idempotent = staticmethod(own_sqlalchemy.idempotent)
    error = sa.exc.DBAPIError

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.engine = sa.create_engine(engine_url(url), poolclass=NullPool)

    @contextmanager
    def open(self) -> Iterator[Any]:
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def around(self, connection: Any) -> Iterator[None]:
        with connection.begin():
            yield

    def execute(self, connection: Any, statement: str) -> Any:
        return connection.execute(sa.text(statement))


def engine_url(url: str) -> str:
    if not url.startswith("host="):
        return f"sqlite:///{url}"
    port = dict(each.split("=") for each in url.split())["port"]
    return f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"


BLOCKING = {
    "sqlite3": SqliteLedger,
    "sqlalchemy-sqlite": SessionLedger,
    "psycopg": PsycopgLedger,
    "sqlalchemy-psycopg": SessionLedger,
}


class AsyncLedger:
    """The same for an event loop, on PostgreSQL."""

    def __init__(self, url: str, driver: str) -> None:
        self.url = url
        self._driver = driver
        self.idempotent: Any = own_sqlalchemy.idempotent if driver else own_psycopg.idempotent

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        if not self._driver:
            async with await psycopg.AsyncConnection.connect(self.url) as connection:
                yield connection
            return
        url = engine_url(self.url).replace("+psycopg", f"+{self._driver}")
        engine = create_async_engine(url, poolclass=NullPool)
        try:
            async with AsyncSession(engine) as session:
                yield session
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def around(self, connection: Any) -> AsyncIterator[None]:
        async with connection.begin() if self._driver else connection.transaction():
            yield

    async def pay(self, connection: Any) -> None:
        await connection.execute(sa.text(PAY) if self._driver else PAY)

    def count(self) -> tuple[int, int]:
        return Ledger(self.url).count()


ASYNC = {"psycopg": "", "sqlalchemy-psycopg": "psycopg", "sqlalchemy-asyncpg": "asyncpg"}


def make_sqlite(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(TABLE)
        own_sqlite.create_table(connection)
    return str(path)


def make_postgres(url: str) -> str:
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS payments, resilient_mw_idempotency")
        connection.execute(TABLE.encode())
        connection.commit()
        own_psycopg.create_table(connection)
    return url
