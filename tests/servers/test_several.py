"""Several applications in one process: a server and a loop in each of two threads, and two applications on one loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from tests.asgi.driver import Counting, Request, nothing_left, queued, slots, until
from tests.servers.processes import free_port
from tests.servers.wire import ask

uvicorn = pytest.importorskip("uvicorn")


async def served(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    await asyncio.sleep(float(scope["path"][1:]))
    body = threading.current_thread().name.encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def _thread(app: Any, name: str) -> Iterator[tuple[int, Any]]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, name=name)
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    try:
        yield port, server
    finally:
        server.should_exit = True
        thread.join(20)


async def test_two_servers_in_two_threads_share_one_limit_and_end_one_by_one() -> None:
    policy = ServerPolicy(limit=2, queue=2, max_wait=10.0, wait_share=1.0)
    app = ResilienceMiddleware(served, policy)
    with ExitStack() as stack:
        second, _ = stack.enter_context(_thread(app, "second"))
        with _thread(app, "first") as (first, _):
            asked = [asyncio.create_task(ask(port, "/0.6")) for port in (first, second) for _ in range(2)]
            await until(lambda: (slots(app), queued(app)) == (2, 2), 10)
            assert (await ask(first, "/0")).headers["x-refusal-reason"] == "queue_full"
            answers = await asyncio.gather(*asked)
            assert sorted(answer.body for answer in answers) == [b"first"] * 2 + [b"second"] * 2
            assert [answer.status for answer in answers] == [200] * 4
            assert (
                sum(answer.seconds > 1.1 for answer in answers) == 2
            )  # each waited for the other server's, too
        assert policy.readiness().ready  # one has ended, the other has not
        assert (await ask(second, "/0")).status == 200
        assert len(app._services) <= 2
    assert slots(app) == 0


async def test_two_servers_with_a_policy_each_know_nothing_of_each_other() -> None:
    policies = [ServerPolicy(limit=1, queue=0) for _ in range(2)]
    apps = [ResilienceMiddleware(served, policy) for policy in policies]
    with _thread(apps[0], "first") as (first, _), _thread(apps[1], "second") as (second, _):
        busy = asyncio.create_task(ask(first, "/0.8"))
        await until(lambda: slots(apps[0]) == 1, 10)
        assert (await ask(first, "/0")).status == 503
        assert (await ask(second, "/0")).status == 200
        policies[1].drain()
        assert (await ask(second, "/0")).headers["x-refusal-reason"] == "draining"
        assert (await busy).status == 200


async def test_two_applications_on_one_loop_under_one_policy() -> None:
    policy = ServerPolicy(limit=2, queue=2, max_wait=10.0, wait_share=1.0)
    first, second = Counting(), Counting()
    one, other = ResilienceMiddleware(first, policy), ResilienceMiddleware(second, policy)
    async with nothing_left(one, other):
        requests = [Request(app).start() for app in (one, other) for _ in range(2)]
        await until(lambda: first.running + second.running == 2)
        assert queued(one) == queued(other) == 2
        first.gate.set()
        second.gate.set()
        for request in requests:
            await request.end()
    assert [request.status for request in requests] == [200] * 4
    assert (first.finished, second.finished) == (2, 2)


async def test_the_drain_of_one_policy_does_not_touch_the_requests_of_another_on_the_same_loop() -> None:
    policies = [ServerPolicy() for _ in range(2)]
    apps = [Counting() for _ in range(2)]
    one, other = (ResilienceMiddleware(app, policy) for app, policy in zip(apps, policies, strict=True))
    async with nothing_left(one, other):
        requests = [Request(one).start(), Request(other).start()]
        await until(lambda: apps[0].running + apps[1].running == 2)
        policies[0].drain(timeout=0.1)
        await requests[0].end()
        await asyncio.sleep(0.2)
        assert apps[1].running == 1
        apps[1].gate.set()
        await requests[1].end()
    assert [request.status for request in requests] == [503, 200]
