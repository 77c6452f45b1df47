"""What the PostgreSQL store leaves on a session: prepared statements, that it can do without, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from resilient_mw.idempotency import AsyncIdempotencyStore, State, StoredAnswer, StoreUnavailable
from resilient_mw.stores.faces import async_face
from resilient_mw.testing.idempotency_checks import StoreTests, begun, found
from resilient_mw_integrations.postgres import AsyncPostgresIdempotencyStore, PostgresIdempotencyStore
from tests.runtime.postgres_server import PostgresServer, find_binaries, serving

BINARIES = find_binaries()
pytestmark = [pytest.mark.postgres, pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL binaries")]
TESTS = StoreTests()
TABLE = "resilient_mw_idempotency"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    assert BINARIES is not None
    with serving(BINARIES) as server:
        yield server


class OneSession:
    """A pool of one connection, and stores that share it."""

    def __init__(self, kind: str, dsn: str, threshold: int | None = 5) -> None:
        self.kind = kind
        pool: Any = ConnectionPool if kind == "blocking" else AsyncConnectionPool
        facts = {"prepare_threshold": threshold}
        self.pool = pool(dsn, min_size=1, max_size=1, kwargs=facts, open=False)

    async def open(self) -> None:
        if self.kind == "blocking":
            self.pool.open()
        else:
            await self.pool.open()

    async def close(self) -> None:
        if self.kind == "blocking":
            self.pool.close()
        else:
            await self.pool.close()

    def store(self, **facts: Any) -> AsyncIdempotencyStore:
        if self.kind == "blocking":
            return async_face(PostgresIdempotencyStore(self.pool, **facts))
        return AsyncPostgresIdempotencyStore(self.pool, **facts)

    async def say(self, statement: str) -> list[Any]:
        """Return the rows of a statement on that one session, sent without psycopg preparing it."""
        if self.kind == "blocking":
            with self.pool.connection(timeout=30) as connection:
                cursor = connection.execute(statement, prepare=False)
                return list(cursor.fetchall()) if cursor.description else []
        async with self.pool.connection(timeout=30) as connection:
            cursor = await connection.execute(statement, prepare=False)
            return list(await cursor.fetchall()) if cursor.description else []

    async def prepared(self) -> int:
        """Return how many statements of ours the session has."""
        ((count,),) = await self.say(
            "SELECT count(*) FROM pg_prepared_statements WHERE name ~ '^resilient_mw_'"
        )
        return int(count)


@pytest_asyncio.fixture(params=["blocking", "async"])
async def session(request: pytest.FixtureRequest, server: PostgresServer) -> AsyncIterator[OneSession]:
    with psycopg.connect(server.dsn) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
    one = OneSession(request.param, server.dsn)
    await one.open()
    await one.store().create(timeout=30)
    yield one
    await one.close()


async def works(store: AsyncIdempotencyStore, **facts: Any) -> None:
    """Have a key begin, be renewed, end and be repeated."""
    claim = TESTS.claim(**facts)
    begun(await store.begin(claim, timeout=30))
    assert found(await store.begin(TESTS.again(claim), timeout=30)).state is State.RUNNING
    assert await store.renew(claim, timeout=30)
    assert await store.complete(claim, StoredAnswer(201, (), b"\x00paid"), timeout=30)
    assert found(await store.begin(TESTS.again(claim), timeout=30)).answer == StoredAnswer(
        201, (), b"\x00paid"
    )


async def test_a_session_prepares_each_statement_once(session: OneSession) -> None:
    """Two of `begin`, two more of one with a bound, one of `renew` and two of `complete`; other stores find them there."""
    store = session.store()
    assert await session.prepared() == 0
    await works(store)
    assert await session.prepared() == 5
    await works(store, caller="c" * 64)
    assert await session.prepared() == 7
    other = session.store()
    begun(await other.begin(TESTS.claim(), timeout=30))
    assert await session.prepared() == 7
    await session.say("DEALLOCATE ALL")
    begun(await session.store().begin(TESTS.claim(), timeout=30))
    assert await session.prepared() == 2


async def test_what_was_prepared_may_be_gone(session: OneSession) -> None:
    """As behind a pooler that hands each transaction to another session: it is sent whole then, and no more is prepared."""
    store = session.store()
    begun(await store.begin(TESTS.claim(), timeout=30))
    await session.say("DEALLOCATE ALL")
    await works(store)
    await works(store, caller="c" * 64)
    assert await session.prepared() == 0


async def test_what_was_prepared_elsewhere_is_used(session: OneSession) -> None:
    """A statement that is there already is no reason to give up."""
    await works(session.store())
    store = session.store()
    await works(store)
    await works(store, caller="c" * 64)
    assert await session.prepared() == 7


async def test_a_table_may_change_under_a_prepared_statement(
    session: OneSession, server: PostgresServer
) -> None:
    store = session.store()
    await works(store)
    with psycopg.connect(server.dsn) as connection:
        connection.execute(f"ALTER TABLE {TABLE} ALTER COLUMN about_route TYPE varchar")
    await works(store)


async def test_a_session_prepares_nothing_where_that_is_not_wanted(
    session: OneSession, server: PostgresServer
) -> None:
    """By the store's option, or by that of the connections of a pool."""
    async with AsyncExitStack() as stack:
        never = OneSession(session.kind, server.dsn, None)
        await never.open()
        stack.push_async_callback(never.close)
        await works(session.store(prepare=False), caller="c" * 64)
        await works(never.store(), caller="c" * 64)
        assert await session.prepared() == 0
        assert await never.prepared() == 0


async def test_the_time_of_the_store_is_not_left_on_a_session(session: OneSession) -> None:
    """Nor the level of its transactions; the session is that of the pool's owner."""
    await session.say("SET statement_timeout = '77s'")
    await works(session.store())
    await works(session.store(prepare=False))
    assert await session.say("SHOW statement_timeout") == [("77s",)]


@pytest.mark.parametrize("before", [0, 1])
async def test_a_table_that_somebody_else_has_is_waited_for_within_the_time(
    session: OneSession, server: PostgresServer, before: int
) -> None:
    """Also by a session that has yet to prepare its statements."""
    store = session.store()
    for _ in range(before):
        begun(await store.begin(TESTS.claim(), timeout=30))
    with psycopg.connect(server.dsn) as other:
        other.execute(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            await store.begin(TESTS.claim(), timeout=0.3)
    await works(store)
