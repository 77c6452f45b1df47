"""The end of a server under ASGI: who is refused, who finishes, who is cancelled, and when the application hears of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from resilient_mw import ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from tests.asgi.driver import Counting, Message, Request, answer, http_scope, nothing_left, outcomes, until

pytestmark = pytest.mark.usefixtures("own_time")


LIFESPAN = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}


class Host:
    """A server's side of the lifespan."""

    def __init__(self, app: Any) -> None:
        self.sent: list[str] = []
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.task = asyncio.get_running_loop().create_task(
            app(dict(LIFESPAN), self._incoming.get, self._send)
        )

    async def _send(self, message: Message) -> None:
        self.sent.append(message["type"])

    def tell(self, phase: str) -> None:
        self._incoming.put_nowait({"type": f"lifespan.{phase}"})

    async def started(self) -> Host:
        self.tell("startup")
        await until(lambda: self.sent == ["lifespan.startup.complete"])
        return self


class Service(Counting):
    """An application with a lifespan, that notes when it was told to end."""

    def __init__(self) -> None:
        super().__init__()
        self.told_at: float | None = None
        self.starts = asyncio.Event()
        self.starts.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await super().__call__(scope, receive, send)
            return
        await receive()
        await self.starts.wait()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.told_at = time.monotonic()
        await send({"type": "lifespan.shutdown.complete"})


async def test_readiness_falls_at_once_and_new_requests_are_refused_after_the_delay() -> None:
    app = Service()
    app.gate.set()
    policy = ServerPolicy(drain_delay=0.3)
    middleware = ResilienceMiddleware(app, policy)
    async with nothing_left(middleware):
        assert (await Request(middleware).run()).status == 200
        policy.drain()
        assert policy.readiness().reasons == ("draining",)
        assert (await Request(middleware).run()).status == 200
        await asyncio.sleep(0.35)
        refused = await Request(middleware).run()
        on_http2 = await Request(middleware, http_scope(http_version="2")).run()
        health = await Request(middleware, http_scope("/healthz")).run()
    assert (refused.status, refused.header("x-refusal-reason")) == (503, "draining")
    assert refused.header("connection") == "close"
    assert (on_http2.status, on_http2.header("connection")) == (503, None)
    assert health.status == 200


async def test_what_still_runs_at_the_end_is_cancelled_and_answered() -> None:
    app = Service()
    policy = ServerPolicy()
    middleware = ResilienceMiddleware(app, policy)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await until(lambda: app.running == 1)
        policy.drain(timeout=0.2)
        began = time.monotonic()
        await request.end()
        assert 0.15 < time.monotonic() - began < 2.0
    assert app.cancelled == 1
    assert request.status == 503
    assert request.problem["reason"] == "draining"
    assert request.header("x-refusal-reason") is None  # the work may have been done
    assert request.header("connection") == "close"
    assert outcomes(middleware) == {"shutdown": 1}
    assert str(app.contexts[0].cancel_reason) == "shutdown"


async def test_what_ends_in_time_is_not_touched() -> None:
    app = Service()
    policy = ServerPolicy()
    middleware = ResilienceMiddleware(app, policy)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await until(lambda: app.running == 1)
        policy.drain(timeout=0.5)
        await asyncio.sleep(0.2)
        app.gate.set()
        await request.end()
        await asyncio.sleep(0.5)
    assert request.status == 200
    assert outcomes(middleware) == {"completed": 1}


async def test_b16_a_stream_is_cut_off_at_the_end_and_gets_no_second_response() -> None:
    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0.01)

    policy = ServerPolicy()
    middleware = ResilienceMiddleware(stream, policy)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await until(lambda: len(request.messages) > 2)
        policy.drain(timeout=0.1)
        await request.end()
    assert (request.status, request.complete) == (200, False)
    assert outcomes(middleware) == {"shutdown": 1}


async def test_who_waits_gets_his_turn_or_is_cancelled_with_the_others() -> None:
    app = Service()
    policy = ServerPolicy(limit=1, max_wait=5.0)
    middleware = ResilienceMiddleware(app, policy)
    async with nothing_left(middleware):
        first = Request(middleware).start()
        await until(lambda: app.running == 1)
        second = Request(middleware).start()
        await asyncio.sleep(0.05)
        policy.drain(timeout=0.2)
        await first.end()
        await second.end()
    assert (first.status, second.status) == (503, 503)
    assert outcomes(middleware) == {"shutdown": 2}


