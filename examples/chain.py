"""One budget for a chain of three services: gateway -> A -> B, FastAPI with httpx between them.

python examples/chain.py      needs: pip install "resilient-mw[fastapi,httpx]" uvicorn

Starts the three as processes, plays three callers, prints what became of their 2,000 ms, and ends. Or one by one, each in
a terminal of its own:
    python examples/chain.py B --port 8002
    python examples/chain.py A --port 8001 --next http://127.0.0.1:8002
    python examples/chain.py gateway --port 8000 --next http://127.0.0.1:8001
    curl -i localhost:8000/order
    curl -i "localhost:8000/order?slow=B"        504 after 2 s, or press Ctrl-C earlier; then:
    curl localhost:8002/seen
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException

from resilient_mw import Dependency, RetryPolicy, ServerPolicy, current, exempt
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw_integrations.httpx import AsyncResilientTransport

NEXT = {"gateway": "A", "A": "B"}
OWN_WORK = {"gateway": 0.6, "A": 0.1, "B": 0.05}  # seconds; a sleep stands for it
SLOW = 5.0

OURS = ["127.0.0.0/8"]  # whose word about the budget counts: the network of your own services
POLICIES = {
    "gateway": ServerPolicy(name="gateway", deadline_default=2.0),
    # One at a time, so that a queue forms here. A request may spend all that is left of its budget in it.
    "A": ServerPolicy(name="A", trusted_peers=OURS, limit=1, queue=10, wait_share=1.0, max_wait=10.0),
    "B": ServerPolicy(name="B", trusted_peers=OURS),
}


def service(name: str, next_url: str | None) -> FastAPI:
    """Make one of the three: it works, asks the next one if there is one, and says what it had."""
    # Only the gateway tries again: two attempts in each layer would multiply.
    retry = RetryPolicy() if name == "gateway" else None
    calls = [Dependency(NEXT[name], match=f"{next_url}/*", retry=retry)] if next_url else []
    client = httpx.AsyncClient(transport=AsyncResilientTransport(calls))
    seen: dict[str, Any] = {"orders": 0, "cancelled": None}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(ResilienceMiddleware, policy=POLICIES[name])

    @app.get("/order")
    async def order(slow: str = "") -> list[dict[str, Any]]:
        received = current().remaining()
        seen["orders"] += 1
        try:
            await asyncio.sleep(SLOW if slow == name else OWN_WORK[name])
            mine = {"service": name, "received": received, "left": current().remaining()}
            return [mine, *(await ask_next(slow) if next_url else [])]
        except asyncio.CancelledError:  # nobody waits for this any more
            seen["cancelled"] = {"at": time.monotonic(), "reason": current().cancel_reason}
            raise

    async def ask_next(slow: str) -> list[dict[str, Any]]:
        try:
            # No timeout and no header here: the transport keeps to what is left, and sends it on.
            answer = await client.get(f"{next_url}/order", params={"slow": slow})
            if answer.status_code == 504:  # there the end of the budget was seen first
                raise HTTPException(504, f"no time was left at {NEXT[name]!r}")
            answer.raise_for_status()
        except httpx.TimeoutException as error:
            raise HTTPException(504, str(error)) from error
        except httpx.HTTPError as error:
            raise HTTPException(502, str(error)) from error
        hops: list[dict[str, Any]] = answer.json()
        return hops

    @app.get("/seen")
    @exempt  # answers also while every slot is taken
    async def what_was_seen() -> dict[str, Any]:
        return seen

    return app


async def show(gateway: str, a: str, b: str) -> None:
    """Play three callers."""
    async with httpx.AsyncClient(timeout=10, trust_env=False) as caller:
        await caller.get(f"{gateway}/order")  # the first call of a process also loads what it needs
        await one_who_waits(caller, gateway)
        await one_who_hangs_up(caller, gateway, b)
        await one_in_a_queue(caller, gateway, a, b)


async def one_who_waits(caller: httpx.AsyncClient, gateway: str) -> None:
    print("1. A caller who waits. The gateway gives every request 2000 ms.\n")
    began = time.monotonic()
    hops = (await caller.get(f"{gateway}/order")).json()
    took = time.monotonic() - began
    print("   service    received    own work    left after it")
    for hop in hops:
        received, left = 1000 * hop["received"], 1000 * hop["left"]
        print(f"   {hop['service']:<8} {received:>7.0f} ms  {received - left:>7.0f} ms  {left:>12.0f} ms")
    print("\n   The next one receives what is left, less 10 ms in reserve and the time on the way.")
    print(f"   Answered after {1000 * took:.0f} ms.\n")


async def one_who_hangs_up(caller: httpx.AsyncClient, gateway: str, b: str) -> None:
    print("2. A caller who hangs up after 1300 ms, while B works for him for 5000 ms.\n")
    try:
        async with asyncio.timeout(1.3):
            await caller.get(f"{gateway}/order", params={"slow": "B"})
    except TimeoutError:
        hung_up = time.monotonic()
    await asyncio.sleep(0.3)
    cancelled = (await caller.get(f"{b}/seen")).json()["cancelled"]
    took = cancelled["at"] - hung_up  # both of one machine, so of one clock
    print(f"   B's handler was cancelled {1000 * took:.0f} ms later: {cancelled['reason']}.\n")


async def one_in_a_queue(caller: httpx.AsyncClient, gateway: str, a: str, b: str) -> None:
    print("3. A caller whose budget runs out in A's queue, because A works for somebody else.\n")
    before = (await caller.get(f"{b}/seen")).json()["orders"]
    somebody_else = asyncio.create_task(caller.get(f"{a}/order", params={"slow": "A"}))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    answer = await caller.get(f"{gateway}/order")
    took = time.monotonic() - began
    after = (await caller.get(f"{b}/seen")).json()["orders"]
    somebody_else.cancel()
    body = answer.json()
    why = body.get("detail") or body["title"]  # of the handler, or of the middleware if that was quicker
    print(f"   {answer.status_code} after {1000 * took:.0f} ms: {why.split('. ')[0]}.")
    print(f"   B was asked {after - before} times.")


def serve(name: str, port: int, next_url: str | None) -> None:
    """Serve one of the three, and say where."""
    listener = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(service(name, next_url), log_level="warning")).run(sockets=[listener])


def start(processes: list[subprocess.Popen[str]], *arguments: str) -> str:
    """Start one of the three as a process on a free port; return where it listens."""
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    processes.append(process)
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="One budget for a chain of three services.")
    parser.add_argument("service", nargs="?", choices=POLICIES, help="serve this one alone; none: show all")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--next", metavar="URL", help="where the next service listens")
    args = parser.parse_args()
    if args.service:
        serve(args.service, args.port, args.next)
        return
    processes: list[subprocess.Popen[str]] = []
    try:
        b = start(processes, "B")
        a = start(processes, "A", "--next", b)
        gateway = start(processes, "gateway", "--next", a)
        asyncio.run(show(gateway, a, b))
    finally:
        for process in processes:
            process.terminate()
            process.communicate()


if __name__ == "__main__":
    main()
