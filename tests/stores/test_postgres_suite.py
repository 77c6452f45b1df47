"""The PostgreSQL store under the suite that users run on theirs: both faces, a DSN and a pool, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from resilient_mw.idempotency import IdempotencyStore
from resilient_mw.testing.idempotency_faces import blocking_face, cancelled_begins_leave_nothing
from resilient_mw.testing.idempotency_store import IdempotencyStoreSuite, used
from resilient_mw_integrations.postgres import AsyncPostgresIdempotencyStore, PostgresIdempotencyStore
from tests.runtime.postgres_server import find_binaries, running

BINARIES = find_binaries()
pytestmark = [pytest.mark.postgres, pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL binaries")]


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    assert BINARIES is not None
    with running(BINARIES) as port:
        yield f"host=127.0.0.1 port={port} user=postgres dbname=postgres"


class OnServer(IdempotencyStoreSuite):
    """Time passes at once: everything that is recorded is moved into the past."""

    lease = 60.0
    rivals = 24
    table = "resilient_mw_idempotency"
    dsn: str

    @pytest.fixture(autouse=True)
    def _server(self, dsn: str) -> None:
        self.dsn = dsn
        with psycopg.connect(dsn) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {self.table}")

    def pass_time(self, seconds: float) -> None:
        moved = ", ".join(f"{each} = {each} - %(by)s" for each in ("began", "lease_until", "expires"))
        with psycopg.connect(self.dsn) as connection:
            connection.execute(f"UPDATE {self.table} SET {moved}", {"by": timedelta(seconds=seconds)})


class TestBlocking(OnServer):
    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        with used(PostgresIdempotencyStore(self.dsn)) as store:
            yield store


class TestPool(OnServer):
    """A pool of somebody else, whose connections are not in autocommit mode and give rows as mappings."""

    table = "keys"

    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        options = "-c default_transaction_isolation=serializable -c default_transaction_read_only=on"
        facts = {"row_factory": dict_row}
        with ConnectionPool(f"{self.dsn} options='{options}'", kwargs=facts, min_size=1, max_size=4) as pool:
            with used(PostgresIdempotencyStore(pool, table=self.table, schema="public")) as store:
                yield store
            with pool.connection() as connection:
                assert not connection.autocommit


class TestAsync(OnServer):
    @contextmanager
    def open_store(self) -> Iterator[IdempotencyStore]:
        face = blocking_face(AsyncPostgresIdempotencyStore(self.dsn))
        try:
            with used(face):
                yield face
        finally:
            face.stop()


async def test_a_cancelled_begin_leaves_nothing(dsn: str) -> None:
    tests = IdempotencyStoreSuite()
    store = AsyncPostgresIdempotencyStore(dsn)
    await store.create()
    await cancelled_begins_leave_nothing(store, [tests.claim() for _ in range(20)])
    await store.close()
