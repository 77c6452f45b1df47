"""Counts the quotas of tenants with the library `limits`: in memory, or in Redis or Valkey for many instances.

Example:
    from resilient_mw import ServerPolicy
    from resilient_mw.core.quotas import Quota
    from resilient_mw_integrations.limits import RedisQuotas

    policy = ServerPolicy(tenant="X-Tenant", quotas=[Quota("100/minute")], quota_store=RedisQuotas("redis://cache:6379"))

Both count in sliding windows: what was counted in the window before fades out while the next one goes on, so that nobody
gets twice his quota around the end of a window. Two numbers are kept for each tenant and quota.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from importlib import import_module
from typing import Any

from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage as AsyncRedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter as AsyncSlidingWindow
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter as SlidingWindow

from resilient_mw.core.checks import require_integer, require_name, require_number
from resilient_mw.core.quotas import ALLOWED, Quota, QuotaState, QuotaStore, sliding_state
from resilient_mw.runtime.clocks import wall_clock_ns
from resilient_mw.runtime.forks import after_fork

SCHEMES = ("redis", "rediss", "redis+unix", "valkey", "valkeys", "valkey+unix")


class TidyMemory(MemoryStorage):
    """The counters of windows, which forgets what is over as it goes on. Not thread-safe: the owner locks.

    The library's own one starts a thread for that, which looks at every counter there is, a hundred times a second while
    requests come: with 100,000 tenants it does little else.

    Args:
        most: most counters; above that the one whose window ends first is forgotten.

    Raises:
        ValueError: `most` is less than 2.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = require_integer("most", most, low=2)
        self._ends: list[tuple[float, str]] = []

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """Count, and forget some of what is over."""
        if not self.get(key):
            self._tidy()
            ends_at = self.expirations[key] = wall_clock_ns() / 1e9 + expiry
            heapq.heappush(self._ends, (ends_at, key))
        self.storage[key] += amount
        return self.storage[key]

    def _tidy(self) -> None:
        # Two for each one that is new: so there are never many.
        for _ in range(2):
            if not self._ends:
                return
            ends_at, key = self._ends[0]
            if self.expirations.get(key) == ends_at:
                self.get(key)  # forgets it if it is over
                if key in self.expirations:
                    if len(self._ends) < self._most:
                        return
                    self.clear(key)
            heapq.heappop(self._ends)


class MemoryQuotas:
    """Counts in the memory of this process: each worker process counts for itself.

    Args:
        most: most numbers that are kept, two for each tenant and quota; above that the one whose window ends first is
            forgotten.

    Raises:
        ValueError: a value is not allowed.
    """

    timeout = 1.0  # nothing is waited for
    local: QuotaStore | None = None

    def __init__(self, most: int = 250_000) -> None:
        self._most = most
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child: the counts are the parent's, and the lock may be held there."""
        self._lock = threading.Lock()
        self._storage = TidyMemory(self._most)
        self._limiter = SlidingWindow(self._storage)

    def hit(self, quota: Quota, tenant: str, count: int) -> QuotaState:
        """Count a request if the quota has room for it."""
        item = _item(quota)
        with self._lock:  # the library looks, and then counts
            if self._limiter.hit(item, quota.name, tenant, cost=count):
                return ALLOWED
            return _refused(quota, count, self._storage, item.key_for(quota.name, tenant))

    async def hit_soon(self, quota: Quota, tenant: str, count: int) -> QuotaState:
        """Count a request as `hit` does."""
        return self.hit(quota, tenant, count)


