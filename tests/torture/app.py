"""The service under torture: takes payments, each with an idempotency key, and writes them into a ledger.

In the forms `ask` and `refuse` the middleware keeps the keys and the handler writes into a ledger elsewhere, so that a kill
can fall between the two. In `ask` the ledger is asked what became of a payment, in `refuse` nobody is. In the forms `sqlalchemy`
and `psycopg` the handler itself has key and payment in one transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from resilient_mw import ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.core.rejection import REFUSAL_RULES
from resilient_mw.idempotency import About, IdempotencyPolicy, StoredAnswer, Verdict
from tests.torture.ledger import Entry, SQLiteLedger
from tests.torture.opened import opened
from tests.torture.transactions import TRANSACTIONS, Asked, payer

FORM: Final = os.environ["TORTURE_FORM"]
PLACE: Final = os.environ["TORTURE_STORE"]
LEASE: Final = float(os.environ["TORTURE_LEASE"])
LEDGER: Final = SQLiteLedger(Path(os.environ["TORTURE_LEDGER"]))
EVENTS: Final = os.open(os.environ["TORTURE_EVENTS"], os.O_WRONLY | os.O_APPEND)
"""One letter for each thing that happens, from both processes: what one of them counted itself would die with it."""

RAN, CANCELLED, FOUND_DONE, FOUND_UNDONE = b"r", b"c", b"d", b"u"
MOMENT: Final = 0.006
"""Seconds of work before and after the effect, at most: where kills and hang-ups fall."""


def happened(event: bytes) -> None:
    """Write an event down."""
    os.write(EVENTS, event)


def answer_of(entry: Entry) -> bytes:
    """Return the body of the answer."""
    return json.dumps({"id": entry.id, "key": entry.key, "amount": entry.amount}).encode()


async def pay(request: Request) -> Response:
    """Make a payment. The effect and the record of the key are two steps."""
    happened(RAN)
    amount = (await request.json())["amount"]
    key = request.headers["idempotency-key"].strip('"')
    try:
        await asyncio.sleep(random.random() * MOMENT)
        until = time.monotonic() + current().remaining()
        # The thread goes on whatever becomes of this task: it is waited for, so that the record says what the ledger does.
        async with current().shield(4 * LEASE):
            number = await asyncio.to_thread(LEDGER.pay, key, amount, until)
        await asyncio.sleep(random.random() * MOMENT)
    except asyncio.CancelledError:
        happened(CANCELLED)
        raise
    return Response(answer_of(Entry(number, key, amount)), 201, media_type="application/json")


async def pay_in_transaction(request: Request) -> Response:
    """Make a payment. Effect and record are one step."""
    amount = (await request.json())["amount"]
    asked = Asked(request.headers["idempotency-key"].strip('"'), request.headers["x-client"], amount)
    try:
        operation = await PAY(asked)
    except IdempotencyRefused as error:
        rule = REFUSAL_RULES[error.reason]
        return JSONResponse({"reason": error.reason}, rule.status, media_type="application/problem+json")
    except asyncio.CancelledError:
        happened(CANCELLED)
        raise
    if not operation.replayed:
        happened(RAN)
    answer = operation.answer
    if answer is None:
        raise RuntimeError("there is no answer")
    return Response(answer.body, answer.status, dict(operation.headers()))


def status(about: About) -> Verdict:
    """Say what became of a payment whose outcome is unknown."""
    entry = LEDGER.find(about.key)
    happened(FOUND_UNDONE if entry is None else FOUND_DONE)
    if entry is None:
        return "not_done"
    return StoredAnswer(201, ((b"content-type", b"application/json"),), answer_of(entry))


def end_with_parent() -> None:
    """End this process when the one that has started it is gone."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def kept_by_middleware() -> Any:
    """Return the application whose keys the middleware keeps."""
    policy = IdempotencyPolicy(
        caller="x-client",
        use="required",
        lease=LEASE,
        store_timeout=LEASE / 3,
        on_unknown=status if FORM == "ask" else "refuse",
    )
    routes = Starlette(routes=[Route("/payments", pay, methods=["POST"])])
    return IdempotencyMiddleware(routes, policy, store=opened(PLACE))


if "TORTURE_WATCH" in os.environ:
    end_with_parent()
inner: Any
if FORM in TRANSACTIONS:
    PAY, lifespan = payer(FORM, PLACE, MOMENT)
    inner = Starlette(routes=[Route("/payments", pay_in_transaction, methods=["POST"])], lifespan=lifespan)
else:
    inner = kept_by_middleware()
# Admission first. The deadline comes well before the lease is over: an attempt that lost its lease must not write any more.
app = ResilienceMiddleware(inner, ServerPolicy(limit=64, deadline_default=LEASE / 2))
