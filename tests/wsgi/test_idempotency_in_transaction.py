"""Routes of WSGI applications that take their key in a transaction of their own."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from resilient_mw import Reason
from resilient_mw.idempotency import IdempotencyPolicy, IdempotencyRoute, IdempotencyRule
from resilient_mw.idempotency.transaction import refused
from resilient_mw.runtime.handed import HANDED
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.transactions.sqlite import idempotent
from resilient_mw.wsgi.idempotency import IdempotencyMiddleware
from tests.transactions.ledgers import make_sqlite

ROUTE = IdempotencyRoute("/payments", IdempotencyRule(in_transaction=True))


def guarded(app: Any) -> IdempotencyMiddleware:
    policy = IdempotencyPolicy(single_tenant=True, routes=(ROUTE,))
    return IdempotencyMiddleware(app, policy, store=MemoryIdempotencyStore())


def post(app: Any, body: bytes = b"{}", key: str | None = '"k-1"') -> tuple[str, dict[str, str], bytes]:
    seen: list[Any] = []
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/payments",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
    }
    if key is not None:
        environ["HTTP_IDEMPOTENCY_KEY"] = key
    result = app(environ, lambda status, headers, exc=None: seen.append((status, dict(headers))))
    try:
        data = b"".join(result)
    finally:
        getattr(result, "close", lambda: None)()
    status, headers = seen[-1]
    return status[:3], headers, data


@pytest.mark.parametrize("streams", [False, True])
def test_the_key_the_caller_and_the_payload_are_the_middlewares(tmp_path: Path, streams: bool) -> None:
    path = make_sqlite(tmp_path / "ledger.db")

    def works(environ: Any, start_response: Any) -> bytes:
        environ["wsgi.input"].read()
        with closing(sqlite3.connect(path)) as connection, idempotent(connection) as op:
            if not op.replayed:
                connection.execute("INSERT INTO payments (amount) VALUES (1)")
                op.complete(201, json={"paid": 1})
        start_response("201 Created", op.headers())
        return op.stored().body or b""

    def generator(environ: Any, start_response: Any) -> Iterable[bytes]:
        yield works(environ, start_response)

    def function(environ: Any, start_response: Any) -> Iterable[bytes]:
        return [works(environ, start_response)]

    app = guarded(generator if streams else function)
    first, second = post(app), post(app)
    assert (first[0], first[2]) == (second[0], second[2]) == ("201", b'{"paid":1}')
    assert second[1]["Idempotency-Replayed"] == "true"
    assert post(app, key=None)[0] == "400"
    assert HANDED.get() is None
    if not streams:
        assert post(app, b"{...}")[0] == "422"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM payments").fetchone() == (1,)


def test_a_refusal_takes_the_place_of_a_head_that_was_not_sent() -> None:
    def app(_: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        raise refused(Reason.IDEMPOTENCY_IN_PROGRESS, 1)

    status, headers, _ = post(guarded(app))
    assert status == "409"
    assert headers["Retry-After"] == "1"
