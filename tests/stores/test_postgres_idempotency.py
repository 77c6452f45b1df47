"""PostgreSQL as a store: several processes, a killed one, a forked one, a server that is slow, stopped or restarted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.idempotency import (
    Begun,
    Full,
    IdempotencyPolicy,
    IdempotencyStore,
    State,
    StoredAnswer,
    StoreUnavailable,
)
from resilient_mw.testing.idempotency_checks import StoreTests, begun, found, looked
from resilient_mw.testing.idempotency_faces import blocking_face
from resilient_mw_integrations._postgres_lines import BoundedConnection
from resilient_mw_integrations.postgres import (
    AsyncPostgresIdempotencyStore,
    PostgresIdempotencyStore,
    schema,
)
from tests.asgi.driver import Request, http_scope
from tests.runtime.postgres_server import PostgresServer, find_binaries, serving
from tests.stores.store_processes import forked, killed_while_it_held, won_in_a_race

BINARIES = find_binaries()
pytestmark = [pytest.mark.postgres, pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL binaries")]
TESTS = StoreTests()
TABLE = "resilient_mw_idempotency"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    assert BINARIES is not None
    with serving(BINARIES) as server:
        yield server


@pytest.fixture(params=["blocking", "async"])
def store(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[IdempotencyStore]:
    """Return a store with an empty table."""
    with psycopg.connect(server.dsn) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
    with ExitStack() as stack:
        if request.param == "blocking":
            store: Any = PostgresIdempotencyStore(server.dsn)
        else:
            store = blocking_face(AsyncPostgresIdempotencyStore(server.dsn))
            stack.callback(store.stop)
        stack.callback(store.close)
        store.create(timeout=30)
        yield store


def works_again(call: Callable[[], Any]) -> Any:
    """Return what a call gives, once the store can be reached."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except StoreUnavailable:
            assert time.monotonic() < end, "the store does not find back"
            time.sleep(0.05)


def test_b85_of_several_processes_one_begins(server: PostgresServer) -> None:
    """Each key once, whichever of four processes it comes to; the table is made by all of them at once."""
    with psycopg.connect(server.dsn) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
    assert won_in_a_race(PostgresIdempotencyStore, server.dsn) == list(range(40))


@pytest.mark.parametrize("store", ["blocking"], indirect=True)
def test_b86_what_a_killed_process_had_is_taken_after_the_lease(
    server: PostgresServer, store: IdempotencyStore
) -> None:
    assert killed_while_it_held(PostgresIdempotencyStore, server.dsn, 0.5) == "Begun"
    old = TESTS.claim(record=f"{1:064x}")
    lapses(store, old)
    assert begun(store.begin(TESTS.again(old, take_unknown=True))).unknown


def lapses(store: IdempotencyStore, old: Any) -> None:
    end = time.monotonic() + 30
    while found(store.begin(old)).state is not State.UNKNOWN:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("store", ["blocking"], indirect=True)
def test_a_forked_child_has_connections_of_its_own(server: PostgresServer, store: IdempotencyStore) -> None:
    assert forked(PostgresIdempotencyStore, server.dsn) == ["0", "True", "True"]


@pytest.mark.parametrize("store", ["blocking"], indirect=True)
def test_a_forked_child_does_not_use_the_pool_that_was_given(
    server: PostgresServer, store: IdempotencyStore
) -> None:
    with ConnectionPool(server.dsn, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:
        given = PostgresIdempotencyStore(pool, connections=2)
        given._line.forked()  # type: ignore[attr-defined]  # what the fork of a process calls
        claim = TESTS.claim()
        begun(given.begin(claim))
        assert pool.get_stats().get("requests_num", 0) == 0
        given.close()
        assert not pool.closed


def test_a_server_that_is_stopped_is_said_to_be_away_and_found_again(
    server: PostgresServer, store: IdempotencyStore
) -> None:
    """Within the time, by every transition; what was recorded is there afterwards."""
    held, done = TESTS.claim(), TESTS.claim()
    fence = begun(store.begin(held)).fence
    store.begin(done)
    assert store.complete(done, StoredAnswer(201, (), b"paid"))
    server.stop()
    try:
        for call in (
            lambda: store.begin(TESTS.claim(), timeout=0.2),
            lambda: store.complete(held, StoredAnswer(200), timeout=0.2),
            lambda: store.ping(timeout=0.2),
        ):
            with pytest.raises(StoreUnavailable):
                call()
    finally:
        server.start()
    assert works_again(lambda: store.renew(held, timeout=5))
    assert looked(store, held).fence == fence
    assert found(store.begin(TESTS.again(done))).answer == StoredAnswer(201, (), b"paid")


@pytest.mark.parametrize("store", ["blocking"], indirect=True)
def test_connections_that_were_closed_while_idle_cost_nobody_an_error(
    server: PostgresServer, store: IdempotencyStore
) -> None:
    """As after a restart of the server: the pool had several, and the next caller is not to find them all out."""
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: store.ping(), range(40)))
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
    claim = TESTS.claim()
    assert isinstance(store.begin(claim, timeout=30), Begun)
    assert store.complete(claim, StoredAnswer(200), timeout=30)


