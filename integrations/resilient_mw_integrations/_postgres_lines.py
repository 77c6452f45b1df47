"""Ways to PostgreSQL: a pool, a few statements in one message and one transaction, and every wait within its time."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.ports import process_clock
from resilient_mw.idempotency.protocol import StoreUnavailable
from resilient_mw.stores.forks import after_fork
from resilient_mw_integrations._postgres_messages import HEAD_RESULTS, Message, Sessions

T = TypeVar("T")

Payload: TypeAlias = tuple[Message, dict[str, Any]]
AnyPool: TypeAlias = ConnectionPool[Any]
AnyAsyncPool: TypeAlias = AsyncConnectionPool[Any]

_GRACE: Final = 0.5
"""Seconds after which the connection to a server that does not even say that the time is over is given up."""
_POOL: Final[dict[str, Any]] = {
    "min_size": 0,
    # A pool that has failed for so long begins anew with the next question, rather than in minutes.
    "reconnect_timeout": 2.0,
    "name": "resilient-mw-idempotency",
    "open": False,
}
# A name that means nothing to this session, or a plan whose table has become another one since.
_NOT_PREPARED: Final = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported)
# A pool must not be used in a forked child, nor thrown away: its connections are the parent's.
_inherited: list[object] = []


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that does not wait for ever for a server that has stopped.

    Attributes:
        until: monotonic seconds.
    """

    until = FOREVER

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Run a conversation with the server, up to `until`."""
        return super().wait(_within(gen, self.until), *args, **options)


def _within(gen: Generator[Any, Any, T], until: float) -> Generator[Any, Any, T]:
    """Pass a conversation on; the driver resumes it every tenth of a second at the latest."""
    clock = process_clock()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and clock.now() >= until:
                gen.close()
                raise psycopg.OperationalError("the server has stopped answering")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


class PostgresLine:
    """A `Line` to PostgreSQL.

    Args:
        database: a DSN, or a pool, which stays its owner's. A forked child makes a pool of its own, with the same settings.
        connections: most of its own pool.
        prepare: whether sessions prepare statements.
    """

    def __init__(self, database: str | AnyPool, connections: int, prepare: bool) -> None:
        self._given = None if isinstance(database, str) else database
        self._recipe = _recipe(database, connections, BoundedConnection)
        self._sessions = Sessions(prepare)
        self._own: AnyPool | None = None
        self._lock = threading.Lock()
        self._clock = process_clock()
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child."""
        _inherited.append((self._given, self._own))
        self._given = self._own = None
        self._lock = threading.Lock()

    def send(self, payload: Payload, timeout: float) -> list[list[Any]]:
        """As of `Line`."""
        until = self._clock.now() + timeout
        while True:
            left = max(0.001, until - self._clock.now())
            connection = None
            try:
                with self._pool().connection(timeout=left) as connection:
                    return self._exchange(connection, payload, until)
            except psycopg.Error as error:
                # The server, or somebody between, has closed one that was idle: the next one may be good.
                if connection is None or not connection.closed or self._clock.now() >= until:
                    raise _translated(error) from error

    def close(self) -> None:
        """As of `Line`."""
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def _pool(self) -> AnyPool:
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None:
                self._own = ConnectionPool(**self._recipe)
                self._own.open()
            return self._own

    def _exchange(self, connection: Any, payload: Payload, until: float) -> list[list[Any]]:
        bounded = isinstance(connection, BoundedConnection)
        if bounded:
            connection.until = until + _GRACE
        before = connection.autocommit
        try:
            if not before:
                # One message is a transaction of its own; nothing is said to the server.
                connection.autocommit = True
            with psycopg.ClientCursor(connection, row_factory=tuple_row) as cursor:
                return self._converse(cursor, payload, until)
        except BaseException as error:
            # Of a conversation that was broken off nobody knows where it is. What no parameter may be was not said at all.
            if not (
                isinstance(error, psycopg.DataError) or (isinstance(error, psycopg.Error) and error.sqlstate)
            ):
                connection.close()
            raise
        finally:
            if bounded:
                connection.until = FOREVER
            if not before and not connection.closed:
                connection.autocommit = before

    def _converse(self, cursor: Any, payload: Payload, until: float) -> list[list[Any]]:
        (message, facts), connection = payload, cursor.connection
        if self._sessions.prepare(connection, message):
            try:
                for name, preparation in self._sessions.missing(connection, message):
                    with suppress(psycopg.errors.DuplicatePreparedStatement):
                        cursor.execute(preparation, _timed({}, until))
                    self._sessions.has(connection, name)
                cursor.execute(message.short, _timed(facts, until))
                return _rows(cursor)
            except _NOT_PREPARED:
                self._sessions.give_up()
        cursor.execute(message.text, _timed(facts, until))
        return _rows(cursor)


