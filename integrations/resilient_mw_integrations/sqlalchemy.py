"""SQLAlchemy 2: work and its idempotency key in one transaction of a session, on PostgreSQL or SQLite.

    with Session.begin() as session, idempotent(session) as op:
        if not op.replayed:
            session.add(Payment(...))
            op.complete(201, json={"id": 7})
    return op.answer

Inside a transaction that was begun by `begin()` the block is a savepoint, and the commit is that one's. Any other session it commits
itself at its end, with all that the session has done before, since nobody else would. With an `AsyncSession` it is `async with`.
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

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction, SessionTransactionOrigin, sessionmaker

from resilient_mw.idempotency.statements import POSTGRES, SQLITE, Statements
from resilient_mw.idempotency.transaction import Asked, Done, Operation, beginning, ending
from resilient_mw.runtime.context import current
from resilient_mw.stores.sqlite import schema as sqlite_schema
from resilient_mw.transactions.terms import ENDED_INSIDE, Terms, TermsGiven, blocked
from resilient_mw_integrations._transaction_tables import CREATE_QUEUE, postgres_schema

__all__ = ["create_table", "guard_commits", "idempotent", "postgres_schema", "sqlite_schema"]

T = TypeVar("T")
_STATEMENTS: Final = {"postgresql": POSTGRES, "sqlite": SQLITE}
_WAITED: Final = {"55P03", "40001"}
"""lock_not_available; and serialization_failure: the other transaction has ended, and this snapshot is too old to see how."""
_BUSY: Final = {5, 6}
"""SQLITE_BUSY and SQLITE_LOCKED."""


@overload
def idempotent(session: Session, **terms: Unpack[TermsGiven]) -> AbstractContextManager[Operation]: ...
@overload
def idempotent(
    session: AsyncSession, **terms: Unpack[TermsGiven]
) -> AbstractAsyncContextManager[Operation]: ...
def idempotent(
    session: Session | AsyncSession, **terms: Unpack[TermsGiven]
) -> AbstractContextManager[Operation] | AbstractAsyncContextManager[Operation]:
    """Do the work of a key at most once, in one transaction with the key. The commits of the session are guarded from then on.

    Args:
        session: bound to one database.
        **terms: attributes of `resilient_mw.transactions.terms.Terms`.

    Raises:
        IdempotencyRefused: the block has not run: the key is malformed or missing, another payload had it, or the first one's
            transaction did not end in time.
        DeadlineExceeded, RequestCancelled: the request is over; nothing was committed.
        RuntimeError: the block has given no answer, or has ended the transaction; it is rolled back if it still can be.
        ValueError: a value is not allowed; the session is bound to no such database, or commits each statement by itself.
    """
    agreed = Terms(**terms)
    return _async_block(session, agreed) if isinstance(session, AsyncSession) else _block(session, agreed)


def guard_commits(session: Session | AsyncSession | sessionmaker[Any] | type[Session]) -> None:
    """Have commits refused while the request that they are made for is over, unless inside `current().shield()`.

    What is refused raises `DeadlineExceeded` or `RequestCancelled`, and is rolled back as other failed commits are.

    Args:
        session: one session, or what makes sessions.
    """
    target: Any = session.sync_session if isinstance(session, AsyncSession) else session
    if not event.contains(target, "before_commit", _check):
        event.listen(target, "before_commit", _check)


def create_table(connection: Connection) -> None:
    """Make the table of the keys, if it is missing. The commit is the caller's: `with engine.begin() as connection`.

    Of an async engine: `await connection.run_sync(create_table)`.

    Raises:
        ValueError: it is no PostgreSQL and no SQLite.
    """
    _statements_of(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(CREATE_QUEUE)
    whole = postgres_schema() if connection.dialect.name == "postgresql" else sqlite_schema()
    # One by one, which every driver takes; a comment may have a semicolon of its own.
    lines = (line for line in whole.splitlines() if not line.startswith("--"))
    for statement in "\n".join(lines).split(";"):
        if statement.strip():
            connection.exec_driver_sql(statement)


def _check(_: Session) -> None:
    current().check()


def _statements_of(connection: Connection) -> Statements:
    name = connection.dialect.name
    if name not in _STATEMENTS:
        raise ValueError(f"the database {name} is not allowed: it must be postgresql or sqlite")
    if name == "postgresql" and getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise ValueError(
            "the isolation level AUTOCOMMIT is not allowed: key and work must be one transaction"
        )
    return _STATEMENTS[name]


@contextmanager
def _block(session: Session, terms: Terms) -> Iterator[Operation]:
    block = _Block(session, terms)
    operation = block.enter()
    try:
        yield operation
        block.complete(operation)
    except BaseException:
        block.roll_back()
        raise


@asynccontextmanager
async def _async_block(session: AsyncSession, terms: Terms) -> AsyncIterator[Operation]:
    block = _Block(session.sync_session, terms)
    operation = await session.run_sync(lambda _: block.enter())
    try:
        yield operation
        await session.run_sync(lambda _: block.complete(operation))
    except BaseException:
        await session.run_sync(lambda _: block.roll_back())
        raise


class _Block:
    """One block. Its methods block, or run in the greenlet of an async session."""

    def __init__(self, session: Session, terms: Terms) -> None:
        self._session = session
        self._terms = terms
        self._claim = terms.claim()
        self._savepoint: SessionTransaction | None = None
        self._commits = False
        self._root: SessionTransaction | None = None
        self._statements: Statements = POSTGRES

    def enter(self) -> Operation:
        """Begin what is missing, and take the key."""
        ms = self._terms.milliseconds()
        session = self._session
        guard_commits(session)
        root = session.get_transaction()
        self._commits = root is None or (
            root.origin is SessionTransactionOrigin.AUTOBEGIN and not session.in_nested_transaction()
        )
        connection = session.connection()
        self._root = session.get_transaction()
        try:
            self._statements = _statements_of(connection)
            with _bounded(connection, ms):
                if root is not None:
                    self._savepoint = session.begin_nested()
                stored = self._run(beginning(self._claim, self._statements, ms))
        except BaseException as error:
            self.roll_back()
            if isinstance(error, DBAPIError) and _has_waited(error):
                raise blocked() from error
            raise
        return self._terms.operation_with(stored)

    def complete(self, operation: Operation) -> None:
        """Write the answer, and end what was begun."""
        session = self._session
        if operation.replayed:
            self.roll_back()
        else:
            if session.get_transaction() is not self._root:
                raise RuntimeError(ENDED_INSIDE)
            session.flush()
            self._run(ending(self._claim, operation, self._statements))
            current().check()
            if self._savepoint is not None:
                self._savepoint.commit()
        if self._commits:
            session.commit()

    def roll_back(self) -> None:
        """Undo what the block has done, as far as it can be undone."""
        if self._savepoint is None:
            self._session.rollback()
        elif self._savepoint.is_active or self._savepoint is self._session.get_nested_transaction():
            self._savepoint.rollback()

    def _run(self, steps: Generator[Asked, Done, T]) -> T:
        connection = self._session.connection()
        try:
            asked = next(steps)
            while True:
                result = connection.execute(text(asked.sql), dict(asked.facts))
                rows = [tuple(row) for row in result] if result.returns_rows else []
                asked = steps.send(Done(rows, result.rowcount))
        except StopIteration as stop:
            value: T = stop.value
            return value


@contextmanager
def _bounded(connection: Connection, ms: int) -> Iterator[None]:
    """Have SQLite wait for its writer so long, and begin as a writer where the driver has not begun at all."""
    if connection.dialect.name != "sqlite":
        yield
        return
    was = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {ms}")
    try:
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            # Its BEGIN comes with the first write only: a savepoint before it would be a transaction by itself.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {was}")


def _has_waited(error: DBAPIError) -> bool:
    original = error.orig
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return state in _WAITED or getattr(original, "sqlite_errorcode", 0) & 0xFF in _BUSY
