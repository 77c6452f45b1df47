"""A service that writes each payment into a ledger, for processes of their own: `asgi` (FastAPI) or `wsgi` (Flask).

The first payment takes as long as the query says. Arguments: the protocol, the number of a listening socket, the file of the keys, the ledger, and the lease in seconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from resilient_mw import ServerPolicy
from resilient_mw.idempotency import IdempotencyPolicy, idempotent_route
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore

PROTOCOL, SOCKET, KEYS, LEDGER, LEASE = sys.argv[1:]


def write_down(key: str) -> None:
    """Make the payment: one line, in one write."""
    with Path(LEDGER).open("ab", buffering=0) as ledger:
        ledger.write(f"{key} {os.getpid()}\n".encode())


def count() -> int:
    return Path(LEDGER).read_bytes().count(b"\n")


POLICY = IdempotencyPolicy(
    caller="X-Client-Id", lease=float(LEASE), on_unknown="retry", max_wait=60.0, store_timeout=20.0
)
OUTER = ServerPolicy(limit=4, queue=40, deadline_default=60.0, max_wait=60.0)
STORE = SQLiteIdempotencyStore(KEYS, durable=False)


def serve_asgi(listening: socket.socket) -> None:
    import uvicorn
    from fastapi import FastAPI, Header

    from resilient_mw.asgi import ResilienceMiddleware
    from resilient_mw.asgi.idempotency import IdempotencyMiddleware

    app = FastAPI()

    @app.post("/payments", status_code=201)
    @idempotent_route(required=True)
    async def pay(takes: float = 0, idempotency_key: str = Header()) -> dict[str, Any]:
        write_down(idempotency_key)
        await asyncio.sleep(takes if count() == 1 else 0)
        return {"payment": count()}

    app.add_middleware(IdempotencyMiddleware, policy=POLICY, store=STORE)
    app.add_middleware(ResilienceMiddleware, policy=OUTER)
    config = uvicorn.Config(app, log_level="error", lifespan="on")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


def serve_wsgi(listening: socket.socket) -> None:
    import waitress
    from flask import Flask, request

    from resilient_mw.wsgi import ResilienceMiddleware
    from resilient_mw.wsgi.idempotency import IdempotencyMiddleware

    app = Flask(__name__)

    @app.post("/payments")
    @idempotent_route(required=True)
    def pay() -> tuple[dict[str, Any], int]:
        write_down(request.headers["Idempotency-Key"])
        time.sleep(float(request.args.get("takes", 0)) if count() == 1 else 0)
        return {"payment": count()}, 201

    app.wsgi_app = ResilienceMiddleware(  # type: ignore[method-assign]
        IdempotencyMiddleware(app.wsgi_app, POLICY, store=STORE), OUTER
    )
    waitress.serve(app, sockets=[listening], threads=48)


if __name__ == "__main__":
    # Whoever started this may be gone.
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    {"asgi": serve_asgi, "wsgi": serve_wsgi}[PROTOCOL](socket.socket(fileno=int(SOCKET)))
