"""The Redis store under the suite that users run on theirs: both faces, both clients, on a real server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey

from resilient_mw.idempotency import IdempotencyStore
from resilient_mw.testing.idempotency_faces import blocking_face, cancelled_begins_leave_nothing
from resilient_mw.testing.idempotency_store import IdempotencyStoreSuite, used
from resilient_mw_integrations.redis import AsyncRedisIdempotencyStore, RedisIdempotencyStore
from tests.integrations.redis_server import SERVER, RedisServer

pytestmark = pytest.mark.skipif(SERVER is None, reason="no Redis server")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a server that is a node of a cluster, which refuses a call whose keys are in several slots."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        bus = str(free.getsockname()[1])
    options = ("--cluster-enabled", "yes", "--cluster-port", bus)
    server = RedisServer(tmp_path_factory.mktemp("redis"), *options)
    server.start()
    try:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True):
                time.sleep(0.01)
        yield server.url
    finally:
        server.kill()


class OnServer(IdempotencyStoreSuite):
    """Time passes at once: everything that is recorded is moved into the past."""

    lease = 60.0
    rivals = 24
    url: str

    @pytest.fixture(autouse=True)
    def _server(self, url: str) -> None:
        self.url = url
        with redis.Redis.from_url(url) as client:
            client.flushall()

    def pass_time(self, seconds: float) -> None:
        by = round(seconds * 1000)
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            for key in client.scan_iter(_type="zset"):
                for name, score in client.zscan_iter(key):
                    client.zincrby(key, -by if score else 0, name)
            for key in client.scan_iter(_type="hash"):
                for field in ("began", "lease_until", "expires"):
                    client.hincrby(key, field, -by)
                client.pexpireat(key, int(client.hget(key, "expires") or 0))


class TestBlocking(OnServer):
    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        with used(RedisIdempotencyStore(self.url)) as store:
            yield store


class TestClient(OnServer):
    """A client of somebody else, that decodes answers; of Valkey."""

    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        client: Any = valkey.Valkey.from_url(self.url, decode_responses=True)
        with used(RedisIdempotencyStore(client, prefix="keys")) as store:
            yield store
        client.close()


class TestCluster(OnServer):
    """A client of a cluster."""

    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        client: Any = redis.RedisCluster.from_url(self.url)
        with used(RedisIdempotencyStore(client)) as store:
            yield store
        client.close()


class TestAsync(OnServer):
    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        face = blocking_face(AsyncRedisIdempotencyStore(redis.asyncio.Redis.from_url(self.url)))
        try:
            with used(face):
                yield face
        finally:
            face.stop()


async def test_a_cancelled_begin_leaves_nothing(url: str) -> None:
    tests = IdempotencyStoreSuite()
    store = AsyncRedisIdempotencyStore(url)
    await cancelled_begins_leave_nothing(store, [tests.claim() for _ in range(20)])
    await store.close()
