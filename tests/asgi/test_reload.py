"""A reload under ASGI: who runs and who waits notices nothing, new requests get the new treatment."""

from __future__ import annotations

import asyncio
from typing import Any

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from tests.asgi.driver import Counting, Request, answer, balanced, http_scope, nothing_left, queued, until
from tests.asgi.sockets import Socket


async def test_waiters_are_kept_and_start_under_the_new_limit() -> None:
    app = Counting()
    policy = ServerPolicy(limit=1, queue=9, max_wait=30.0, wait_share=1.0)
    middleware = ResilienceMiddleware(app, policy)
    async with nothing_left(middleware):
        requests = [Request(middleware).start() for _ in range(4)]
        await until(lambda: queued(middleware) == 3)
        await asyncio.to_thread(policy.reload, limit=3)
        await until(lambda: app.running == 3)
        assert queued(middleware) == 1
        await asyncio.to_thread(policy.reload, limit=1)
        app.gate.set()
        for request in requests:
            await request.end()
    assert [request.status for request in requests] == [200] * 4
    balanced(middleware)


async def test_what_is_prepared_is_prepared_anew_in_every_middleware() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, f"{current().remaining():.0f}".encode())

    policy = ServerPolicy()
    middlewares = [ResilienceMiddleware(app, policy) for _ in range(2)]
    for middleware in middlewares:
        assert (await Request(middleware).run()).body == b"10"
    policy.reload(
        deadline_default=4.0, trusted_peers=["203.0.113.0/24"], deadline_response_header="X-Left-Ms", debug=True,
        cors_origins=["https://shop.example"], routes=[RouteRule("/upload", max_body=3)],
    )  # fmt: skip
    for middleware in middlewares:
        served = await Request(middleware).run()
        assert served.body == b"4"
        assert served.header("x-left-ms") is not None
        scope = http_scope(headers=[(b"origin", b"https://shop.example"), (b"x-request-timeout-ms", b"0")])
        refused = await Request(middleware, scope).run()
        assert refused.header("access-control-allow-origin") == "https://shop.example"
        assert refused.problem["class"] == "normal"
        started = [(b"x-request-start", b"t=1"), (b"x-request-timeout-ms", b"9000")]
        trusted = await Request(middleware, http_scope(headers=started)).run()
        assert trusted.body == b"9"
        assert middleware.protection.guard.snapshot().ignored_headers["x-request-start"]
        upload = http_scope("/upload", headers=[(b"content-length", b"4")])
        assert (await Request(middleware, upload).run()).status == 413


async def test_a_middleware_that_is_gone_is_not_kept_for_reloads() -> None:
    import gc
    import weakref

    policy = ServerPolicy()
    middleware = ResilienceMiddleware(Counting(), policy)
    gone = weakref.ref(middleware)
    gc.disable()
    try:
        del middleware
        assert gone() is None
    finally:
        gc.enable()
    policy.reload(limit=3)


async def test_a_loop_that_serves_already_has_the_new_answers_and_fields() -> None:
    app = Counting()
    policy = ServerPolicy(deadline_default=0.3)
    middleware = ResilienceMiddleware(app, policy)
    async with nothing_left(middleware):
        page = http_scope(headers=[(b"origin", b"https://shop.example")])
        request = Request(middleware, page).start()
        await until(lambda: app.running == 1)
        await asyncio.to_thread(
            policy.reload, cors_origins=["https://shop.example"], trusted_peers=["203.0.113.0/24"]
        )
        await request.end()
        assert request.status == 504
        assert request.header("access-control-allow-origin") == "https://shop.example"
        app.gate.set()
        await Request(middleware, http_scope(headers=[(b"x-request-start", b"t=1")])).run()
    assert middleware.protection.guard.snapshot().ignored_headers["x-request-start"]


async def test_websockets_are_treated_as_the_new_policy_says() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    policy = ServerPolicy(websocket_limit=1)
    middleware = ResilienceMiddleware(app, policy)
    async with nothing_left(middleware):
        opened = [Socket(middleware).start()]
        await until(lambda: bool(opened[0].sent))
        assert (await Socket(middleware).run()).denial[0] == 503
        policy.reload(websocket_limit=2, routes=[RouteRule("/ws", priority="critical")])
        opened.append(Socket(middleware).start())
        await until(lambda: bool(opened[1].sent))
        assert (await Socket(middleware).run()).denial[0] == 503
        websockets = policy.snapshot().websockets
        assert websockets is not None
        assert websockets.limit == 2
        assert {name: number for name, number in websockets.opened.items() if number} == {
            "critical": 1,
            "normal": 1,
        }
        for each in opened:
            each.leave()
            await each.end()
        assert not any(policy.snapshot().websockets.opened.values())  # type: ignore[union-attr]