class RedisQuotas:
    """Counts in Redis or Valkey, for all instances together; each question is one script, so that nobody counts twice.

    Nothing is connected before the first request. Under ASGI each event loop has connections of its own.

    Args:
        url: `redis://[:password@]host:port[/db]`, `rediss://`, `redis+unix:///path`, or `valkey://` and so on, for which
            the package `valkey` has to be installed; `redis://` works with a Valkey server, too.
        timeout: seconds for the answer to one request; under WSGI for each step of it, connecting is one.
        prefix: of all keys; services that must not share their quotas need different ones.
        **options: passed on to the client.

    Raises:
        ValueError: a value is not allowed.
    """

    def __init__(
        self, url: str, *, timeout: float = 0.05, prefix: str = "resilient_mw", **options: Any
    ) -> None:
        given: object = url
        scheme = given.partition("://")[0] if isinstance(given, str) else ""
        if scheme not in SCHEMES:
            raise ValueError(
                f"url={url!r} is not allowed: it must start with one of {[f'{each}://' for each in SCHEMES]}"
            )
        self._url = url
        self._client = "valkey" if scheme.startswith("valkey") else "redis"
        self.timeout = require_number("timeout", timeout, low=0.001, high=5)
        self._options: dict[str, Any] = {
            "socket_timeout": self.timeout,
            "socket_connect_timeout": self.timeout,
            "key_prefix": require_name("prefix", prefix),
            **options,
        }
        self.local: QuotaStore | None = MemoryQuotas()
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child, which must not speak on the connections of its parent."""
        self._making = threading.Lock()
        self._sync: RedisStorage | None = None
        self._async: dict[asyncio.AbstractEventLoop, AsyncRedisStorage] = {}

    def hit(self, quota: Quota, tenant: str, count: int) -> QuotaState:
        """Count a request if the quota has room for it.

        Raises:
            Exception: what the client raises.
        """
        storage = self._sync
        if storage is None:
            with self._making:
                storage = self._sync = self._sync or RedisStorage(
                    self._url, **self._options, retry=self._once("retry")
                )
        item = _item(quota)
        if SlidingWindow(storage).hit(item, quota.name, tenant, cost=count):
            return ALLOWED
        return _refused(quota, count, storage, item.key_for(quota.name, tenant))

    async def hit_soon(self, quota: Quota, tenant: str, count: int) -> QuotaState:
        """Count a request as `hit` does, without holding up the event loop.

        Raises:
            Exception: what the client raises.
        """
        loop = asyncio.get_running_loop()
        storage = self._async.get(loop) or self._made(loop)
        item = _item(quota)
        if await AsyncSlidingWindow(storage).hit(item, quota.name, tenant, cost=count):
            return ALLOWED
        found = await storage.get_sliding_window(item.key_for(quota.name, tenant), quota.window)
        return sliding_state(quota, count, *found)

    def close(self) -> None:
        """Close the connections of threads. The next request opens new ones."""
        with self._making:
            storage, self._sync = self._sync, None
        if storage is not None:
            storage.storage.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The next request opens new ones."""
        storage = self._async.pop(asyncio.get_running_loop(), None)
        if storage is not None:
            bridge: Any = storage.bridge  # its type leaves out what all clients have
            await bridge.get_connection().aclose()

    def _made(self, loop: asyncio.AbstractEventLoop) -> AsyncRedisStorage:
        with self._making:
            self._async = {each: kept for each, kept in self._async.items() if not each.is_closed()}
            made = self._async[loop] = AsyncRedisStorage(
                f"async+{self._url}",
                implementation="valkey" if self._client == "valkey" else "redispy",
                **self._options,
                retry=self._once("asyncio.retry"),
            )
        return made

    def _once(self, module: str) -> Any:
        """Return the client's policy of not trying again: a request that waits for the store is late already."""
        backoff = import_module(f"{self._client}.backoff").NoBackoff()
        return import_module(f"{self._client}.{module}").Retry(backoff, 0)


def _item(quota: Quota) -> RateLimitItemPerSecond:
    return RateLimitItemPerSecond(quota.amount, quota.window)


def _refused(quota: Quota, count: int, storage: MemoryStorage | RedisStorage, key: str) -> QuotaState:
    return sliding_state(quota, count, *storage.get_sliding_window(key, quota.window))
