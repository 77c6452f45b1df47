"""Idempotency keys in Redis or Valkey: quick, for any number of machines, and as durable as that server is set up to be.

    from resilient_mw_integrations.redis import AsyncRedisIdempotencyStore

    store = AsyncRedisIdempotencyStore("redis://cache:6379")

Each transition is one call of one Lua script, so that nothing comes in between, with the server's clock as the only one. Records
end by themselves.

What can be lost, and with it the knowledge that a key was used, so that its next request runs again:

- without an append-only file, all records since the last snapshot, when the server ends; with `appendfsync everysec`, those of
  the last second or two, when the machine ends; with `appendfsync always`, none;
- with replicas, what they had not received when one of them takes over, since Redis answers before they have it;
- under any `maxmemory-policy` but `noeviction`, records that the server throws away to make room.

And the record is not in the transaction of the work: a process that is killed between the two leaves an unknown outcome, which the
route's `on_unknown` settles.
"""

from __future__ import annotations

from typing import Any

from resilient_mw.core.checks import require_integer
from resilient_mw_integrations._redis_lines import AsyncRedisLine, RedisLine
from resilient_mw_integrations._redis_questions import PREFIX, RedisQuestions
from resilient_mw_integrations._store_faces import AsyncFace, BlockingFace

__all__ = ["AsyncRedisIdempotencyStore", "RedisIdempotencyStore"]


class RedisIdempotencyStore(BlockingFace):
    """Idempotency keys in Redis 6.2 or newer, or Valkey. An `IdempotencyStore` for all machines that reach the server.

    Args:
        server: a URL; or a client of redis-py or valkey-py, by whose settings the store makes connections of its own (those of
            a cluster are used as they are, with their own time limits).
        prefix: of all keys; also their hash tag, so that one store is in one slot of a cluster.
        connections: at most so many; no more transitions than that are under way at one time.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    def __init__(self, server: Any, *, prefix: str = PREFIX, connections: int = 16) -> None:
        require_integer("RedisIdempotencyStore.connections", connections, low=1, high=10_000)
        super().__init__(RedisQuestions(prefix), RedisLine(server, connections))


class AsyncRedisIdempotencyStore(AsyncFace):
    """The same for an event loop. An `AsyncIdempotencyStore`.

    Args:
        server: a URL, or an asyncio client.
        prefix: as of `RedisIdempotencyStore`.
        connections: as of `RedisIdempotencyStore`.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    def __init__(self, server: Any, *, prefix: str = PREFIX, connections: int = 64) -> None:
        require_integer("AsyncRedisIdempotencyStore.connections", connections, low=1, high=10_000)
        super().__init__(RedisQuestions(prefix), AsyncRedisLine(server, connections))
