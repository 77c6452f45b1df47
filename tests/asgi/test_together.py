"""Where two features meet: streams, shadow mode, needs, drain, sections and two policies around each other."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from resilient_mw import ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.events import Cancelled, Event
from tests.asgi.driver import (
    Counting,
    Message,
    Request,
    figures,
    http_scope,
    nothing_left,
    outcomes,
    queued,
    slots,
    until,
)
from tests.asgi.sockets import Socket
from tests.asgi.test_shutdown import Host
from tests.asgi.test_stream import (
    CHUNK,
    END,
    START,
    Events,
    ended,
    guarded,
    nothing_open,
    opened,
    places,
    rule,
)

# -- streams in shadow mode --------------------------------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("own_time")


@pytest.mark.parametrize("shadow", [["deadlines"], ["quotas"]])
async def test_who_leaves_as_his_wait_ends_gives_his_place_back_in_shadow_mode(shadow: list[str]) -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), limit=1, shadow=shadow)
    guard = middleware.protection.guard
    async with nothing_left(middleware):
        first = Request(middleware, stall=lambda message: message["type"] == "http.response.start").start()
        await first.stalled.wait()
        waiting = Request(middleware).start()
        await until(lambda: queued(middleware) == 1)
        await asyncio.sleep(0.02)
        waiter = next(iter(guard.controller.classes[1].queue))
        wake = waiter.wake
        assert wake is not None

        def leaving() -> None:
            waiting.disconnect()
            wake()

        waiter.wake = leaving
        first.go_on()
        await waiting.end(1.0)
        first.disconnect()
        await first.end(1.0)
        assert waiting.raised is None
        middleware.protection.guard.streams._streams._look()
        assert places(middleware) == 0
    assert len(app.contexts) == 1


@pytest.mark.parametrize("shadow", [["deadlines"], ["quotas"]])
async def test_where_admission_is_real_a_stream_is_one_in_shadow_mode(shadow: list[str]) -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), limit=1, stream_limit=2, shadow=shadow)
    async with nothing_open(middleware):
        requests = []
        for _ in range(2):
            requests.append(Request(middleware).start())
            await until(lambda: opened(middleware) == len(requests))
            assert slots(middleware) == 0
        refused = await Request(middleware).run()
        assert refused.header("x-refusal-reason") == "stream_limit"
        requests[0].disconnect()
        await requests[0].end(1.0)
        app.chunks.put_nowait(dict(END))
        await requests[1].end(1.0)
    assert sum(ended(middleware).values()) == 2
    assert outcomes(middleware) == {"completed": 2}


@pytest.mark.parametrize(
    ("late", "covers"), [(False, "head"), (False, "gaps"), (True, "head"), (True, "gaps")]
)
async def test_a_deadline_in_shadow_ends_no_stream_and_is_counted(late: bool, covers: str) -> None:
    app = Events()
    gate = asyncio.Event()

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await app(scope, receive, send)

    idle = {"deadline_idle": 0.1} if covers == "gaps" else {}
    said = rule(slot="head", deadline_covers=covers, deadline_default=0.2, **idle)
    middleware = guarded(behind, said, shadow=["deadlines"])
    async with nothing_open(middleware):
        request = Request(middleware).start()
        asyncio.get_running_loop().call_later(0.4 if late else 0.0, gate.set)
        await until(lambda: opened(middleware) == 1)
        assert app.contexts[0].remaining() == math.inf
        await asyncio.sleep(0.3)
        app.chunks.put_nowait(dict(CHUNK))
        app.chunks.put_nowait(dict(END))
        await request.end(1.0)
        assert request.complete
    found = figures(middleware).shadow
    assert found is not None
    assert [each.cancelled for each in found.routes] == ([1] if late else [])


async def test_a_deadline_that_is_real_moves_where_other_defences_are_in_shadow() -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head", deadline_idle=0.2), shadow=["quotas"])
    async with nothing_open(middleware):
        request = Request(middleware).start()
        await request.end(2.0)
    assert ended(middleware) == {"deadline": 1}


# -- streams and the garbage collector ---------------------------------------------------------------------------------


async def test_the_place_of_a_forgotten_stream_is_found_by_the_next_one() -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), stream_limit=1)

    async def send(message: Message) -> None:
        pass

    coroutine = middleware(http_scope(), None, send)
    coroutine.send(None)
    coroutine.close()
    request = Request(middleware).start()
    await until(lambda: len(app.contexts) == 2)
    request.disconnect()
    await request.end(1.0)
    assert request.status == 200


# -- the end of a server -----------------------------------------------------------------------------------------------


class Told:
    """Its lifespan notes what was still running when it was told to end."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.running = 0
        self.left: int | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            self.running += 1
            try:
                await self.app(scope, receive, send)
            finally:
                self.running -= 1
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.left = self.running
        await send({"type": "lifespan.shutdown.complete"})


