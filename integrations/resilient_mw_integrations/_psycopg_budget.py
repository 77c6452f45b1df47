"""Statements of psycopg under the budget of their request, with or without SQLAlchemy above it.

A statement of a request that is over is not sent, PostgreSQL is told how long each may take, and one that a thread waits for is
cancelled on the server when its request is (a coroutine's is by its own cancellation, which psycopg passes on).
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.deadline import FOREVER
from resilient_mw.runtime.context import RequestContext, current

_SLACK: Final = 1.1
"""A timeout of a session may be larger than the budget by this factor, so that not every statement sets it anew."""
_SLACK_MS: Final = 50
"""And by these milliseconds."""
_LONGEST_MS: Final = 2_147_483_647
_CANCEL_WITHIN: Final = 1.0
"""Seconds that telling the server may take."""
_DEFAULT: Final = "SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'"


class _Told:
    """What a connection has been told.

    Attributes:
        default: milliseconds that its own settings give a statement; 0: no end; None: not asked yet.
        session: those that we have set for the session; 0: none.
        local: whether we have set some for this transaction.
    """

    __slots__ = ("__weakref__", "default", "local", "session")

    def __init__(self) -> None:
        self.default: int | None = None
        self.session = 0
        self.local = False

    def word(self, seconds: float, *, in_transaction: bool) -> str | None:
        """Return what the connection is to be told before a statement that has so many seconds; None: nothing."""
        default = self.default or 0
        wanted = 0 if seconds == FOREVER else min(max(1, math.ceil(seconds * 1000)), _LONGEST_MS)
        if default and not 0 < wanted < default:
            wanted = 0  # what was set without us is shorter
        if in_transaction:
            if not wanted and not self.local:
                return None
            self.local = (
                True  # anew for each statement: what a rollback to a savepoint does to it nobody tells us
            )
            return f"SET LOCAL statement_timeout = {wanted or default}"
        self.local = False
        if not wanted:
            was, self.session = self.session, 0
            return "RESET statement_timeout" if was else None
        if wanted <= self.session <= wanted * _SLACK + _SLACK_MS:
            return None
        self.session = wanted
        return f"SET statement_timeout = {wanted}"


class _Watch:
    """Cancels on the server what one request waits for, when the request is cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waited_for: list[Any] = []

    def began(self, connection: Any) -> None:
        with self._lock:
            self._waited_for.append(connection)

    def ended(self, connection: Any) -> None:
        # Not while a CANCEL is on its way: it would hit what the connection does next, for somebody else perhaps.
        with self._lock:
            self._waited_for.remove(connection)

    def __call__(self, _: CancelReason) -> None:
        with self._lock:
            for connection in self._waited_for:
                try:
                    connection.cancel_safe(timeout=_CANCEL_WITHIN)
                except psycopg.Error:
                    pass  # the connection is lost, and the statement with it


_told: WeakKeyDictionary[Any, _Told] = WeakKeyDictionary()
_watches: WeakKeyDictionary[RequestContext, _Watch] = WeakKeyDictionary()


class BudgetCursor(psycopg.Cursor[Any]):
    """A cursor whose statements obey the budget: `psycopg.connect(dsn, cursor_factory=BudgetCursor)`.

    `execute` and `executemany` do; `copy` and `stream` run under what the last of them has set.

    Raises:
        DeadlineExceeded: a statement was to be sent, or was cut off, when the time was over.
        RequestCancelled: the same, when the request was cancelled for another cause.
    """

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """As of psycopg."""
        with _statement(self.connection, query):
            return super().execute(query, params, **options)

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        """As of psycopg."""
        with _statement(self.connection, query):
            super().executemany(query, params_seq, **options)


class AsyncBudgetCursor(psycopg.AsyncCursor[Any]):
    """The same for an event loop."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """As of psycopg."""
        async with _async_statement(self.connection, query):
            return await super().execute(query, params, **options)

    async def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        """As of psycopg."""
        async with _async_statement(self.connection, query):
            await super().executemany(query, params_seq, **options)


@contextmanager
def _statement(connection: Any, query: Any) -> Iterator[None]:
    if _is_clean_up(connection, query):
        yield
        return
    request = current()
    request.check()
    told = _told.setdefault(connection, _Told())
    if told.default is None:
        told.default = _ask(connection, _DEFAULT)
    word = told.word(request.remaining(), in_transaction=_in_transaction(connection))
    if word is not None:
        _ask(connection, word)
    watch = _watches.get(request)
    if watch is None:
        watch = _watches[request] = _Watch()
        request.on_cancel(watch)
    watch.began(connection)
    try:
        request.check()  # what was cancelled before the watch had begun has not reached it
        yield
    except psycopg.errors.QueryCanceled:
        request.check()  # the server has cut it off: the request is over, rather than the database broken
        raise
    finally:
        watch.ended(connection)


@asynccontextmanager
async def _async_statement(connection: Any, query: Any) -> AsyncIterator[None]:
    if _is_clean_up(connection, query):
        yield
        return
    request = current()
    request.check()
    told = _told.setdefault(connection, _Told())
    if told.default is None:
        told.default = await _async_ask(connection, _DEFAULT)
    word = told.word(request.remaining(), in_transaction=_in_transaction(connection))
    if word is not None:
        await _async_ask(connection, word)
    try:
        yield
    except psycopg.errors.QueryCanceled:
        request.check()
        raise


def _is_clean_up(connection: Any, query: Any) -> bool:
    failed = connection.info.transaction_status is TransactionStatus.INERROR
    return failed or (isinstance(query, str) and query.lstrip()[:8].upper() == "ROLLBACK")


def _in_transaction(connection: Any) -> bool:
    return not connection.autocommit or connection.info.transaction_status is not TransactionStatus.IDLE


def _ask(connection: Any, statement: str) -> Any:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(statement.encode())
        return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]


async def _async_ask(connection: Any, statement: str) -> Any:
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(statement.encode())
        return (await cursor.fetchone())[0] if cursor.description else None  # type: ignore[index]
