"""Quotas that the library `limits` counts: in memory, and in a Redis that is killed in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.quotas import Quota, QuotaState, QuotaStore
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from resilient_mw_integrations.limits import MemoryQuotas, RedisQuotas, TidyMemory
from tests.asgi.driver import Request, hello
from tests.asgi.test_tenants import of
from tests.integrations.redis_server import RedisServer, redis_server
from tests.wsgi.helpers import hello as wsgi_hello

__all__ = ["redis_server"]

SLOW = 5.0
"""Seconds that a question may take where a test is not about time."""
MANY = Quota("1000000/day")


def passed(states: list[QuotaState]) -> list[bool]:
    return [state.allowed for state in states]


# -- in memory ---------------------------------------------------------------------------------------------------------


def test_each_tenant_and_each_quota_counts_apart() -> None:
    store = MemoryQuotas()
    daily, other = Quota("2/day", name="daily"), Quota("2/day", name="other")
    assert passed([store.hit(daily, "a", 1) for _ in range(3)]) == [True, True, False]
    assert store.hit(daily, "b", 1).allowed
    assert store.hit(other, "a", 2).allowed
    assert store.hit(daily, "a", 1).remaining == 0


def test_names_with_slashes_are_told_apart() -> None:
    store, quota = MemoryQuotas(), Quota("1/day")
    assert store.hit(quota, "a/b", 1).allowed
    assert store.hit(quota, "a", 1).allowed
    assert store.hit(quota, "b", 1).allowed
    assert not store.hit(quota, "a/b", 1).allowed


def test_the_reset_is_when_there_is_room() -> None:
    store, quota = MemoryQuotas(), Quota("2/second")
    states = [store.hit(quota, "a", 1) for _ in range(6)]
    refused = [state for state in states if not state.allowed]
    assert refused
    assert 0 < refused[-1].reset <= 2.0
    time.sleep(refused[-1].reset + 0.01)
    assert store.hit(quota, "a", 1).allowed


def test_threads_come_one_after_the_other() -> None:
    """The library looks first, and counts then."""
    store, quota = MemoryQuotas(), Quota("20/day")
    inside: list[int] = []
    together: list[int] = []
    found: list[bool] = []
    acquire = store._storage.acquire_sliding_window_entry

    def slow(*args: Any) -> bool:
        inside.append(1)
        together.append(len(inside))
        time.sleep(0.001)
        try:
            return acquire(*args)
        finally:
            inside.pop()

    store._storage.acquire_sliding_window_entry = slow  # type: ignore[method-assign, assignment]

    def hits() -> None:
        for _ in range(10):
            found.append(store.hit(quota, "a", 1).allowed)  # noqa: PERF401

    threads = [threading.Thread(target=hits) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(together) == 1
    assert sum(found) == 20


def test_what_is_over_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr("limits.storage.memory.time.time", lambda: now)
    monkeypatch.setattr("resilient_mw_integrations.limits.wall_clock_ns", lambda: int(now * 1e9))
    store, quota = MemoryQuotas(), Quota("5/minute")
    for number in range(1000):
        store.hit(quota, f"old{number}", 1)
    assert len(store._storage.storage) == 1000
    now += 121
    for number in range(600):
        store.hit(quota, f"new{number}", 1)
    assert len(store._storage.storage) == 600
    assert len(store._storage.expirations) == len(store._storage._ends) == 600
    assert not store._storage.locks


def test_there_are_never_more_counters_than_allowed() -> None:
    store = MemoryQuotas(most=100)
    for number in range(1000):
        assert store.hit(MANY, f"tenant{number}", 1).allowed
    assert len(store._storage.storage) <= 100
    assert len(store._storage._ends) <= 100
    assert store._storage.get(next(reversed(store._storage.storage))) == 1  # the latest is there
    with pytest.raises(ValueError, match="most="):
        TidyMemory(1)


def test_many_tenants_cost_no_more_than_few() -> None:
    """Looking at every counter would take seconds here."""
    store = MemoryQuotas()
    for number in range(50_000):
        store.hit(MANY, f"tenant{number}", 1)
    looked: list[int] = []
    get = store._storage.get

    def counted(key: str) -> int:
        looked.append(1)
        return get(key)

    store._storage.get = counted  # type: ignore[method-assign]
    for number in range(1000):
        store.hit(MANY, f"another{number}", 1)
    assert len(looked) < 10_000
    assert not store._storage.timer.is_alive()  # no thread that looks at all of them


# -- in Redis ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "memory://", "localhost:6379", "http://x", None, 5])
def test_what_is_no_url_of_a_redis_is_refused(url: Any) -> None:
    with pytest.raises(ValueError, match="url="):
        RedisQuotas(url)


def test_the_other_values_are_checked() -> None:
    with pytest.raises(ValueError, match="timeout="):
        RedisQuotas("redis://x", timeout=0)
    with pytest.raises(ValueError, match="prefix="):
        RedisQuotas("redis://x", prefix="a b")


async def test_nothing_is_connected_before_the_first_request() -> None:
    store = RedisQuotas("redis://127.0.0.1:1")
    assert store.local is not None
    with pytest.raises(Exception, match="127.0.0.1:1"):
        store.hit(MANY, "a", 1)
    with pytest.raises(Exception, match="127.0.0.1"):
        await store.hit_soon(MANY, "a", 1)
    store.close()
    await store.aclose()


async def test_instances_and_stacks_count_together(redis_server: RedisServer) -> None:
    one, two = (RedisQuotas(redis_server.url, timeout=SLOW) for _ in range(2))
    other = RedisQuotas(redis_server.url, timeout=SLOW, prefix="other")
    quota = Quota("3/day")
    states = [
        one.hit(quota, "a", 1),
        await one.hit_soon(quota, "a", 1),
        two.hit(quota, "a", 1),
        await two.hit_soon(quota, "a", 1),
        one.hit(quota, "a", 1),
    ]
    assert passed(states) == [True, True, True, False, False]
    assert all(0 < state.reset <= 2 * 86_400 for state in states[3:])
    assert all(state.remaining == 0 for state in states[3:])
    assert other.hit(quota, "a", 1).allowed
    for store in (one, two, other):
        store.close()
        await store.aclose()


async def test_a_burst_gets_no_more_than_there_is(redis_server: RedisServer) -> None:
    stores = [RedisQuotas(redis_server.url, timeout=SLOW) for _ in range(2)]
    quota = Quota("30/day")
    states = await asyncio.gather(*(store.hit_soon(quota, "a", 1) for store in stores for _ in range(40)))
    assert sum(passed(states)) == 30
    for store in stores:
        await store.aclose()


def test_each_event_loop_has_connections_of_its_own(redis_server: RedisServer) -> None:
    store = RedisQuotas(redis_server.url, timeout=SLOW)
    loops = [asyncio.new_event_loop() for _ in range(2)]
    for _ in range(2):
        for loop in loops:
            assert loop.run_until_complete(store.hit_soon(MANY, "a", 1)).allowed
    assert len(store._async) == 2
    for loop in loops:
        loop.run_until_complete(store.aclose())
        loop.close()
    assert not store._async


def policy_on(store: QuotaStore, **fields: Any) -> ServerPolicy:
    given = {
        "tenant": "X-Tenant",
        "quotas": [Quota("4/day")],
        "quota_store": store,
        "overload": None,
        **fields,
    }
    return ServerPolicy(**given)


def without_store(policy: ServerPolicy) -> int:
    found = guard_of(policy).snapshot().quotas
    assert found is not None
    return found.without_store


async def status(middleware: ResilienceMiddleware, tenant: str = "a") -> int | None:
    request = await Request(middleware, of(tenant)).run(within=20)
    assert request.raised is None
    return request.status


async def until_asked(ask: Callable[[], Any], policy: ServerPolicy) -> None:
    """Let requests come until one is decided by the store again."""
    end = time.monotonic() + 20
    while True:
        before = without_store(policy)
        answer = ask()
        if asyncio.iscoroutine(answer):
            await answer
        if without_store(policy) == before:
            return
        assert time.monotonic() < end, "the store is not asked again"
        await asyncio.sleep(0.1)


async def test_asgi_goes_on_while_redis_is_killed_and_comes_back(redis_server: RedisServer) -> None:
    store = RedisQuotas(redis_server.url, timeout=1.0)
    policy = policy_on(store)
    middleware = ResilienceMiddleware(hello, policy)
    assert [await status(middleware) for _ in range(2)] == [200, 200]
    assert without_store(policy) == 0
    redis_server.kill()
    # This process has seen two of the four, and lets two more pass.
    assert [await status(middleware) for _ in range(3)] == [200, 200, 429]
    assert await status(middleware, "b") == 200
    assert without_store(policy) == 4
    redis_server.start()
    await until_asked(lambda: status(middleware, "c"), policy)
    assert await status(middleware) == 200  # Redis has forgotten everything
    await store.aclose()


async def test_wsgi_goes_on_while_redis_is_killed_and_comes_back(redis_server: RedisServer) -> None:
    store = RedisQuotas(redis_server.url, timeout=1.0)
    policy = policy_on(store)
    middleware = WsgiMiddleware(wsgi_hello, policy)

    def ask(tenant: str = "a") -> int:
        return int(ScriptedWSGI(middleware, headers=[("X-Tenant", tenant)]).run().status[:3])

    assert [ask() for _ in range(2)] == [200, 200]
    redis_server.kill()
    assert [ask() for _ in range(3)] == [200, 200, 429]
    assert without_store(policy) == 3
    redis_server.start()
    await until_asked(lambda: ask("c"), policy)
    assert ask() == 200
    store.close()


async def test_a_redis_that_hangs_costs_one_timeout_a_second(redis_server: RedisServer) -> None:
    store = RedisQuotas(redis_server.url)
    policy = policy_on(store, quota_store_away="open")
    middleware = ResilienceMiddleware(hello, policy)
    await until_asked(lambda: status(middleware), policy)
    assert redis_server.process is not None
    redis_server.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert [await status(middleware) for _ in range(20)] == [200] * 20
        assert time.monotonic() - began < 1.5  # twenty of them would have been asked for a second in all
        assert without_store(policy) >= 20
    finally:
        redis_server.process.send_signal(signal.SIGCONT)
    await until_asked(lambda: status(middleware), policy)
    await store.aclose()


def test_a_forked_child_counts_for_itself_and_connects_anew() -> None:
    store, quota = MemoryQuotas(), Quota("1/day")
    remote = RedisQuotas("redis://127.0.0.1:1")
    with pytest.raises(Exception, match="127.0.0.1:1"):
        remote.hit(quota, "a", 1)
    assert store.hit(quota, "a", 1).allowed
    assert remote._sync is not None
    with store._lock:  # as a thread of the parent might
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)  # a child that waits for ever ends, and has said nothing
            os.write(writing, bytes([store.hit(quota, "a", 1).allowed, remote._sync is None]))
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 2) == b"\x01\x01"
    os.close(reading)
    remote.close()