async def test_the_application_is_shut_down_after_its_streams() -> None:
    app = Told(Events())
    middleware = guarded(app, rule(slot="head", deadline_covers="head"), drain_timeout=0.3)
    async with nothing_open(middleware):
        host = await Host(middleware).started()
        request = Request(middleware).start()
        await until(lambda: opened(middleware) == 1)
        host.tell("shutdown")
        await asyncio.wait_for(host.task, 5)
        assert app.left == 0
        await request.end(1.0)
    assert ended(middleware) == {"shutdown": 1}


async def test_the_application_is_shut_down_after_those_that_run_outside_in_shadow_mode() -> None:
    counting = Counting()
    app = Told(counting)
    middleware = ResilienceMiddleware(app, ServerPolicy(limit=1, queue=0, shadow=["admission"]))
    async with nothing_left(middleware):
        host = await Host(middleware).started()
        requests = [Request(middleware).start() for _ in range(3)]
        await until(lambda: counting.running == 3)
        requests[0].disconnect()
        await requests[0].end(1.0)
        assert slots(middleware) == 0
        asyncio.get_running_loop().call_later(0.2, counting.gate.set)
        host.tell("shutdown")
        await asyncio.wait_for(host.task, 5)
        assert app.left == 0
        for each in requests[1:]:
            await each.end(1.0)


async def test_a_forgotten_request_does_not_hold_up_the_end() -> None:
    app = Told(Counting())
    middleware = ResilienceMiddleware(app, ServerPolicy())
    async with nothing_left(middleware):
        host = await Host(middleware).started()
        coroutine = middleware(http_scope(), None, None)
        coroutine.send(None)
        coroutine.close()
        host.tell("shutdown")
        await asyncio.wait_for(host.task, 5)
    assert app.left == 0


# -- sections in streams -----------------------------------------------------------------------------------------------


async def test_a_stream_that_is_over_in_a_section_is_cancelled_once() -> None:
    events: list[Event] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with current().shield(5.0):
            await send(dict(START))
            await asyncio.sleep(0.2)
        await asyncio.sleep(30)

    middleware = guarded(app, rule(slot="head"), listeners=[events.append])
    async with nothing_open(middleware):
        request = Request(middleware).start()
        await asyncio.sleep(0.05)
        request.disconnect()
        await request.end(2.0)
    cancelled = [each.reason for each in events if isinstance(each, Cancelled)]
    assert cancelled == [CancelReason.CLIENT_DISCONNECT]
    assert (outcomes(middleware), ended(middleware)) == ({"client_disconnect": 1}, {})


# -- two policies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inside", [{}, {"slot": "head"}, {"deadline_covers": "head"}, {"deadline_idle": 5.0}]
)
async def test_a_deadline_that_moves_is_not_fixed_by_a_middleware_inside(inside: dict[str, Any]) -> None:
    app = Events()
    inner = (
        guarded(app, rule(**inside), deadline_default=5.0)
        if inside
        else ResilienceMiddleware(app, deadline_default=5.0)
    )
    outer = guarded(inner, rule(deadline_covers="gaps", deadline_idle=0.4, deadline_default=0.4))
    async with nothing_left(inner), nothing_left(outer):
        request = Request(outer).start()
        await until(lambda: len(app.contexts) == 1)
        assert app.contexts[0].remaining() <= 0.4
        for _ in range(5):
            await asyncio.sleep(0.2)
            app.chunks.put_nowait(dict(CHUNK))
        await asyncio.sleep(0.1)
        assert app.contexts[0].remaining() <= 0.4
        app.chunks.put_nowait(dict(END))
        await request.end(1.0)
        assert request.complete, request.messages


async def test_a_file_has_no_gaps_for_a_middleware_inside_either() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(dict(START))
        await send({"type": "http.response.pathsend", "path": "/nowhere"})

    said = rule(slot="head", deadline_covers="gaps", deadline_idle=0.2)
    inner = guarded(app, said)
    outer = guarded(inner, said)
    async with nothing_left(inner), nothing_left(outer):
        request = Request(outer, stall=lambda each: each["type"] == "http.response.pathsend").start()
        await request.stalled.wait()
        await asyncio.sleep(0.4)
        request.go_on()
        await request.end(1.0)
    assert ended(inner) == {"completed": 1}


# -- sections in websockets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", ["its time", "longer than its time"])
async def test_a_websocket_whose_peer_leaves_in_a_section_is_told_and_not_cancelled(within: str) -> None:
    told: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        current().on_cancel(told.append)
        with current().shield(5.0 if within == "its time" else 0.05):
            await asyncio.sleep(0.1)
            told.append("committed")
        await asyncio.sleep(0.1)
        told.append((await receive())["type"])

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        socket = Socket(middleware).start()
        await until(lambda: bool(socket.sent))
        socket.leave()
        await socket.end()
    assert socket.raised is None
    assert set(told) == {"committed", CancelReason.CLIENT_DISCONNECT, "websocket.disconnect"}
    assert (told[0] == "committed") is (within == "its time")
