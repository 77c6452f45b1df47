"""Payments that are made once, however often they are sent.

Run it, and send the same key twice:

python examples/idempotency.py 8000 keys.db      needs: pip install "resilient-mw[fastapi]" uvicorn
curl -i localhost:8000/payments -H 'Idempotency-Key: "k-1"' -H 'X-Client-Id: me' -H 'Content-Type: application/json' -d '{"amount": 5}'
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.idempotency import IdempotencyPolicy, idempotent_route
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore


class Payment(BaseModel):
    """What is to be paid."""

    amount: int


app = FastAPI()
made: list[int] = []


@app.post("/payments", status_code=201)
@idempotent_route(required=True)
async def pay(payment: Payment) -> dict[str, int]:
    """Make a payment, which takes a while."""
    await asyncio.sleep(0.2)
    made.append(payment.amount)
    return {"number": len(made)}


@app.get("/payments")
async def payments() -> list[int]:
    """List what was paid."""
    return made


def main(port: int, file: str) -> None:
    """Serve."""
    app.add_middleware(
        IdempotencyMiddleware,
        policy=IdempotencyPolicy(caller="X-Client-Id"),
        store=SQLiteIdempotencyStore(file),
    )
    app.add_middleware(ResilienceMiddleware, policy=ServerPolicy(limit=20))  # added last: outermost
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
