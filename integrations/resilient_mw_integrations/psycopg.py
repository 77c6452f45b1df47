"""psycopg 3: work and its idempotency key in one transaction of a connection.

    with idempotent(connection, key=key, caller=user, operation="POST /payments", payload=body) as op:
        if not op.replayed:
            connection.execute("INSERT INTO payments ...")
            op.complete(201, json={"id": 7})
    return op.answer

The block is a `connection.transaction()`: where no transaction is open it is one, and committed at its end; where one is open it is
a savepoint in it, and the commit is the caller's own. With an `AsyncConnection` it is `async with`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Final, TypeVar, Unpack, overload

from psycopg import AsyncConnection, Connection, Rollback
from psycopg.errors import LockNotAvailable, SerializationFailure
from psycopg.rows import tuple_row

from resilient_mw.idempotency.statements import POSTGRES
from resilient_mw.idempotency.transaction import Asked, Done, Operation, beginning, ending
from resilient_mw.runtime.context import current
from resilient_mw.transactions.terms import Terms, TermsGiven, blocked
from resilient_mw_integrations._transaction_tables import CREATE_QUEUE, postgres_schema

__all__ = ["acreate_table", "create_table", "guard_commits", "idempotent", "postgres_schema"]

T = TypeVar("T")
_SQL: Final = POSTGRES.formatted()
_WAITED: Final = (LockNotAvailable, SerializationFailure)
"""The other transaction has not ended in time; or it has, and this one's snapshot, being older, cannot see how."""


@overload
def idempotent(
    connection: Connection[Any], **terms: Unpack[TermsGiven]
) -> AbstractContextManager[Operation]: ...
@overload
def idempotent(
    connection: AsyncConnection[Any], **terms: Unpack[TermsGiven]
) -> AbstractAsyncContextManager[Operation]: ...
def idempotent(
    connection: Connection[Any] | AsyncConnection[Any], **terms: Unpack[TermsGiven]
) -> AbstractContextManager[Operation] | AbstractAsyncContextManager[Operation]:
    """Do the work of a key at most once, in one transaction with the key.

    Args:
        connection: with or without autocommit.
        **terms: attributes of `resilient_mw.transactions.terms.Terms`.

    Raises:
        IdempotencyRefused: the block has not run: the key is malformed or missing, another payload had it, or the first one's
            transaction did not end in time.
        DeadlineExceeded, RequestCancelled: the request is over; nothing was committed.
        RuntimeError: the block has given no answer; it is rolled back.
        ValueError: a value is not allowed.
    """
    agreed = Terms(**terms)
    return (
        _async_block(connection, agreed)
        if isinstance(connection, AsyncConnection)
        else _block(connection, agreed)
    )


@overload
def guard_commits(connection: Connection[Any]) -> AbstractContextManager[None]: ...
@overload
def guard_commits(connection: AsyncConnection[Any]) -> AbstractAsyncContextManager[None]: ...
def guard_commits(
    connection: Connection[Any] | AsyncConnection[Any],
) -> AbstractContextManager[None] | AbstractAsyncContextManager[None]:
    """Return a `connection.transaction()` that is rolled back if the request is over at its end.

    Raises:
        DeadlineExceeded, RequestCancelled: it is over.
    """
    return _async_guarded(connection) if isinstance(connection, AsyncConnection) else _guarded(connection)


def create_table(connection: Connection[Any]) -> None:
    """Make the table of the keys, if it is missing."""
    with connection.transaction():
        connection.execute(CREATE_QUEUE)
        connection.execute(postgres_schema().encode())


async def acreate_table(connection: AsyncConnection[Any]) -> None:
    """Make the table of the keys, if it is missing."""
    async with connection.transaction():
        await connection.execute(CREATE_QUEUE)
        await connection.execute(postgres_schema().encode())


@contextmanager
def _guarded(connection: Connection[Any]) -> Iterator[None]:
    with connection.transaction():
        yield
        current().check()


@asynccontextmanager
async def _async_guarded(connection: AsyncConnection[Any]) -> AsyncIterator[None]:
    async with connection.transaction():
        yield
        current().check()


@contextmanager
def _block(connection: Connection[Any], terms: Terms) -> Iterator[Operation]:
    claim = terms.claim()
    ms = terms.milliseconds()
    with connection.transaction():
        try:
            stored = _run(connection, beginning(claim, _SQL, ms))
        except _WAITED as error:
            raise blocked() from error
        operation = terms.operation_with(stored)
        yield operation
        if operation.replayed:
            raise Rollback
        _run(connection, ending(claim, operation, _SQL))
        current().check()


@asynccontextmanager
async def _async_block(connection: AsyncConnection[Any], terms: Terms) -> AsyncIterator[Operation]:
    claim = terms.claim()
    ms = terms.milliseconds()
    async with connection.transaction():
        try:
            stored = await _async_run(connection, beginning(claim, _SQL, ms))
        except _WAITED as error:
            raise blocked() from error
        operation = terms.operation_with(stored)
        yield operation
        if operation.replayed:
            raise Rollback
        await _async_run(connection, ending(claim, operation, _SQL))
        current().check()


def _run(connection: Connection[Any], steps: Generator[Asked, Done, T]) -> T:
    try:
        asked = next(steps)
        while True:
            with connection.cursor(row_factory=tuple_row) as cursor:
                cursor.execute(asked.sql.encode(), asked.facts)
                rows = cursor.fetchall() if cursor.description else ()
                asked = steps.send(Done(rows, cursor.rowcount))
    except StopIteration as stop:
        value: T = stop.value
        return value


async def _async_run(connection: AsyncConnection[Any], steps: Generator[Asked, Done, T]) -> T:
    try:
        asked = next(steps)
        while True:
            async with connection.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(asked.sql.encode(), asked.facts)
                rows = await cursor.fetchall() if cursor.description else ()
                asked = steps.send(Done(rows, cursor.rowcount))
    except StopIteration as stop:
        value: T = stop.value
        return value
