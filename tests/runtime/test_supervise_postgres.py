"""B20, B22: the statement of an expired request is stopped on the server, by the driver's own CANCEL."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.runtime.postgres_server import find_binaries, running
from tests.runtime.small_shell import App, Outcome, Shell, expired, nothing_left, plain, run, serve, until

psycopg = pytest.importorskip("psycopg")
psycopg_pool = pytest.importorskip("psycopg_pool")
asyncpg = pytest.importorskip("asyncpg")
sqlalchemy = pytest.importorskip("sqlalchemy")
sqlalchemy_asyncio = pytest.importorskip("sqlalchemy.ext.asyncio")

BINARIES = find_binaries()
pytestmark = [pytest.mark.postgres, pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL binaries")]

STATEMENT = "SELECT pg_sleep(5) /* of a request */"


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    assert BINARIES is not None
    with running(BINARIES) as port:
        yield port


class Database:
    """One driver: `connect` gives a connection of the pool in a transaction; `execute` runs a statement on it."""

    connect: Callable[[], Any]
    execute: Callable[[Any, str], Awaitable[Any]]
    keeps_connection = True
    statement = STATEMENT
    times = 1

    async def work(self, connection: Any) -> None:
        for _ in range(self.times):
            await self.execute(connection, self.statement)


@asynccontextmanager
async def psycopg_database(port: int, size: int) -> AsyncIterator[Database]:
    conninfo = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    async with psycopg_pool.AsyncConnectionPool(conninfo, min_size=size, max_size=size, open=False) as pool:
        await pool.wait()
        database = Database()
        database.connect = pool.connection

        async def execute(connection: Any, statement: str) -> Any:
            cursor = await connection.execute(statement)
            return (await cursor.fetchone())[0]

        database.execute = execute
        yield database


@asynccontextmanager
async def asyncpg_database(port: int, size: int) -> AsyncIterator[Database]:
    pool = await asyncpg.create_pool(
        host="127.0.0.1", port=port, user="postgres", database="postgres", min_size=size, max_size=size
    )
    database = Database()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        async with pool.acquire() as connection, connection.transaction():
            yield connection

    async def execute(connection: Any, statement: str) -> Any:
        return await connection.fetchval(statement)

    database.connect, database.execute = connect, execute
    try:
        yield database
    finally:
        await pool.close()


def sqlalchemy_database(driver: str) -> Callable[[int, int], Any]:
    @asynccontextmanager
    async def opened(port: int, size: int) -> AsyncIterator[Database]:
        url = f"postgresql+{driver}://postgres@127.0.0.1:{port}/postgres"
        engine = sqlalchemy_asyncio.create_async_engine(url, pool_size=size, max_overflow=0)
        database = Database()
        database.keeps_connection = False  # it replaces a connection whose statement was cancelled

        @asynccontextmanager
        async def connect() -> AsyncIterator[Any]:
            async with engine.connect() as connection, connection.begin():
                yield connection

        async def execute(connection: Any, statement: str) -> Any:
            return (await connection.execute(sqlalchemy.text(statement))).scalar()

        database.connect, database.execute = connect, execute
        try:
            yield database
        finally:
            await engine.dispose()

    return opened


DRIVERS = {
    "psycopg": psycopg_database,
    "asyncpg": asyncpg_database,
    "sqlalchemy+psycopg": sqlalchemy_database("psycopg"),
    "sqlalchemy+asyncpg": sqlalchemy_database("asyncpg"),
}


async def sessions(port: int) -> list[tuple[str, str]]:
    """Return state and query of every other client session that is doing something."""
    connection = await psycopg.AsyncConnection.connect(
        f"host=127.0.0.1 port={port} user=postgres dbname=postgres", autocommit=True
    )
    async with connection:
        cursor = await connection.execute(
            "SELECT state, query FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'"
        )
        rows: list[tuple[str, str]] = await cursor.fetchall()
        return rows


async def all_idle(port: int) -> None:
    """Assert that no statement runs and no transaction is open within 100 ms."""
    for _ in range(10):
        busy = await sessions(port)
        if not busy:
            return
        await asyncio.sleep(0.01)
    assert busy == []


class Session(BaseHTTPMiddleware):
    """A function-style middleware that holds a connection of its own around the rest."""

    def __init__(self, app: Any, database: Database) -> None:
        super().__init__(app)
        self.database = database

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        async with self.database.connect() as connection:
            await self.database.execute(connection, "SELECT 1")
            return await call_next(request)


def in_plain(database: Database) -> App:
    async def handler() -> None:
        async with database.connect() as connection:
            await database.work(connection)

    return plain(handler)


def in_middleware(database: Database) -> App:
    async def endpoint(request: Request) -> Response:
        async with database.connect() as connection:
            await database.work(connection)
        return PlainTextResponse("never")

    middleware = [Middleware(Session, database=database), Middleware(Session, database=database)]
    return Starlette(routes=[Route("/", endpoint)], middleware=middleware)


def in_stream(database: Database) -> App:
    async def body() -> AsyncIterator[bytes]:
        # Not within the connection: a cancel that arrives while this chunk is being sent passes the generator by, and
        # it is closed by the garbage collector, with or without us.
        yield b"x"
        async with database.connect() as connection:
            await database.work(connection)
        yield b"never"

    async def endpoint(request: Request) -> Response:
        return StreamingResponse(body())

    return Starlette(routes=[Route("/", endpoint)])


def in_stream_in_middleware(database: Database) -> App:
    return Session(in_stream(database), database)


def in_anyio_group(database: Database) -> App:
    async def query() -> None:
        async with database.connect() as connection:
            await database.work(connection)

    async def handler() -> None:
        async with database.connect() as connection, anyio.create_task_group() as group:
            group.start_soon(query)
            group.start_soon(query)
            group.start_soon(anyio.sleep, 5)
            await database.work(connection)

    return plain(handler)


def in_asyncio_group(database: Database) -> App:
    async def query() -> None:
        async with database.connect() as connection:
            await database.work(connection)

    async def handler() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(query())
            group.create_task(asyncio.wait_for(query(), 4))
            await asyncio.gather(query(), asyncio.sleep(5))

    return plain(handler)


def in_scope(database: Database) -> App:
    async def handler() -> None:
        with anyio.fail_after(4), anyio.CancelScope():
            async with database.connect() as connection:
                await database.work(connection)

    return plain(handler)


PLACES = [
    in_plain, in_middleware, in_stream, in_stream_in_middleware, in_anyio_group, in_asyncio_group, in_scope,
]  # fmt: skip


async def pids(database: Database, size: int) -> set[int]:
    """Return the backends of the whole pool: all its connections are usable."""
    found: set[int] = set()

    async def one(start: asyncio.Barrier) -> None:
        async with database.connect() as connection:
            await start.wait()
            found.add(await database.execute(connection, "SELECT pg_backend_pid()"))

    start = asyncio.Barrier(size)
    async with asyncio.timeout(5):
        await asyncio.gather(*(one(start) for _ in range(size)))
    return found


CASES = [
    # SQLAlchemy on top changes the driver's clean-up little: two places of it are enough for every run.
    pytest.param(driver, place, marks=[pytest.mark.slow] if "+" in driver and number not in {0, 3} else [])
    for driver in DRIVERS
    for number, place in enumerate(PLACES)
]


@pytest.mark.parametrize(("driver", "place"), CASES)
async def test_b22_the_statement_is_stopped_on_the_server(
    driver: str, place: Callable[[Database], App], port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """B22, B20: stopped at once, and the pool is whole afterwards."""
    caplog.set_level(logging.WARNING)
    size = 3
    async with DRIVERS[driver](port, size) as database:
        before = await pids(database, size)
        async with nothing_left():
            shell = Shell(place(database), deadline=0.25)
            request = asyncio.create_task(serve(shell))
            await asyncio.sleep(0.2)
            assert any(query == STATEMENT for _, query in await sessions(port))
            outcome = await request
            await until(lambda: shell.taken == 0)
            await all_idle(port)
        assert outcome.raised is None
        assert outcome.cancelling == 0
        assert outcome.late == 0
        assert outcome.status == (200 if "stream" in place.__name__ else 504)
        after = await pids(database, size)
        assert len(after) == size
        if database.keeps_connection:
            assert after == before
            assert not caplog.records


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_b20_requests_ended_at_random_points_leave_the_pool_whole(
    driver: str, seed: int, port: int
) -> None:
    """B20: a hundred requests, by deadline and by disconnect, in every place of the list."""
    rng = random.Random(seed)
    size = 12
    async with DRIVERS[driver](port, size) as database:
        # Many short ones: a CANCEL that reaches the server before the statement has begun is lost, whoever sends it.
        database.statement, database.times = "SELECT pg_sleep(0.02)", 200
        before = await pids(database, size)
        shells = [Shell(place(database)) for place in PLACES]
        outcomes: list[Outcome] = []
        complaints: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))

        async def one(shell: Shell) -> None:
            outcome = Outcome()
            if rng.random() < 0.5:
                loop.call_later(rng.uniform(0.02, 0.04), outcome.disconnect)
                await serve(shell, deadline=5, outcome=outcome)
            else:
                await serve(shell, deadline=rng.uniform(0.001, 0.05), outcome=outcome)
            outcomes.append(outcome)

        for _ in range(34):
            await asyncio.gather(*(one(rng.choice(shells)) for _ in range(3)))
        await until(lambda: not any(shell.taken for shell in shells))
        await all_idle(port)
        after = await pids(database, size)
    assert len(after) == size
    assert all(outcome.raised is None and outcome.cancelling == 0 for outcome in outcomes)
    assert all(outcome.releases == 1 for outcome in outcomes)
    # A clean-up that did not end within its grace (a machine that stood still) may cost its connection.
    excused = sum(outcome.late for outcome in outcomes) + 1
    assert len(before - after) <= excused
    assert len(complaints) <= excused


async def test_without_us_an_anyio_scope_leaves_the_statement_running(port: int) -> None:
    """The negative control: what the place inside a scope does to the driver's CANCEL."""
    async with psycopg_database(port, 1) as database:
        with anyio.move_on_after(0.1):
            async with database.connect() as connection:
                await database.execute(connection, STATEMENT)
        await asyncio.sleep(0.1)
        assert any(query == STATEMENT for _, query in await sessions(port))


async def test_a_thread_that_runs_a_statement_keeps_its_slot(port: int) -> None:
    """A synchronous driver in a thread cannot be cancelled; its slot says so."""

    def query() -> None:
        with psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=postgres") as connection:
            connection.execute("SELECT pg_sleep(0.4)")

    outcome = await run(plain(lambda: asyncio.to_thread(query)))
    expired(outcome)
    assert outcome.late == 1
    assert outcome.released_at is not None
    assert outcome.released_at >= 0.4
