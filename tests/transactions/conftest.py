"""Databases of the tests: a file each for SQLite, one PostgreSQL server for the session, emptied for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runtime.postgres_server import find_binaries, running
from tests.transactions.ledgers import ASYNC, BLOCKING, AsyncLedger, Ledger, make_postgres, make_sqlite

BINARIES = find_binaries()


@pytest.fixture(scope="session")
def conninfo() -> Iterator[str]:
    assert BINARIES is not None, "no PostgreSQL binaries"
    with running(BINARIES) as port:
        yield f"host=127.0.0.1 port={port} user=postgres dbname=postgres"


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Return what gives an empty database, started when it is first asked for."""
    return lambda: make_postgres(request.getfixturevalue("conninfo"))


@pytest.fixture(params=BLOCKING)
def ledger(request: pytest.FixtureRequest, tmp_path: Path, postgres: Callable[[], str]) -> Ledger:
    name: str = request.param
    url = postgres() if name.endswith("psycopg") else make_sqlite(tmp_path / "ledger.db")
    return BLOCKING[name](url)


@pytest.fixture(params=ASYNC)
def async_ledger(request: pytest.FixtureRequest, postgres: Callable[[], str]) -> AsyncLedger:
    return AsyncLedger(postgres(), ASYNC[request.param])
