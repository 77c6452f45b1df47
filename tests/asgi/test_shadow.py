"""Shadow mode under ASGI: every request runs to its own end, and what would have become of it is counted."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

from resilient_mw import ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.events import Event, Shadowed
from resilient_mw.core.snapshot import ShadowRoute, ShadowSnapshot
from tests.asgi.driver import (
    Counting,
    Request,
    answer,
    budget,
    figures,
    http_scope,
    is_idle,
    nothing_left,
    outcomes,
    slots,
)
from tests.asgi.driver import until as until_true
from tests.asgi.sockets import Socket

pytestmark = pytest.mark.usefixtures("own_time")


def shadow(middleware: ResilienceMiddleware) -> ShadowSnapshot:
    found = figures(middleware).shadow
    assert found is not None
    return found


def would(middleware: ResilienceMiddleware) -> ShadowRoute | None:
    routes = shadow(middleware).routes
    assert len(routes) <= 1
    return routes[0] if routes else None


async def test_a_crowd_runs_and_is_counted() -> None:
    app = Counting()
    middleware = ResilienceMiddleware(app, limit=2, queue=1, shadow=["admission"])
    async with nothing_left(middleware):
        requests = [Request(middleware).start() for _ in range(10)]
        await until_true(lambda: app.running == 10)
        assert slots(middleware) == 2
        assert shadow(middleware).outside == 8
        app.gate.set()
        for request in requests:
            await request.end()
            assert request.status == 200
    route = would(middleware)
    assert route is not None
    assert (route.queued, route.refused, route.cancelled) == (1, {"queue_full": 7}, 0)
    assert shadow(middleware).outside == 0
    assert outcomes(middleware) == {"completed": 10}


@pytest.mark.parametrize("way", ["disconnect", "raise", "cancel"])
async def test_every_way_out_takes_a_request_out_of_the_model(way: str) -> None:
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        if way == "raise":
            raise LookupError("the application's own")
        await answer(send)

    middleware = ResilienceMiddleware(app, limit=1, queue=1, shadow=True)
    async with nothing_left(middleware):
        requests = [Request(middleware).start() for _ in range(3)]
        await until_true(lambda: shadow(middleware).outside == 2)
        for request in requests:
            if way == "disconnect":
                request.disconnect()
            elif way == "cancel":
                request.cancel()
            else:
                gate.set()
        for request in requests:
            await request.end()
        await until_true(lambda: is_idle(middleware))
        assert shadow(middleware).outside == 0
    outcome = {"disconnect": "client_disconnect", "raise": "error", "cancel": "error"}[way]
    assert outcomes(middleware) == {outcome: 3}


async def test_an_overrun_is_counted_once_and_nothing_is_cancelled() -> None:
    heard: list[Event] = []
    seen: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current().remaining())
        current().check()
        await asyncio.sleep(0.15)
        current().check()
        await answer(send)

    middleware = ResilienceMiddleware(
        app, shadow=["deadlines"], deadline_response_header="X-Budget-Left-Ms", listeners=[heard.append]
    )
    async with nothing_left(middleware):
        late = await Request(middleware, http_scope(headers=[budget(50)])).run()
        in_time = await Request(middleware, http_scope(headers=[budget(5000)])).run()
    assert (late.status, in_time.status) == (200, 200)
    assert late.header("x-budget-left-ms") is None  # nobody keeps it
    assert seen == [math.inf, math.inf]
    route = would(middleware)
    assert route is not None
    assert (route.cancelled, route.refused, route.queued) == (1, {}, 0)
    told = [event for event in heard if isinstance(event, Shadowed)]
    assert told == [Shadowed("unmatched", "normal", "deadlines", "cancel", None)]
    assert outcomes(middleware) == {"completed": 2}


async def test_what_goes_on_after_a_complete_response_is_no_overrun() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)
        await asyncio.sleep(0.1)

    middleware = ResilienceMiddleware(app, shadow=["deadlines"])
    async with nothing_left(middleware):
        await Request(middleware, http_scope(headers=[budget(50)])).run()
    assert would(middleware) is None


async def test_a_budget_that_is_over_on_arrival_is_counted_once_and_served() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.02)
        await answer(send)

    middleware = ResilienceMiddleware(app, shadow=["deadlines"])
    async with nothing_left(middleware):
        for milliseconds in (0, 1):
            request = await Request(middleware, http_scope(headers=[budget(milliseconds)])).run()
            assert request.status == 200
    route = would(middleware)
    assert route is not None
    assert (route.refused, route.cancelled) == ({"expired_on_arrival": 1, "insufficient_budget": 1}, 0)


async def test_with_real_admission_a_wait_is_real_and_no_deadline_ends_it() -> None:
    app = Counting()
    middleware = ResilienceMiddleware(
        app, limit=1, queue=1, max_wait=5.0, wait_share=1.0, shadow=["deadlines"]
    )
    async with nothing_left(middleware):
        first = Request(middleware).start()
        await until_true(lambda: app.running == 1)
        second = Request(middleware, http_scope(headers=[budget(50)])).start()
        third = await Request(middleware).run()
        assert (third.status, third.header("x-refusal-reason")) == (503, "queue_full")
        await asyncio.sleep(0.1)
        assert app.running == 1
        app.gate.set()
        assert [(await each.end()).status for each in (first, second)] == [200, 200]
    route = would(middleware)
    assert route is not None
    assert (route.refused, route.cancelled) == ({"expired_in_queue": 1}, 0)


async def test_admission_alone_in_shadow_keeps_deadlines() -> None:
    app = Counting()
    middleware = ResilienceMiddleware(app, limit=1, queue=0, shadow=["admission"])
    async with nothing_left(middleware):
        requests = [Request(middleware, http_scope(headers=[budget(60)])).start() for _ in range(3)]
        assert [(await each.end()).status for each in requests] == [504] * 3
        expired = await Request(middleware, http_scope(headers=[budget(0)])).run()
    assert (expired.status, expired.header("x-refusal-reason")) == (504, "expired_on_arrival")
    assert outcomes(middleware) == {"deadline": 3}
    route = would(middleware)
    assert route is not None
    assert (route.refused, route.cancelled) == ({"queue_full": 2}, 0)


async def test_the_deadline_of_a_middleware_around_it_holds() -> None:
    left: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        left.append(current().remaining())
        kept.append(current().deadline_at)
        await asyncio.sleep(5)

    kept: list[float] = []
    inside = ResilienceMiddleware(app, ServerPolicy(shadow=True, name="inside"))
    outside = ResilienceMiddleware(inside, ServerPolicy(name="outside", deadline_default=0.1))
    async with nothing_left(inside, outside):
        request = await Request(outside).run()
    assert request.status == 504
    assert 0.0 <= left[0] <= 0.1
    assert kept[0] < math.inf


async def test_websockets_over_their_limit_are_served_without_a_place() -> None:
    gate = asyncio.Event()
    served = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal served
        await receive()
        await send({"type": "websocket.accept"})
        served += 1
        await gate.wait()
        with contextlib.suppress(OSError):
            await send({"type": "websocket.close", "code": 1000})

    middleware = ResilienceMiddleware(app, websocket_limit=1, shadow=["admission"])
    sockets = [Socket(middleware).start() for _ in range(3)]
    await until_true(lambda: served == 3)
    opened = figures(middleware).websockets
    assert opened is not None
    assert opened.opened["normal"] == 1
    assert [(each.arrived, each.admitted, each.refused) for each in opened.routes] == [(1, 1, {})]
    gate.set()
    for socket in sockets:
        await socket.end()
    route = would(middleware)
    assert route is not None
    assert route.refused == {"websocket_limit": 2}
    assert figures(middleware).guard_errors == 0


async def test_a_timer_does_not_outlive_its_request() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)

    middleware = ResilienceMiddleware(app, shadow=["deadlines"])
    loop: Any = asyncio.get_running_loop()
    for _ in range(20):
        await Request(middleware).run()
    assert [each for each in loop._scheduled if not each.cancelled() and "_overrun" in repr(each)] == []
