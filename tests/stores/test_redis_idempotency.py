"""Redis as a store: several processes, a killed one, a forked one, a server that is slow, stopped or empty afterwards."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey

from resilient_mw.idempotency import (
    IdempotencyStore,
    State,
    StoredAnswer,
    StoreUnavailable,
)
from resilient_mw.testing.idempotency_checks import begun, looked
from resilient_mw_integrations.redis import AsyncRedisIdempotencyStore, RedisIdempotencyStore
from tests.integrations.redis_server import SERVER, RedisServer
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

pytestmark = pytest.mark.skipif(SERVER is None, reason="no Redis server")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(params=["blocking", "async"])
def store(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[IdempotencyStore]:
    with opened(
        request.param,
        lambda: RedisIdempotencyStore(server.url),
        lambda: AsyncRedisIdempotencyStore(server.url),
    ) as store:
        yield store


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    """Have the server say nothing, and accept connections all the same."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_b85_of_several_processes_one_begins(server: RedisServer) -> None:
    """Each key once, whichever of four processes it comes to."""
    assert won_in_a_race(RedisIdempotencyStore, server.url) == list(range(40))


@pytest.mark.parametrize("store", ["blocking"], indirect=True)
def test_b86_what_a_killed_process_had_is_taken_after_the_lease(
    server: RedisServer, store: IdempotencyStore
) -> None:
    takes_what_a_killed_process_had(RedisIdempotencyStore, server.url, store)


def test_a_forked_child_has_connections_of_its_own(server: RedisServer) -> None:
    assert forked(RedisIdempotencyStore, server.url) == ["0", "True", "True"]


def test_a_server_that_is_stopped_is_said_to_be_away_and_found_again(
    server: RedisServer, store: IdempotencyStore
) -> None:
    """Also one that has come back empty: what it had is lost, fences still go up, and the script is handed over again."""
    held = TESTS.claim()
    fence = begun(store.begin(held)).fence
    server.kill()
    says_that_it_is_away(store, held, 0.5)
    server.start()
    assert not works_again(lambda: store.renew(held, timeout=5))
    again = TESTS.again(held)
    assert begun(store.begin(again)).fence > fence
    assert store.complete(again, StoredAnswer(200))


def test_connections_that_were_closed_while_idle_cost_nobody_an_error(
    server: RedisServer, store: IdempotencyStore
) -> None:
    def close_them() -> None:
        with redis.Redis.from_url(server.url) as client:
            client.client_kill_filter(_type="normal", skipme=True)

    survives_closed_connections(store, close_them)


def test_a_server_that_does_not_answer_is_waited_for_within_the_time(
    server: RedisServer, store: IdempotencyStore
) -> None:
    """By connections that were there, and by those that are made meanwhile."""
    claim = TESTS.claim()
    begun(store.begin(claim))
    with stopped(server):
        before = time.monotonic()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                store.renew(claim, timeout=0.2)
        assert time.monotonic() - before < 60
    assert works_again(lambda: store.renew(claim, timeout=5))


def test_connections_are_waited_for_within_the_time(server: RedisServer) -> None:
    store = RedisIdempotencyStore(server.url, connections=1)
    store.ping(timeout=30)
    with ThreadPoolExecutor(1) as thread:
        with stopped(server):
            slow = thread.submit(store.ping, timeout=60)
            end = time.monotonic() + 30
            while store._line._places._value:  # type: ignore[attr-defined]
                assert time.monotonic() < end
                time.sleep(0.01)
            with pytest.raises(StoreUnavailable, match="busy"):
                store.ping(timeout=0.1)
        slow.result(60)
    store.close()


def test_a_begin_whose_answer_was_lost_may_be_asked_again(store: IdempotencyStore) -> None:
    """As the store does by itself, on another connection."""
    tells_a_begin_once_more(store)


def test_the_begins_of_one_caller_at_one_time_do_not_pass_its_bound(store: IdempotencyStore) -> None:
    keeps_the_bound_of_one_caller(store)


def test_nothing_is_left_of_what_has_expired(server: RedisServer, store: IdempotencyStore) -> None:
    """The server removes the records, new ones the names of two others each, `purge` the rest."""
    for _ in range(5):
        claim = TESTS.claim(keep=0.05, caller="c" * 64)
        store.begin(claim)
        store.complete(claim, StoredAnswer(200))
    time.sleep(0.1)
    last = TESTS.claim()
    store.begin(last)
    assert store.purge() <= 3
    assert store.abandon(last, "forget")
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert client.keys() == ["{resilient-mw}:fence"]


def test_a_long_list_comes_in_several_calls(store: IdempotencyStore) -> None:
    """No call keeps the server from others for long, also when few are what was asked for."""
    claims = [TESTS.claim() for _ in range(1_200)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda claim: store.begin(claim, timeout=60), claims))
    names = sorted(each.record for each in claims)
    assert [each.record for each in store.records(limit=5_000, timeout=60)] == names
    assert [each.record for each in store.records(limit=501, timeout=60)] == names[:501]
    dark = {names[3], names[1_100]}
    for claim in claims:
        if claim.record in dark:
            store.abandon(claim, "unknown", timeout=60)
    assert {each.record for each in store.records(state=State.UNKNOWN, timeout=60)} == dark
    assert [each.record for each in store.records(state=State.UNKNOWN, limit=1, timeout=60)] == [names[3]]


@pytest.mark.parametrize("kind", [redis.Redis, valkey.Valkey])
def test_a_client_of_the_user_keeps_its_own_connections(
    server: RedisServer, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they wait, and how often they try again, is for its other users."""
    client = kind.from_url(server.url, socket_timeout=1e-6)
    monkeypatch.setattr(client.connection_pool, "get_connection", None)
    store = RedisIdempotencyStore(client)
    claim = TESTS.claim()
    begun(store.begin(claim, timeout=30))
    assert looked(store, claim).state is State.RUNNING
    store.close()


async def test_a_store_may_be_used_on_one_loop_after_another(server: RedisServer) -> None:
    store = AsyncRedisIdempotencyStore(server.url)
    await store.ping(timeout=30)

    def elsewhere() -> None:
        async def once() -> None:
            other = AsyncRedisIdempotencyStore(server.url)
            await other.ping(timeout=30)
            await other.close()

        asyncio.run(once())

    await asyncio.to_thread(elsewhere)
    await store.ping(timeout=30)
    await store.close()


@pytest.mark.parametrize("prefix", ["", "a{b}", "a b", "a" * 101])
def test_what_cannot_work_is_said_at_once(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        RedisIdempotencyStore("redis://localhost", prefix=prefix)
    with pytest.raises(ValueError, match="blocking client"):
        RedisIdempotencyStore(redis.asyncio.Redis())
    with pytest.raises(ValueError, match="asyncio client"):
        AsyncRedisIdempotencyStore(redis.Redis())
    with pytest.raises(ValueError, match="client"):
        AsyncRedisIdempotencyStore(None)


async def test_while_the_server_is_away_the_middleware_refuses(server: RedisServer) -> None:
    """Nothing runs whose key cannot be recorded."""
    store = AsyncRedisIdempotencyStore(server.url)
    await refuses_while_the_server_is_away(store, server.kill, server.start)
