r"""Payments that happen once: the key of a request and its payment are one transaction.

    python examples/paid_once.py 8000 payments.db      needs: pip install "resilient-mw[fastapi,sqlalchemy]" uvicorn

    curl -X POST localhost:8000/payments -H 'Idempotency-Key: "order-7"' -H 'X-Account: ann' \
         -H 'Content-Type: application/json' -d '{"amount": 5}'

However often that is sent, and whenever the process is killed: one payment is written, and everybody gets its answer.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Response
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.idempotency import IdempotencyPolicy, idempotent_route
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
from resilient_mw_integrations.sqlalchemy import create_table, idempotent

FILE = sys.argv[2] if len(sys.argv) > 2 else "payments.db"
engine = create_engine(f"sqlite:///{FILE}")


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        create_table(connection)
    yield
    engine.dispose()


app = FastAPI(lifespan=lifespan)
# The one that is added last is the outermost: admission first, then idempotency.
app.add_middleware(
    IdempotencyMiddleware,
    policy=IdempotencyPolicy(caller="X-Account"),
    store=SQLiteIdempotencyStore(FILE),  # of routes without a transaction of their own, in the same table
)
app.add_middleware(ResilienceMiddleware, policy=ServerPolicy(limit=20, deadline_default=10.0))


@app.post("/payments")
@idempotent_route(in_transaction=True)
def pay(payment: dict[str, int]) -> Response:
    with Session(engine) as session, idempotent(session) as op:
        if not op.replayed:
            made = Payment(amount=payment["amount"])
            session.add(made)
            session.flush()
            op.complete(201, json={"id": made.id})
    return Response(op.stored().body, op.stored().status, dict(op.headers()))


@app.get("/payments")
def total() -> dict[str, int]:
    with Session(engine) as session:
        return {"payments": session.scalar(select(func.count()).select_from(Payment)) or 0}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
