"""Measure what an idempotency key costs a FastAPI route, beside its peers.

    python benchmarks/idempotency.py [--rounds N] [--store memory] [--store redis] ...

A route that takes a small JSON body and does nothing, called in process: CPU time of the process per request (a store's own server is another process), and
time by the clock; rounds interleaved so that a drift of the machine hits everybody alike; medians. Redis and PostgreSQL are
started for the run, on loopback. For each store: the route as it is, a request without a key, the first request of a key, and
its repeat.

Ours is also measured against its promise: a repeat costs at most half of the route, beyond one round trip to the store (a `begin`
that finds the record, as the middleware asks it). The route is measured for that after such a round trip. Read the ratios: absolute figures belong to the machine. Exit status 1: the
promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import idemkit
from fastapi import FastAPI
from idemkit.backends.postgres import init_pg
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import MemoryBackend
from idempotency_header_middleware.backends import RedisBackend as HeaderRedisBackend
from pydantic import BaseModel
from redis.asyncio import Redis

sys.path[:0] = [str(Path(__file__).parents[1])]

from resilient_mw.asgi.idempotency import IdempotencyMiddleware  # noqa: E402
from resilient_mw.idempotency import Claim, Found, IdempotencyPolicy  # noqa: E402
from resilient_mw.stores.memory import MemoryIdempotencyStore  # noqa: E402
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore  # noqa: E402
from resilient_mw_integrations.postgres import AsyncPostgresIdempotencyStore  # noqa: E402
from resilient_mw_integrations.redis import AsyncRedisIdempotencyStore  # noqa: E402
from tests.integrations.redis_server import RedisServer  # noqa: E402
from tests.runtime.postgres_server import find_binaries, running  # noqa: E402

CALLS = {"memory": 300, "sqlite": 60, "redis": 100, "postgres": 60}
OURS, IDEMKIT, HEADER = "ours", "idemkit", "asgi-idempotency-header"
ROUTE, NO_KEY, FIRST, REPEAT, TRIP, BOTH = (
    "route",
    "no key",
    "first",
    "repeat",
    "round trip",
    "round trip and route",
)
PROMISE = 0.5
BODY = b'{"amount": 1250}'

Call = Callable[[], Awaitable[object]]


class Payment(BaseModel):
    """What is sent: the least that one would want an idempotency key for."""

    amount: int


def route() -> FastAPI:
    app = FastAPI()

    @app.post("/payments", status_code=201)
    async def pay(payment: Payment) -> dict[str, int]:
        return {"id": 7, "amount": payment.amount}

    return app


async def send(app: Any, key: str | None) -> None:
    """Send one request."""
    headers = [
        (b"host", b"bench"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(BODY)),
    ]
    if key is not None:
        headers.append((b"idempotency-key", key.encode()))
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": "/payments", "raw_path": b"/payments", "query_string": b"", "root_path": "",
        "headers": headers, "client": ("127.0.0.1", 5000), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    messages = iter([{"type": "http.request", "body": BODY, "more_body": False}])
    statuses: list[int] = []

    async def receive() -> Any:
        message = next(messages, None)
        return await asyncio.Event().wait() if message is None else message  # connected until the end

    async def take(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, take)
    if statuses != [201]:
        raise RuntimeError(f"a request was answered with {statuses}")


@dataclass(frozen=True)
class Cost:
    """Seconds of one request: of this process's CPU, and by the clock."""

    cpu: float
    wall: float


@dataclass
class Case:
    """One middleware on one store."""

    app: Any
    calls: dict[str, Call] = field(default_factory=dict)
    figures: dict[str, list[Cost]] = field(default_factory=dict)


async def prepared(app: Any, trip: Call | None = None) -> Case:
    """Return the case of an application around which there is a middleware."""
    old = str(uuid.uuid4())
    await send(app, old)
    case = Case(app)
    case.calls = {
        NO_KEY: lambda: send(app, None),
        FIRST: lambda: send(app, str(uuid.uuid4())),
        REPEAT: lambda: send(app, old),
    }
    if trip is not None:
        plain, ask = route(), trip

        async def both() -> None:
            await ask()
            await send(plain, None)

        case.calls |= {TRIP: trip, BOTH: both}
    return case


async def ours(store: Any) -> Case:
    app = IdempotencyMiddleware(
        route(), IdempotencyPolicy(single_tenant=True, max_records=1_000_000), store=store
    )
    face = app.store
    seen: list[Claim] = []
    begin = face.begin

    async def spy(claim: Claim, **facts: Any) -> Any:
        seen.append(claim)
        return await begin(claim, **facts)

    face.begin = spy  # type: ignore[method-assign]
    key = str(uuid.uuid4())
    await send(app, key)
    del face.begin
    claim = seen[0]

    async def trip() -> None:
        if not isinstance(await face.begin(claim, timeout=2.0), Found):
            raise RuntimeError("the record is not there")

    return await prepared(app, trip)