def test_a_row_that_somebody_else_holds_is_waited_for_within_the_time(
    server: PostgresServer, store: IdempotencyStore
) -> None:
    claim = TESTS.claim()
    begun(store.begin(claim))
    with psycopg.connect(server.dsn) as other:
        other.execute(f"SELECT FROM {TABLE} FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="timeout"):
            store.renew(claim, timeout=0.2)
        assert found(store.begin(TESTS.again(claim), timeout=30)).state is State.RUNNING, "who only reads"
        assert store.purge(timeout=30) == 0
    assert store.renew(claim, timeout=30)


def test_a_key_that_another_transaction_has_inserted_is_judged_by_what_it_leaves(
    server: PostgresServer, store: IdempotencyStore
) -> None:
    """The unique key decides, not the look before: this one had seen nothing, and waited."""
    claim = TESTS.claim()
    begun(store.begin(claim))
    with psycopg.connect(server.dsn) as other, ThreadPoolExecutor(1) as thread:
        other.execute(f"DELETE FROM {TABLE}")
        other.commit()
        copy = TESTS.again(claim)
        other.execute(
            f"INSERT INTO {TABLE} (record, state, token, began, lease_until, expires, caller, about_key, about_method, "
            "about_route, about_caller) VALUES (%s, 'running', 'other', now(), now() + interval '1 hour', "
            "now() + interval '1 hour', '', '', '', '', '')",
            (claim.record,),
        )
        waiting = thread.submit(store.begin, copy, timeout=60)
        waits_for_a_lock(server)
        other.commit()
        assert found(waiting.result(60)).state is State.RUNNING


def waits_for_a_lock(server: PostgresServer) -> None:
    end = time.monotonic() + 30
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        while not connection.execute(
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        ).fetchall():
            assert time.monotonic() < end, "nobody waits"
            time.sleep(0.01)


def test_the_begins_of_one_caller_at_one_time_do_not_pass_its_bound(store: IdempotencyStore) -> None:
    claims = [TESTS.claim(caller="c" * 64, most=3) for _ in range(24)]
    with ThreadPoolExecutor(24) as threads:
        outcomes = list(threads.map(lambda claim: store.begin(claim, timeout=60), claims))
    assert sum(isinstance(each, Begun) for each in outcomes) == 3
    assert sum(isinstance(each, Full) for each in outcomes) == 21


def test_a_begin_may_be_repeated_by_the_connection_that_was_lost(store: IdempotencyStore) -> None:
    """Its answer was lost on the way: the same claim is told once more that it has the record."""
    claim = TESTS.claim()
    assert store.begin(claim) == store.begin(claim)
    store.abandon(claim, "unknown")
    taker = TESTS.again(claim, take_unknown=True)
    assert begun(store.begin(taker)).unknown
    assert begun(store.begin(taker)).unknown


def test_a_server_that_stops_without_a_word(server: PostgresServer) -> None:
    """A conversation is broken off, although nothing comes that would end it."""

    def silence() -> Any:
        while True:
            yield 1  # wait for the server to say something

    with BoundedConnection.connect(server.dsn) as connection:
        connection.until = time.monotonic() + 0.1
        with pytest.raises(psycopg.OperationalError, match="stopped answering"):
            connection.wait(silence())


def test_a_full_pool_is_waited_for_within_the_time(server: PostgresServer) -> None:
    store = PostgresIdempotencyStore(server.dsn, connections=1)
    store.create(timeout=30)
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with store._line._pool().connection():  # type: ignore[attr-defined]
            held.set()
            go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(60)
        with pytest.raises(StoreUnavailable, match="no connection in time"):
            store.ping(timeout=0.1)
    finally:
        go.set()
        holder.join()
        store.close()


def test_a_missing_table_says_what_to_do(server: PostgresServer) -> None:
    store = PostgresIdempotencyStore(server.dsn, table="nowhere")
    with pytest.raises(StoreUnavailable, match=r"create\(\)"):
        store.begin(TESTS.claim(), timeout=30)
    store.close()


def test_the_table_can_be_made_by_hand_in_a_schema(server: PostgresServer) -> None:
    """And `create` asks for no rights that it does not need then."""
    with psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute(schema(table="keys", schema="shop"))
        connection.execute("CREATE ROLE app LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA shop TO app")
        connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON shop.keys TO app")
    store = PostgresIdempotencyStore(
        server.dsn.replace("user=postgres", "user=app"), table="keys", schema="shop"
    )
    store.create(timeout=30)
    assert isinstance(store.begin(TESTS.claim(), timeout=30), Begun)
    store.close()


@pytest.mark.parametrize("name", ["", "Keys", 'a"b', "a b", "1a", "a" * 51])
def test_names_of_tables_are_checked(name: str) -> None:
    for facts in ({"table": name}, {"schema": name}):
        with pytest.raises(ValueError, match="small letters"):
            PostgresIdempotencyStore("dbname=x", **facts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="DSN"):
        PostgresIdempotencyStore("no dsn")


async def test_while_the_server_is_away_the_middleware_refuses(server: PostgresServer) -> None:
    """Nothing runs whose key cannot be recorded."""
    runs = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal runs
        runs += 1
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"paid"})

    store = AsyncPostgresIdempotencyStore(server.dsn)
    await store.create(timeout=30)
    policy = IdempotencyPolicy(single_tenant=True, store_timeout=0.5)
    middleware = IdempotencyMiddleware(app, policy, store=store)

    def post() -> Any:
        scope = http_scope("/payments", "POST", headers=[(b"idempotency-key", TESTS.new("key").encode())])
        return Request(middleware, scope, body=(b"{}",)).run()

    await asyncio.to_thread(server.stop)
    try:
        assert (await post()).status == 503
        assert runs == 0
    finally:
        await asyncio.to_thread(server.start)
    end = time.monotonic() + 60
    while (await post()).status == 503:
        assert time.monotonic() < end
    assert runs == 1
    await store.close()
