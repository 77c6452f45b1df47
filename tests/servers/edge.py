"""Several protected applications in one process, each below a name of its own, for `test_edge_matrix.py`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from resilient_mw import PriorityClass, RouteRule, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from tests.servers import probe  # ends this process when the tests are gone

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
"""A peer that is trusted, and one that is not."""
BEHIND = "198.51.100.7"
"""A trusted caller behind the proxy that `HERE` is to `/hops`."""
SHOP = "https://shop.example"
MOST_BYTES = 50_000
LET_GO: dict[str, int] = {}
"""How often those who hold the slot of a path were let go."""
ONE_CLASS = [PriorityClass("normal", weight=1)]


async def _respond(send: Any, status: int, found: object) -> None:
    body = json.dumps(found).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def told(scope: Any, receive: Any, send: Any) -> None:
    """Say what was left at the start, and how large the body was; wait meanwhile where the path says so."""
    left = current().remaining()
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    if scope["path"].endswith("/hold"):
        await asyncio.sleep(0.3)
    if scope["path"].endswith("/held"):
        before = LET_GO.get(scope["path"], 0)
        for _ in range(3000):
            if LET_GO.get(scope["path"], 0) > before:
                break
            await asyncio.sleep(0.01)
    if scope["path"].endswith("/sleep"):
        await asyncio.sleep(30)
    await _respond(send, 200, {"left": left, "size": size})


POLICIES = {
    "budgets": ServerPolicy(
        trusted_peers=[f"{HERE}/32"],
        deadline_default=5.0,
        deadline_minimum=2.0,
        deadline_maximum=20.0,
        smallest_budget=0.05,
        deadline_response_header="X-Budget-Left-Ms",
        routes=[RouteRule("/budgets/quick", deadline_maximum=4.0, deadline_default=3.0)],
    ),
    "hops": ServerPolicy(
        trusted_peers=[f"{HERE}/32", f"{BEHIND}/32"],
        trusted_hops=1,
        deadline_default=5.0,
        deadline_maximum=20.0,
    ),
    "bodies": ServerPolicy(
        limit=2, queue=0, max_body=MOST_BYTES, routes=[RouteRule("/bodies/large", max_body=10 * MOST_BYTES)]
    ),
    "outside": ServerPolicy(limit=1, queue=0, classes=ONE_CLASS, cors_origins=[SHOP]),
    "inside": ServerPolicy(limit=1, queue=0, classes=ONE_CLASS),
}


def _protected(name: str) -> Any:
    protected: Any = ResilienceMiddleware(told, POLICIES[name])
    if name == "inside":
        return CORSMiddleware(
            protected,
            allow_origins=[SHOP],
            allow_methods=["PUT"],
            expose_headers=["Retry-After", "X-Refusal-Reason"],
        )
    return protected


APPLICATIONS = {name: _protected(name) for name in POLICIES}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        await probe.routed(scope, receive, send)
        return
    _, name, *rest = scope["path"].split("/")
    if rest[-1:] == ["go"]:
        held = scope["path"].removesuffix("/go")
        LET_GO[held] = LET_GO.get(held, 0) + 1
        await _respond(send, 200, None)
        return
    if name in APPLICATIONS:
        await APPLICATIONS[name](scope, receive, send)
        return
    snapshot = POLICIES[rest[0]].snapshot()
    ended: dict[str, int] = {}
    for route in snapshot.routes:
        for outcome, count in route.outcomes.items():
            ended[outcome] = ended.get(outcome, 0) + count
    slots = sum(each.slots for each in snapshot.classes)
    await _respond(
        send,
        200,
        {
            "slots": slots,
            "errors": snapshot.guard_errors,
            "ignored": dict(snapshot.ignored_headers),
            "ended": ended,
        },
    )
