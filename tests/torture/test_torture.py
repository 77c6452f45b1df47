"""The torture in its short form; `make torture` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.redis_server import SERVER
from tests.runtime.postgres_server import find_binaries
from tests.torture.places import PLACES
from tests.torture.report import table
from tests.torture.run import Plan, Result, run

CASES = [
    pytest.param("sqlite", "sqlalchemy", id="sqlite-sqlalchemy"),
    pytest.param("sqlite", "ask", id="sqlite-ask"),
    pytest.param("sqlite", "refuse", id="sqlite-refuse"),
    pytest.param("postgres", "psycopg", id="postgres-psycopg", marks=pytest.mark.postgres),
    pytest.param("redis", "ask", id="redis-ask"),
]


def silent(_: Result, __: int) -> None:
    """Show nothing."""


@pytest.mark.parametrize(("store", "form"), CASES)
async def test_each_payment_is_made_exactly_once(store: str, form: str, tmp_path: Path) -> None:
    """B86: two servers, one killed now and then, the store away now and then, clients who leave and ask again."""
    if store == "postgres" and find_binaries() is None:
        pytest.skip("there is no PostgreSQL on this machine")
    if store == "redis" and SERVER is None:
        pytest.skip("there is no Redis on this machine")
    plan = Plan(form=form, payments=160, kill_every=40, stops=1, lease=1.5, within=120.0)
    result = await run(PLACES[store](tmp_path), plan, tmp_path, silent)
    assert not result.violations, table([result])
    assert result.kills
    assert result.stops
    if form == "refuse":
        assert result.settled == 0