async def test_on_cancel_callbacks_run_with_the_reason() -> None:
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        current().on_cancel(lambda reason: told.append(reason.value))
        await asyncio.sleep(10)
        await answer(send)

    policy = ServerPolicy()
    middleware = ResilienceMiddleware(app, policy)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await asyncio.sleep(0.02)
        policy.drain(timeout=0.1)
        await request.end()
    assert told == ["shutdown"]


async def test_the_application_is_shut_down_when_its_requests_have_ended() -> None:
    app = Service()
    policy = ServerPolicy()
    middleware = ResilienceMiddleware(app, policy)
    host = await Host(middleware).started()
    request = Request(middleware).start()
    await until(lambda: app.running == 1)
    host.tell("shutdown")
    await asyncio.sleep(0.1)
    assert policy.readiness().reasons == ("draining",)
    refused = await Request(middleware).run()
    assert refused.header("x-refusal-reason") == "draining"
    assert app.told_at is None
    app.gate.set()
    await request.end()
    await asyncio.wait_for(host.task, 5)
    assert request.status == 200
    assert host.sent[-1] == "lifespan.shutdown.complete"


async def test_the_application_is_shut_down_in_the_bound_whatever_still_runs() -> None:
    async def deaf() -> None:
        for _ in range(300):
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    class Deaf(Service):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                await super().__call__(scope, receive, send)
            else:
                await deaf()

    app = Deaf()
    middleware = ResilienceMiddleware(app, ServerPolicy(drain_timeout=0.2))
    host = await Host(middleware).started()
    request = Request(middleware).start()
    await asyncio.sleep(0.02)
    began = time.monotonic()
    host.tell("shutdown")
    await asyncio.wait_for(host.task, 5)
    assert app.told_at is not None
    assert 1.1 < app.told_at - began < 2.5  # the bound, and a second for the clean-up
    await request.end(10)


async def test_with_nothing_in_flight_the_shutdown_passes_at_once_whatever_the_delay() -> None:
    app = Service()
    middleware = ResilienceMiddleware(app, ServerPolicy(drain_delay=60.0))
    host = await Host(middleware).started()
    host.tell("shutdown")
    await asyncio.wait_for(host.task, 2)


async def test_an_application_that_is_started_again_serves_again() -> None:
    """As test clients do: one application, many lifespans."""
    app = Service()
    app.gate.set()
    policy = ServerPolicy()
    middleware = ResilienceMiddleware(app, policy)
    for _ in range(2):
        host = await Host(middleware).started()
        assert (await Request(middleware).run()).status == 200
        host.tell("shutdown")
        await host.task
    assert policy.readiness().ready
    assert (await Request(middleware).run()).status == 200


async def test_the_end_of_one_application_is_not_the_end_of_another_under_the_same_policy() -> None:
    policy = ServerPolicy()
    first, second = Service(), Service()
    second.gate.set()
    one, other = ResilienceMiddleware(first, policy), ResilienceMiddleware(second, policy)
    host, going_on = await Host(one).started(), await Host(other).started()
    host.tell("shutdown")
    await host.task
    assert policy.readiness().ready
    assert (await Request(other).run()).status == 200
    going_on.tell("shutdown")
    await going_on.task


async def test_not_ready_while_the_start_up_is_under_way() -> None:
    app = Service()
    app.starts.clear()
    policy = ServerPolicy()
    host = Host(ResilienceMiddleware(app, policy))
    host.tell("startup")
    await asyncio.sleep(0.02)
    assert policy.readiness().reasons == ("starting",)
    app.starts.set()
    await until(lambda: policy.readiness().ready)
    host.tell("shutdown")
    await host.task


@pytest.mark.parametrize("failing", ["raises", "failed"])
async def test_b07_a_start_up_that_failed_leaves_nothing_behind(failing: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if failing == "raises":
            raise LookupError
        await send({"type": "lifespan.startup.failed", "message": "no"})

    middleware = ResilienceMiddleware(app, ServerPolicy())
    host = Host(middleware)
    host.tell("startup")
    await asyncio.wait([host.task])
    if failing == "raises":
        assert isinstance(host.task.exception(), LookupError)
    assert not middleware.protection.guard.lifecycle._spans


async def test_a_section_that_must_complete_does_at_the_end_too() -> None:
    completed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with current().shield(5.0):
            await asyncio.sleep(0.4)
            completed.append("committed")
        completed.append("went on")
        await asyncio.sleep(30)

    policy = ServerPolicy()
    middleware = ResilienceMiddleware(app, policy)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await asyncio.sleep(0.05)
        policy.drain(timeout=0.1)
        await request.end()
    assert completed == ["committed"]
    assert (request.status, request.problem["reason"]) == (503, "draining")
    assert outcomes(middleware) == {"shutdown": 1}
