"""Idempotency keys in PostgreSQL: durable, for any number of machines.

    from resilient_mw_integrations.postgres import PostgresIdempotencyStore

    store = PostgresIdempotencyStore("postgresql://app@db/shop")
    store.create()

Each transition is one message: a few statements in one transaction, at READ COMMITTED whatever the defaults are. A unique key
is the judge, the server's clock the only one, and the server ends what takes longer than its `timeout`. A session keeps
nothing but prepared statements, which may be gone, so a pooler of transactions may stand in between; best with `prepare=False`.

What is recorded is as durable as a commit of that server is: with `synchronous_commit = off` the last moments before a crash are
lost, and with asynchronous replication those before a failover. A key that was lost runs again.
"""

from __future__ import annotations

from typing import Any

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from resilient_mw.core.checks import require_integer
from resilient_mw_integrations._postgres_lines import AsyncPostgresLine, PostgresLine
from resilient_mw_integrations._postgres_questions import TABLE, PostgresQuestions, schema
from resilient_mw_integrations._psycopg_budget import AsyncBudgetCursor, BudgetCursor
from resilient_mw_integrations._store_faces import AsyncFace, BlockingFace

__all__ = [
    "AsyncBudgetCursor",
    "AsyncPostgresIdempotencyStore",
    "BudgetCursor",
    "PostgresIdempotencyStore",
    "schema",
]


class PostgresIdempotencyStore(BlockingFace):
    """Idempotency keys in PostgreSQL. An `IdempotencyStore` for all machines that reach the server.

    Args:
        database: a DSN; or a `psycopg_pool.ConnectionPool`, which its owner opens and closes. A DSN also bounds the wait for a
            server that has stopped without a word; with a pool, set `tcp_user_timeout` for that.
        table: its name, made by `create`.
        schema: that the table is in; None: the first of the search path.
        connections: most of the pool that is made of a DSN; no more transitions than that are under way at one time.
        prepare: whether each session prepares the statements of the frequent transitions, so that the server does not plan them
            anew each time. Where they turn out to be gone, they are sent whole from then on. A pool whose `prepare_threshold`
            is None prepares none either.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    def __init__(
        self,
        database: str | ConnectionPool[Any],
        *,
        table: str = TABLE,
        schema: str | None = None,
        connections: int = 8,
        prepare: bool = True,
    ) -> None:
        require_integer("PostgresIdempotencyStore.connections", connections, low=1, high=1000)
        super().__init__(PostgresQuestions(table, schema), PostgresLine(database, connections, prepare))


class AsyncPostgresIdempotencyStore(AsyncFace):
    """The same for an event loop. An `AsyncIdempotencyStore`.

    Args:
        database: a DSN, or a `psycopg_pool.AsyncConnectionPool`, which its owner opens and closes.
        table: as of `PostgresIdempotencyStore`.
        schema: as of `PostgresIdempotencyStore`.
        connections: as of `PostgresIdempotencyStore`.
        prepare: as of `PostgresIdempotencyStore`.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    def __init__(
        self,
        database: str | AsyncConnectionPool[Any],
        *,
        table: str = TABLE,
        schema: str | None = None,
        connections: int = 8,
        prepare: bool = True,
    ) -> None:
        require_integer("AsyncPostgresIdempotencyStore.connections", connections, low=1, high=1000)
        super().__init__(PostgresQuestions(table, schema), AsyncPostgresLine(database, connections, prepare))