class AsyncPostgresLine:
    """An `AsyncLine` to PostgreSQL; its own pool is that of the event loop that asks.

    Args:
        database: as of `PostgresLine`.
        connections: as of `PostgresLine`.
        prepare: as of `PostgresLine`.
    """

    def __init__(self, database: str | AnyAsyncPool, connections: int, prepare: bool) -> None:
        self._given = None if isinstance(database, str) else database
        self._recipe = _recipe(database, connections, psycopg.AsyncConnection)
        self._sessions = Sessions(prepare)
        self._own: AnyAsyncPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock = process_clock()
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child."""
        _inherited.append((self._given, self._own))
        self._given = self._own = None

    async def send(self, payload: Payload, timeout: float) -> list[list[Any]]:  # noqa: ASYNC109
        """As of `AsyncLine`."""
        until = self._clock.now() + timeout
        while True:
            left = max(0.001, until - self._clock.now())
            connection = None
            try:
                pool = await self._pool()
                async with pool.connection(timeout=left) as connection:
                    return await self._exchange(connection, payload, until)
            except psycopg.Error as error:
                if connection is None or not connection.closed or self._clock.now() >= until:
                    raise _translated(error) from error

    async def close(self) -> None:
        """As of `AsyncLine`."""
        own, self._own = self._own, None
        if own is not None and self._loop is asyncio.get_running_loop():
            await own.close()

    async def _pool(self) -> AnyAsyncPool:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if self._own is None or self._loop is not loop:
            self._own, self._loop = AsyncConnectionPool(**self._recipe), loop
        own = self._own
        await own.open()
        return own

    async def _exchange(self, connection: Any, payload: Payload, until: float) -> list[list[Any]]:
        before = connection.autocommit
        try:
            if not before:
                await connection.set_autocommit(True)
            async with psycopg.AsyncClientCursor(connection, row_factory=tuple_row) as cursor:
                return await self._converse(cursor, payload, until)
        finally:
            if (
                not before
                and not connection.closed
                and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            ):
                await connection.set_autocommit(before)

    async def _converse(self, cursor: Any, payload: Payload, until: float) -> list[list[Any]]:
        (message, facts), connection = payload, cursor.connection
        if self._sessions.prepare(connection, message):
            try:
                for name, preparation in self._sessions.missing(connection, message):
                    with suppress(psycopg.errors.DuplicatePreparedStatement):
                        await cursor.execute(preparation, _timed({}, until))
                    self._sessions.has(connection, name)
                await cursor.execute(message.short, _timed(facts, until))
                return await _async_rows(cursor)
            except _NOT_PREPARED:
                self._sessions.give_up()
        await cursor.execute(message.text, _timed(facts, until))
        return await _async_rows(cursor)


def _recipe(database: Any, connections: int, kind: type) -> dict[str, Any]:
    if isinstance(database, str):
        try:
            parts: dict[str, Any] = {"connect_timeout": 5, **conninfo_to_dict(database)}
        except psycopg.ProgrammingError as error:
            raise ValueError(f"database must be a DSN or a pool: {error}") from error
        conninfo = make_conninfo(**parts)
        own = {"conninfo": conninfo, "max_size": connections, "connection_class": kind}
        return {**_POOL, **own, "kwargs": {"autocommit": True}}
    same = {
        "conninfo": database.conninfo,
        "kwargs": database.kwargs,
        "connection_class": database.connection_class,
    }
    return {**_POOL, **same, "max_size": max(1, database.max_size)}


def _timed(facts: dict[str, Any], until: float) -> dict[str, Any]:
    left = until - process_clock().now()
    return facts | {"timeout": max(1, math.ceil(left * 1000))}


def _rows(cursor: Any) -> list[list[Any]]:
    rows = [cursor.fetchall() if _has_rows(cursor) else []]
    while cursor.nextset():
        rows.append(cursor.fetchall() if _has_rows(cursor) else [])
    return rows[HEAD_RESULTS:]


async def _async_rows(cursor: Any) -> list[list[Any]]:
    rows = [await cursor.fetchall() if _has_rows(cursor) else []]
    while cursor.nextset():
        rows.append(await cursor.fetchall() if _has_rows(cursor) else [])
    return rows[HEAD_RESULTS:]


def _has_rows(cursor: Any) -> bool:
    # Its `description` says as much, and describes every column for it.
    result = cursor.pgresult
    return result is not None and result.status == psycopg.pq.ExecStatus.TUPLES_OK


def _translated(error: psycopg.Error) -> StoreUnavailable:
    if isinstance(error, psycopg.errors.UndefinedTable):
        missing = error.diag.message_primary or error
        return StoreUnavailable(f"PostgreSQL: {missing}: call the store's create() once, or run its schema()")
    if isinstance(error, PoolTimeout):
        return StoreUnavailable(f"PostgreSQL: no connection in time: {error}")
    return StoreUnavailable(f"PostgreSQL: {error}")
