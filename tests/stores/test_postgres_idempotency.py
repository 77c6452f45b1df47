"""PostgreSQL as a store: several processes, a killed one, a forked one, a server that is slow, stopped or restarted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from resilient_mw.idempotency import (
    Begun,
    Claim,
    Full,
    IdempotencyStore,
    State,
    StoredAnswer,
    StoreUnavailable,
)
from resilient_mw.idempotency.record import About
from resilient_mw.testing.idempotency_checks import begun, found, looked
from resilient_mw_integrations._postgres_lines import BoundedConnection
from resilient_mw_integrations._postgres_questions import PostgresQuestions
from resilient_mw_integrations.postgres import (
    AsyncPostgresIdempotencyStore,
    PostgresIdempotencyStore,
    schema,
)
from tests.runtime.postgres_server import PostgresServer, find_binaries, serving
from tests.stores.served import (
    TESTS,
    keeps_the_bound_of_one_caller,
    opened,
    refuses_while_the_server_is_away,
    says_that_it_is_away,
    survives_closed_connections,
    takes_what_a_killed_process_had,
    tells_a_begin_once_more,
    works_again,
)
from tests.stores.store_processes import forked, won_in_a_race

BINARIES = find_binaries()
pytestmark = [pytest.mark.postgres, pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL binaries")]
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
    with opened(
        request.param,
        lambda: PostgresIdempotencyStore(server.dsn),
        lambda: AsyncPostgresIdempotencyStore(server.dsn),
    ) as store:
        yield store


def test_b85_of_several_processes_one_begins(server: PostgresServer) -> None:
    """Each key once, whichever of four processes it comes to; the table is made by all of them at once."""
    with psycopg.connect(server.dsn) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
    assert won_in_a_race(PostgresIdempotencyStore, server.dsn) == list(range(40))


@pytest.mark.parametrize("store", ["blocking"], indirect=True)
def test_b86_what_a_killed_process_had_is_taken_after_the_lease(
    server: PostgresServer, store: IdempotencyStore
) -> None:
    takes_what_a_killed_process_had(PostgresIdempotencyStore, server.dsn, store)


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
        says_that_it_is_away(store, held, 0.2)
    finally:
        server.start()
    assert works_again(lambda: store.renew(held, timeout=5))
    assert looked(store, held).fence == fence
    assert found(store.begin(TESTS.again(done))).answer == StoredAnswer(201, (), b"paid")


def test_connections_that_were_closed_while_idle_cost_nobody_an_error(
    server: PostgresServer, store: IdempotencyStore
) -> None:
    """As after a restart of the server: the pool had several, and the next caller is not to find them all out."""
    others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
    with psycopg.connect(server.dsn) as other, ThreadPoolExecutor(3) as threads:
        other.execute(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
        asked = [threads.submit(store.ping, timeout=60) for _ in range(3)]
        waits_for_a_lock(server, *asked, many=3)
        other.commit()
        for each in asked:
            each.result(60)

    def close_them() -> None:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            end = time.monotonic() + 30
            assert len(connection.execute(ended).fetchall()) >= 3
            while connection.execute(ended).fetchall():  # also one that the pool was still making
                assert time.monotonic() < end, "they do not end"
                time.sleep(0.01)

    survives_closed_connections(store, close_them)


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
        waits_for_a_lock(server, waiting)
        other.commit()
        assert found(waiting.result(60)).state is State.RUNNING


def test_of_two_that_take_a_record_over_at_one_time_one_has_it(
    server: PostgresServer, store: IdempotencyStore
) -> None:
    """What it was when both looked does not count for the one that waited."""
    claim = TESTS.claim()
    begun(store.begin(claim))
    store.abandon(claim, "unknown")
    with ThreadPoolExecutor(1) as thread, under_way(server, TESTS.again(claim, take_unknown=True)):
        waiting = thread.submit(store.begin, TESTS.again(claim, take_unknown=True), timeout=60)
        waits_for_a_lock(server, waiting)
    assert found(waiting.result(60)).state is State.RUNNING


def waits_for_a_lock(server: PostgresServer, *callers: Future[Any], many: int = 1) -> None:
    """Return once so many sessions wait, as the callers are to do until then."""
    end = time.monotonic() + 30
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        while len(connection.execute(waits).fetchall()) < many:
            assert not any(each.done() for each in callers), "one did not wait"
            assert time.monotonic() < end, "nobody waits"
            time.sleep(0.01)


@contextmanager
def under_way(server: PostgresServer, claim: Claim) -> Iterator[None]:
    """Have another begin, and commit only afterwards."""
    message, facts = PostgresQuestions(TABLE, None).begin(claim).payload
    with psycopg.connect(server.dsn) as other:
        psycopg.ClientCursor(other).execute(message.text, {**facts, "timeout": 60_000})
        yield


@pytest.mark.parametrize(("most", "live"), [(1, 0), (3, 2), (101, 2)])
def test_a_begin_near_the_bound_waits_for_others_of_its_caller(
    server: PostgresServer, store: IdempotencyStore, most: int, live: int
) -> None:
    """Neither sees the other's record yet; uncounted, together they could pass the bound."""
    about: dict[str, Any] = {"caller": "c" * 64, "most": most}
    for _ in range(live):
        begun(store.begin(TESTS.claim(**about)))
    with ThreadPoolExecutor(1) as thread, under_way(server, TESTS.claim(**about)):
        waiting = thread.submit(store.begin, TESTS.claim(**about), timeout=60)
        waits_for_a_lock(server, waiting)
    assert isinstance(waiting.result(60), Full if most == live + 1 else Begun)


def test_a_begin_far_from_the_bound_waits_for_nobody(server: PostgresServer, store: IdempotencyStore) -> None:
    about: dict[str, Any] = {"caller": "c" * 64, "most": 10_000}
    begun(store.begin(TESTS.claim(**about)))
    with under_way(server, TESTS.claim(**about)):
        begun(store.begin(TESTS.claim(**about), timeout=30))


def test_the_begins_of_one_caller_at_one_time_do_not_pass_its_bound(store: IdempotencyStore) -> None:
    keeps_the_bound_of_one_caller(store)


def test_a_begin_may_be_repeated_by_the_connection_that_was_lost(store: IdempotencyStore) -> None:
    """Its answer was lost on the way: the same claim is told once more that it has the record."""
    tells_a_begin_once_more(store)


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
    with pytest.raises(
        StoreUnavailable, match=r'^PostgreSQL: relation "nowhere" does not exist: call the .*create\(\)'
    ):
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
    store = AsyncPostgresIdempotencyStore(server.dsn)
    await refuses_while_the_server_is_away(store, server.stop, server.start, store_timeout=0.5)


def test_a_text_that_cannot_be_kept_costs_no_connection(server: PostgresServer) -> None:
    """A driver refuses it before anything is said: another attempt, on another connection, would fare no better."""
    with ConnectionPool(server.dsn, min_size=1, max_size=1, open=True) as pool:
        store = PostgresIdempotencyStore(pool)
        store.create(timeout=30)
        with pool.connection() as connection:
            before = connection.info.backend_pid
        with pytest.raises(StoreUnavailable, match="NUL"):
            store.begin(TESTS.claim(about=About(route="/a\0b")), timeout=5)
        with pool.connection() as connection:
            assert connection.info.backend_pid == before
