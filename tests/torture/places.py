"""Where the stores under torture are, and how they are stopped and started."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, Protocol

from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
from resilient_mw_integrations.postgres import PostgresIdempotencyStore
from tests.integrations.redis_server import SERVER, RedisServer
from tests.runtime.postgres_server import PostgresServer, find_binaries, serving
from tests.torture.ledger import Ledger, PostgresLedger, SQLiteLedger


class Place(Protocol):
    """Where the records are."""

    name: str

    @property
    def where(self) -> str:
        """What a server process needs to find it."""
        ...

    def start(self) -> None:
        """Have it there."""
        ...

    def ledger(self) -> Ledger:
        """Return a ledger in the same database, once it is there.

        Raises:
            ValueError: there is none.
        """
        ...

    def interrupt(self, seconds: float) -> None:
        """Have it away for so many seconds, and return when it is back."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class SQLitePlace:
    """A file. It is away while somebody else has its only lock for writing."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "keys.sqlite"

    @property
    def where(self) -> str:
        """As of `Place`."""
        return str(self._path)

    def start(self) -> None:
        """As of `Place`."""
        with closing(SQLiteIdempotencyStore(self._path)) as store:
            store.create()

    def ledger(self) -> Ledger:
        """As of `Place`."""
        return SQLiteLedger(self._path)

    def interrupt(self, seconds: float) -> None:
        """As of `Place`."""
        with closing(sqlite3.connect(self._path, timeout=10.0, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")

    def close(self) -> None:
        """As of `Place`: nothing runs."""


class PostgresPlace:
    """A server, which is stopped as a crash would."""

    name = "postgres"

    def __init__(self, _: Path) -> None:
        self._stack = ExitStack()
        self._server: PostgresServer | None = None

    @property
    def where(self) -> str:
        """As of `Place`."""
        return self._running().dsn

    def start(self) -> None:
        """As of `Place`."""
        binaries = find_binaries()
        if binaries is None:
            raise RuntimeError("there is no PostgreSQL (initdb, pg_ctl) on this machine")
        self._server = self._stack.enter_context(serving(binaries))
        store = PostgresIdempotencyStore(self.where)
        try:
            store.create()
        finally:
            store.close()

    def ledger(self) -> Ledger:
        """As of `Place`."""
        return PostgresLedger(self.where)

    def interrupt(self, seconds: float) -> None:
        """As of `Place`."""
        server = self._running()
        server.stop()
        time.sleep(seconds)
        server.start()

    def close(self) -> None:
        """As of `Place`."""
        self._stack.close()

    def _running(self) -> PostgresServer:
        if self._server is None:
            raise RuntimeError("the server was not started")
        return self._server


class RedisPlace:
    """A server with an append-only file, which is killed."""

    name = "redis"

    def __init__(self, folder: Path) -> None:
        if SERVER is None:
            raise RuntimeError("there is no redis-server or valkey-server on this machine")
        # What is not in the file when Redis answers is lost with it, and its keys run again.
        self._server = RedisServer(folder, "--appendonly", "yes", "--appendfsync", "always")

    @property
    def where(self) -> str:
        """As of `Place`."""
        return self._server.url

    def start(self) -> None:
        """As of `Place`."""
        self._server.start()

    def ledger(self) -> Ledger:
        """As of `Place`."""
        raise ValueError("Redis has no transactions in which there is a ledger")

    def interrupt(self, seconds: float) -> None:
        """As of `Place`."""
        self._server.kill()
        time.sleep(seconds)
        self._server.start()

    def close(self) -> None:
        """As of `Place`."""
        self._server.kill()


PLACES: Final[dict[str, Callable[[Path], Place]]] = {
    "sqlite": SQLitePlace,
    "postgres": PostgresPlace,
    "redis": RedisPlace,
}
