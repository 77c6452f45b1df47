"""An application that is stopped while it works, for `test_stopping.py`."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from tests.servers import probe  # ends this process when the tests are gone

DELAY = float(os.environ.get("STOP_DELAY", "0"))
POLICY = ServerPolicy(
    drain_delay=DELAY, drain_timeout=float(os.environ.get("STOP_TIMEOUT", "20")), deadline_default=60.0
)


async def _respond(send: Any, body: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Any, send: Any) -> None:
    await receive()
    if os.environ.get("STOP_SIGNAL"):
        POLICY.drain_on_signal()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("shut down with in flight:", probe.SEEN.counts.get("running", 0), flush=True)
    await send({"type": "lifespan.shutdown.complete"})


async def served(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["path"] == "/readyz":
        readiness = POLICY.readiness()
        await _respond(send, json.dumps([os.getpid(), *readiness.reasons]).encode())
    elif scope["path"] == "/healthz":
        await _respond(send, json.dumps(probe.SEEN.counts.get("running", 0)).encode())
    else:
        probe.SEEN.count("running")
        try:
            await asyncio.sleep(float(scope["path"][1:]))
        except asyncio.CancelledError:
            print("cancelled", flush=True)
            raise
        finally:
            probe.SEEN.count("running", -1)
        await _respond(send, b"finished")


app = ResilienceMiddleware(served, POLICY)
