"""Routes that take their key in a transaction of their own: the middleware checks it and hands it over."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from resilient_mw import Reason
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.idempotency import IdempotencyPolicy, IdempotencyRoute, IdempotencyRule, State
from resilient_mw.idempotency.transaction import refused
from resilient_mw.runtime.handed import HANDED
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
from resilient_mw.transactions.sqlite import idempotent
from tests.asgi.driver import Request, http_scope
from tests.transactions.ledgers import make_sqlite

IN_TRANSACTION = IdempotencyRoute("/payments", IdempotencyRule(in_transaction=True))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return make_sqlite(tmp_path / "ledger.db")


class Payments:
    """Writes a payment in one transaction with its key."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        with closing(sqlite3.connect(self.path)) as connection, idempotent(connection) as op:
            if not op.replayed:
                connection.execute("INSERT INTO payments (amount) VALUES (1)")
                op.complete(201, json={"paid": 1})
        lines = [(name.lower().encode(), value.encode()) for name, value in op.headers()]
        await send({"type": "http.response.start", "status": op.stored().status, "headers": lines})
        await send({"type": "http.response.body", "body": op.stored().body})

    def count(self) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            found: int = connection.execute("SELECT count(*) FROM payments").fetchone()[0]
            return found


def guarded(app: Any, **facts: Any) -> IdempotencyMiddleware:
    policy = IdempotencyPolicy(single_tenant=True, routes=(IN_TRANSACTION,), **facts)
    return IdempotencyMiddleware(app, policy, store=MemoryIdempotencyStore())


async def post(app: Any, key: bytes | None = b'"k-1"', body: tuple[bytes, ...] = (b"{}",)) -> Request:
    headers = [] if key is None else [(b"idempotency-key", key)]
    request = Request(app, http_scope("/payments", "POST", headers=headers), body=body)
    await request.run()
    return request


async def test_the_key_the_caller_and_the_payload_are_the_middlewares(path: str) -> None:
    payments = Payments(path)
    app = guarded(payments)
    first, second = await post(app), await post(app)
    assert (first.status, first.body) == (201, b'{"paid":1}')
    assert (second.status, second.body) == (201, b'{"paid":1}')
    assert second.header("idempotency-replayed") == "true"
    other = await post(app, body=(b"{...}",))
    assert other.status == 422
    assert payments.count() == 1
    assert app.store._store.records() == []  # type: ignore[attr-defined]
    assert HANDED.get() is None


async def test_a_body_that_is_longer_than_was_read_counts_once_the_handler_has_read_it(path: str) -> None:
    payments = Payments(path)
    app = guarded(payments, buffer_request=4)
    first = await post(app, body=(b"0123", b"4567", b"89"))
    same = await post(app, body=(b"0123456789",))
    other = await post(app, body=(b"0123456789!",))
    assert [first.status, same.status, other.status] == [201, 201, 422]
    assert payments.bodies == [b"0123456789", b"0123456789", b"0123456789!"]
    assert payments.count() == 1


async def test_the_key_is_required_and_checked(path: str) -> None:
    app = guarded(Payments(path))
    assert (await post(app, None)).status == 400
    assert (await post(app, b"")).status == 400
    assert (await post(app, b'"a", "b"')).status == 400


async def test_store_and_transaction_see_each_others_records(path: str) -> None:
    app = guarded(Payments(path))
    await post(app)
    store = SQLiteIdempotencyStore(path)
    (record,) = store.records()
    assert (record.state, record.about.key, record.about.route) == (State.COMPLETED, "k-1", "/payments")
    whole = store.look(record.record)
    assert whole is not None
    assert whole.answer is not None
    assert whole.answer.body == b'{"paid":1}'
    assert store.release(record.record)
    store.close()
    assert (await post(app)).header("idempotency-replayed") is None


async def test_a_handler_that_has_begun_its_answer_fails(path: str) -> None:
    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise refused(Reason.IDEMPOTENCY_IN_PROGRESS, 1)

    request = await post(guarded(app))
    assert isinstance(request.raised, IdempotencyRefused)
    assert len(request.starts) == 1
