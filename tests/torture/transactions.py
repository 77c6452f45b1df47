"""Payments in one transaction with their keys: what the handler of the service does in the forms `sqlalchemy` and `psycopg`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from resilient_mw.idempotency.transaction import Operation

TRANSACTIONS: Final = ("sqlalchemy", "psycopg")
"""The forms in which key and payment are one transaction."""
INSERT: Final = "INSERT INTO payments (key, amount) VALUES (:key, :amount) RETURNING id"


@dataclass(frozen=True, slots=True)
class Asked:
    """A payment that is asked for.

    Attributes:
        key: of it.
        client: who asks.
        amount: of it.
    """

    key: str
    client: str
    amount: int

    @property
    def terms(self) -> dict[str, Any]:
        """What `idempotent` is told."""
        return {
            "key": self.key,
            "caller": self.client,
            "operation": "POST /payments",
            "payload": {"amount": self.amount},
        }

    @property
    def row(self) -> dict[str, Any]:
        """What the ledger gets."""
        return {"key": self.key, "amount": self.amount}

    def done(self, operation: Operation, number: int) -> None:
        """Give the answer."""
        operation.complete(201, json={"id": number, **self.row})


Pay = Callable[[Asked], Awaitable[Operation]]
Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def payer(form: str, place: str, moment: float) -> tuple[Pay, Lifespan]:
    """Return what makes payments, and what opens and closes what it needs for that.

    Args:
        form: `sqlalchemy` or `psycopg`.
        place: as of `tests.torture.opened`.
        moment: seconds that the work takes at most before and after the write, all in the transaction.
    """
    kind, _, where = place.partition(" ")
    if form == "psycopg":
        return _by_psycopg(where, moment)
    if kind == "sqlite":
        return _by_session(where, moment)
    return _by_async_session(where, moment)


def _by_session(where: str, moment: float) -> tuple[Pay, Lifespan]:
    """A blocking session in threads, which go on when their request is over: the commit is what is refused then."""
    import time

    from sqlalchemy import create_engine, event, text
    from sqlalchemy.orm import Session

    from resilient_mw_integrations.sqlalchemy import idempotent

    engine = create_engine(f"sqlite:///{where}")

    @event.listens_for(engine, "connect")
    def _(connection: Any, __: object) -> None:
        connection.execute("PRAGMA synchronous = NORMAL")  # as of `opened`

    def pay(asked: Asked) -> Operation:
        with Session(engine) as session, idempotent(session, **asked.terms) as operation:
            if not operation.replayed:
                # Nobody else can write meanwhile.
                number = session.execute(text(INSERT), asked.row).scalar_one()
                time.sleep(random.random() * moment / 4)
                asked.done(operation, number)
        return operation

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        engine.dispose()

    return lambda asked: asyncio.to_thread(pay, asked), lifespan


def _by_async_session(where: str, moment: float) -> tuple[Pay, Lifespan]:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    from resilient_mw_integrations.sqlalchemy import idempotent

    port = dict(each.split("=") for each in where.split())["port"]
    engine = create_async_engine(
        f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres",
        pool_size=10,
        max_overflow=0,
        pool_timeout=1.0,
    )

    async def pay(asked: Asked) -> Operation:
        async with AsyncSession(engine) as session, idempotent(session, **asked.terms) as operation:
            if not operation.replayed:
                await asyncio.sleep(random.random() * moment)
                number = (await session.execute(text(INSERT), asked.row)).scalar_one()
                await asyncio.sleep(random.random() * moment)
                asked.done(operation, number)
        return operation

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        await engine.dispose()

    return pay, lifespan


def _by_psycopg(where: str, moment: float) -> tuple[Pay, Lifespan]:
    from psycopg_pool import AsyncConnectionPool

    from resilient_mw_integrations.psycopg import idempotent

    pool = AsyncConnectionPool(where, min_size=2, max_size=10, timeout=1.0, open=False)
    insert = INSERT.replace(":key", "%(key)s").replace(":amount", "%(amount)s").encode()

    async def pay(asked: Asked) -> Operation:
        async with pool.connection() as connection, idempotent(connection, **asked.terms) as operation:
            if not operation.replayed:
                await asyncio.sleep(random.random() * moment)
                row = await (await connection.execute(insert, asked.row)).fetchone()
                await asyncio.sleep(random.random() * moment)
                asked.done(operation, row[0] if row else -1)
        return operation

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with pool:
            yield

    return pay, lifespan
