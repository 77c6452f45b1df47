"""`resilient-mw idempotency` on the stores that several machines use, named by their URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.cli.main import main
from resilient_mw.idempotency import About, Begun, Claim, IdempotencyStore, StoredAnswer
from resilient_mw_integrations.postgres import PostgresIdempotencyStore
from resilient_mw_integrations.redis import RedisIdempotencyStore
from tests.integrations.redis_server import RedisServer, redis_server
from tests.runtime.postgres_server import find_binaries, running

__all__ = ["redis_server"]

BINARIES = find_binaries()
pytestmark = pytest.mark.usefixtures("entry_points")


@pytest.fixture(scope="module")
def postgres() -> Iterator[int]:
    assert BINARIES is not None
    with running(BINARIES) as port:
        yield port


def said(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["idempotency", *arguments, "--store", url, "--timeout", "20"])
    return (status, *capsys.readouterr())


def look_after(store: IdempotencyStore, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Do all that an operator does."""
    about = About(key="order-7", method="POST", route="/payments")
    claims = [Claim(record=digit * 64, token=digit, about=about, lease=600.0) for digit in "abc"]
    for claim in claims:
        assert isinstance(store.begin(claim), Begun)
    store.abandon(claims[1], "unknown")
    store.complete(claims[2], StoredAnswer(201, ((b"Location", b"/payments/7"),), b"paid"))

    def page(*arguments: str) -> Any:
        return json.loads(said(capsys, url, "list", "--json", *arguments)[1])

    assert [(row["record"][0], row["state"]) for row in page()["records"]] == [
        ("a", "running"), ("b", "unknown"), ("c", "completed"),
    ]  # fmt: skip
    first = page("--limit", "2")
    assert [row["record"][0] for row in page("--after", first["next"])["records"]] == ["c"]
    assert [row["record"][0] for row in page("--state", "unknown", "--key", "order-7")["records"]] == ["b"]
    status, out, _ = said(capsys, url, "show", "cccccc", "--answer")
    assert (status, "Location: /payments/7" in out, "  paid" in out) == (0, True, True)
    assert said(capsys, url, "release", "aaaaaa")[0] == 1
    assert said(capsys, url, "release", "aaaaaa", "--running")[0] == 0
    assert said(capsys, url, "release", "bbbbbb")[0] == 0
    assert [row["record"][0] for row in page()["records"]] == ["c"]
    assert said(capsys, url, "purge")[:2] == (0, "0 expired records removed\n")


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_an_operator_of_redis(
    scheme: str, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = redis_server.url.replace("redis://", f"{scheme}://")
    store = RedisIdempotencyStore(url)
    try:
        look_after(store, url, capsys)
    finally:
        store.close()
    redis_server.kill()
    capsys.readouterr()
    assert main(["idempotency", "list", "--store", url, "--timeout", "0.2"]) == 3
    assert "the store cannot be used" in capsys.readouterr().err


@pytest.mark.postgres
@pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL binaries")
def test_an_operator_of_postgresql(postgres: int, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"postgresql://postgres:secret@127.0.0.1:{postgres}/postgres"
    status, out, err = said(capsys, url, "list")
    assert (status, out) == (3, "")  # nothing is made: there is no table yet
    assert "resilient_mw_idempotency" in err
    assert "secret" not in err
    store = PostgresIdempotencyStore(url)
    try:
        store.create(timeout=20)
        look_after(store, url, capsys)
    finally:
        store.close()


@pytest.mark.parametrize(
    "url", ["postgresql://app:secret@[db/shop", "redis://:secret@host:no/0", "rediss://:secret@[host/0"]
)
def test_a_url_that_is_none(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = said(capsys, url, "list")
    assert (status, out) == (2, "")
    assert "the URL cannot be used" in err
    assert "secret" not in err
