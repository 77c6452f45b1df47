"""An application with a bound on bodies, for `test_body_limit.py`: it reads, or answers first and reads then."""

from __future__ import annotations

import json
from typing import Any

from resilient_mw import RouteRule, ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.runtime.guard import guard_of
from tests.servers import probe  # ends this process when the tests are gone

LIMIT = 100_000
POLICY = ServerPolicy(limit=2, queue=0, max_body=LIMIT, routes=[RouteRule("/large", max_body=10 * LIMIT)])


async def _read(receive: Any) -> int:
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    return size


async def bounded(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        await probe.routed(scope, receive, send)
        return
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
    if scope["path"] == "/healthz":
        snapshot = guard_of(POLICY).snapshot()
        slots = sum(each.slots for each in snapshot.classes if each.priority != "exempt")
        ended: dict[str, int] = {}
        for route in snapshot.routes:
            for outcome, count in route.outcomes.items() if route.priority != "exempt" else ():
                ended[outcome] = ended.get(outcome, 0) + count
        body = json.dumps({"slots": slots, "errors": snapshot.guard_errors, "ended": ended}).encode()
        await send({**head, "headers": [(b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})
        return
    if scope["path"] == "/early":
        await send(head)
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    size = str(await _read(receive)).encode()
    if scope["path"] != "/early":
        await send({**head, "headers": [(b"content-length", str(len(size)).encode())]})
    await send({"type": "http.response.body", "body": size})


app = ResilienceMiddleware(bounded, POLICY)
