"""Applications that are loaded before a server forks its workers, in the worst of states, for `test_preload.py`."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from resilient_mw import Dependency, RouteRule, ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware as Asgi
from resilient_mw.runtime.dependency_owner import owner_of
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware as Wsgi
from tests.servers import probe  # ends this process when the tests are gone

LOADED_BY = os.getpid()
POLICY = ServerPolicy(limit=1, queue=0, routes=[RouteRule("/state", priority="exempt")])
PRICES = Dependency("prices", match="http://prices")


def _state() -> bytes:
    snapshot = POLICY.snapshot()
    return json.dumps(
        {
            "worker": os.getpid(),
            "loaded by": LOADED_BY,
            "slots": sum(each.slots for each in snapshot.classes if each.priority != "exempt"),
            "arrived": sum(each.arrived for each in snapshot.routes if each.priority != "exempt"),
            "random": guard_of(POLICY).controller.forecast._random.random(),
            "attempts": owner_of(PRICES).snapshot().in_use,
            "reasons": POLICY.readiness().reasons,
        }
    ).encode()


def served(environ: Any, start_response: Any) -> Any:
    if environ["PATH_INFO"] == "/forever":
        threading.Event().wait()
    body = _state() if environ["PATH_INFO"] == "/state" else b"hello"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


async def served_async(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await probe.routed(scope, receive, send)
        return
    body = _state() if scope["path"] == "/state" else b"hello"
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


application = Wsgi(served, POLICY)
app = Asgi(served_async, POLICY)


def _hold_locks() -> None:
    with guard_of(POLICY)._lock, owner_of(PRICES)._lock:
        held.set()
        threading.Event().wait()


# A request of this process that never ends holds the only slot, and a thread of it holds our locks for ever.
threading.Thread(target=ScriptedWSGI(application, path="/forever").run, daemon=True).start()
while not guard_of(POLICY).controller.slots.in_use:
    pass
held = threading.Event()
threading.Thread(target=_hold_locks, daemon=True).start()
held.wait()