@contextmanager
def redis_server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            yield server.url
        finally:
            server.kill()


@contextmanager
def postgres_server() -> Iterator[str]:
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("there is no PostgreSQL (initdb, pg_ctl) on this machine")
    with running(binaries) as port:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"


def kit(backend: Any) -> Any:
    return idemkit.IdempotencyMiddleware(route(), backend=backend)


@asynccontextmanager
async def cases(store: str) -> AsyncIterator[dict[str, Case]]:
    """Make the middlewares that have such a store."""
    async with AsyncExitStack() as stack:
        if store == "memory":
            yield {
                OURS: await ours(MemoryIdempotencyStore()),
                IDEMKIT: await prepared(kit(idemkit.InMemoryBackend())),
                HEADER: await prepared(IdempotencyHeaderMiddleware(route(), MemoryBackend())),
            }
        elif store == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            kept = SQLiteIdempotencyStore(Path(folder) / "keys.sqlite")
            stack.callback(kept.close)
            yield {OURS: await ours(kept)}
        elif store == "redis":
            url = stack.enter_context(redis_server())
            own = AsyncRedisIdempotencyStore(url)
            stack.push_async_callback(own.close)
            backend = idemkit.RedisBackend.from_url(url)
            stack.push_async_callback(backend.aclose)
            client = Redis.from_url(url)
            stack.push_async_callback(client.aclose)
            yield {
                OURS: await ours(own),
                IDEMKIT: await prepared(kit(backend)),
                HEADER: await prepared(IdempotencyHeaderMiddleware(route(), HeaderRedisBackend(client))),
            }
        else:
            url = stack.enter_context(postgres_server())
            rows = AsyncPostgresIdempotencyStore(url)
            stack.push_async_callback(rows.close)
            await rows.create(timeout=10.0)
            await init_pg(url)
            held = idemkit.PostgresBackend.from_url(url)
            stack.push_async_callback(held.aclose)
            yield {OURS: await ours(rows), IDEMKIT: await prepared(kit(held))}


async def cost(call: Call, calls: int) -> Cost:
    gc.disable()  # what one case leaves behind is not collected at the cost of the next one
    try:
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(calls):
            await call()
        return Cost((time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls)
    finally:
        gc.enable()


async def measure(store: str, rounds: int) -> tuple[list[Cost], dict[str, Case]]:
    plain = route()
    bare: list[Cost] = []
    async with cases(store) as each:
        for _ in range(rounds):
            gc.collect()
            gc.freeze()
            bare.append(await cost(lambda: send(plain, None), CALLS[store]))
            for case in each.values():
                for name, call in case.calls.items():
                    case.figures.setdefault(name, []).append(await cost(call, CALLS[store]))
        return bare, each


def line(title: str, figures: list[Cost], bare: list[Cost]) -> None:
    cpu = statistics.median(each.cpu for each in figures)
    wall = statistics.median(each.wall for each in figures)
    route_cpu = statistics.median(each.cpu for each in bare)
    print(f"  {title:<40}{cpu * 1e6:>10.1f}{cpu / route_cpu:>14.2f}{wall * 1e6:>14.1f}")


def report(store: str, bare: list[Cost], each: dict[str, Case]) -> float:
    """Print a table; return what a repeat of ours costs beyond the round trip, of the route."""
    print(f"\n{store:<42}{'CPU us':>10}{'of the route':>14}{'wall us':>14}")
    line(ROUTE, bare, bare)
    share = 0.0
    for name, case in each.items():
        for what, figures in case.figures.items():
            line(f"{name}, {what}", figures, bare)
        if TRIP in case.figures:
            # Within a round, so that a drift of the machine is in all three. The route, too, after a round trip: who has waited
            # for a socket or a thread finds the caches cold.
            rounds = zip(case.figures[REPEAT], case.figures[TRIP], case.figures[BOTH], strict=True)
            share = statistics.median(
                (repeat.cpu - trip.cpu) / (both.cpu - trip.cpu) for repeat, trip, both in rounds
            )
            print(f"  {f'{name}, repeat less round trip':<50}{share:>14.2f}   (promised: {PROMISE})")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="how often each case is measured (default 15)")
    parser.add_argument("--store", action="append", choices=list(CALLS), help="may be repeated; default: all")
    options = parser.parse_args()
    shares = [report(store, *asyncio.run(measure(store, options.rounds))) for store in options.store or CALLS]
    return 0 if max(shares) <= PROMISE else 1


if __name__ == "__main__":
    raise SystemExit(main())
