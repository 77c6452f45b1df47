"""What only aiohttp has: cancellation, timeouts of the session, middlewares around ours, websockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw_integrations.aiohttp import CallExpired, ResilientMiddleware, TransportClosed
from tests.integrations.test_httpx_deadlines import drips_chunks
from tests.transport.tcp_server import Connection, RawServer, head


def prices(url: str, **keywords: Any) -> Dependency:
    return Dependency("prices", match=f"{url}/*", **{"retry": None, **keywords})


def session(*middlewares: Any, **options: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(middlewares=middlewares, **options)


def half(connection: Connection) -> None:
    """Nothing for /never, half a body for /half, a complete answer for everything else."""
    while (request := connection.request()) is not None:
        if request.path == "/never":
            connection.hang()
            return
        if request.path == "/half":
            connection.send(head(200, 1000) + b"x" * 500)
            connection.hang()
            return
        connection.answer()


ALERT = BreakerPolicy(window=1, minimum_calls=1, open_for=30.0)


@pytest.mark.parametrize("path", ["/never", "/half"])
async def test_b61_a_cancelled_call_says_nothing_about_the_dependency(path: str) -> None:
    with RawServer(half) as server:
        dependency = prices(server.url, bulkhead=1, breaker=ALERT)
        async with session(ResilientMiddleware([dependency])) as client:

            async def call() -> bytes:
                async with client.get(server.url + path) as response:
                    return await response.read()

            task = asyncio.create_task(call())
            await asyncio.sleep(0.1)
            assert dependency.snapshot().in_use == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert dependency.snapshot().in_use == 0
            owner: Any = dependency.owner[0]
            assert (owner.state.good, owner.state.bad) == (0, 0)
            async with client.get(server.url + "/") as response:
                assert response.status == 200


@pytest.mark.parametrize("path", ["/never", "/half"])
async def test_the_total_timeout_of_the_session_counts_too(path: str) -> None:
    with RawServer(half) as server:
        dependency = prices(server.url)
        limit = aiohttp.ClientTimeout(total=0.1)
        async with session(ResilientMiddleware([dependency]), timeout=limit) as client:
            with pytest.raises(TimeoutError) as caught:
                async with client.get(server.url + path) as response:
                    await response.read()
            assert not isinstance(caught.value, DeadlineExceeded)
            assert dependency.snapshot().in_use == 0


async def test_a_response_that_nobody_reads_gives_its_slot_back_with_its_attempt() -> None:
    with RawServer(half) as server:
        dependency = prices(server.url, timeout=1.0)
        async with session(ResilientMiddleware([dependency])) as client:
            response = await client.get(server.url + "/half")
            assert dependency.snapshot().in_use == 1
            async with asyncio.timeout(10):
                while dependency.snapshot().in_use:  # noqa: ASYNC110  it knows no events
                    await asyncio.sleep(0.01)
            for _ in range(2):
                with pytest.raises(aiohttp.SocketTimeoutError):
                    await response.read()


@pytest.mark.parametrize("script", [half, drips_chunks])
async def test_an_expired_body_stays_expired(script: Callable[[Connection], None]) -> None:
    with RawServer(script) as server:
        dependency = prices(server.url, total_timeout=0.6)
        async with session(ResilientMiddleware([dependency])) as client:
            response = await client.get(server.url + "/half")
            for _ in range(2):
                with pytest.raises(CallExpired, match="reading the response body"):
                    await response.read()
            await asyncio.sleep(0.05)  # The end of the connection is told after it.
            with pytest.raises(CallExpired):
                await response.content.readany()


async def test_a_reader_that_is_woken_as_the_time_ends_is_told_so() -> None:
    """Aiohttp wakes readers at the end of each chunk, also where there is nothing to read yet."""
    with RawServer(half) as server:
        dependency = prices(server.url, timeout=9.0)
        async with session(ResilientMiddleware([dependency])) as client:
            response = await client.get(server.url + "/half")
            content: Any = response.content
            await content.readany()
            reader = asyncio.create_task(content.readany())
            await asyncio.sleep(0)
            waiter, content._waiter = content._waiter, None
            waiter.set_result(None)
            connection: Any = response.connection
            connection._callbacks[0].__self__._alarm()
            with pytest.raises(aiohttp.SocketTimeoutError):
                await asyncio.wait_for(reader, 10)
            await asyncio.sleep(0)
            assert response.connection is None


async def test_a_complete_body_that_nobody_has_read_yet_holds_nothing() -> None:
    with RawServer(half) as server:
        dependency = prices(server.url, timeout=0.9)
        async with session(ResilientMiddleware([dependency])) as client:
            response = await client.get(server.url + "/")
            await asyncio.sleep(1.0)
            assert await response.read() == b"ok"
            assert dependency.snapshot().in_use == 0


async def test_a_middleware_outside_is_asked_once_and_one_inside_for_each_attempt() -> None:
    asked: list[str] = []

    def counting(name: str) -> Callable[..., Awaitable[aiohttp.ClientResponse]]:
        async def middleware(request: Any, handler: Any) -> aiohttp.ClientResponse:
            asked.append(name)
            request.headers["X-" + name] = str(len(asked))
            answer: aiohttp.ClientResponse = await handler(request)
            return answer

        return middleware

    def busy(connection: Connection) -> None:
        while connection.request():
            connection.answer(503)

    with RawServer(busy) as server:
        dependency = prices(server.url, retry=RetryPolicy(attempts=2, backoff_base=0.01))
        async with (
            session(counting("outside"), ResilientMiddleware([dependency]), counting("inside")) as client,
            client.get(server.url + "/") as response,
        ):
            assert response.status == 503
        assert asked == ["outside", "inside", "inside"]
        assert [request.all("x-inside") for request in server.requests] == [["2"], ["3"]]


async def test_b53_closing_wakes_who_waits_for_his_next_attempt() -> None:
    def busy(connection: Connection) -> None:
        while connection.request():
            connection.answer(503)

    with RawServer(busy) as server:
        retry = RetryPolicy(attempts=2, backoff_base=30.0, backoff_cap=30.0)
        dependency = prices(server.url, retry=retry, total_timeout=None, timeout=None, breaker=None)
        middleware = ResilientMiddleware([dependency])
        async with session(middleware) as client:
            task = asyncio.ensure_future(client.get(server.url + "/"))
            while not task.done():
                await asyncio.sleep(0.02)
                await middleware.aclose()
            with pytest.raises(TransportClosed):
                await task
            assert dependency.snapshot().in_use == 0


async def test_a_request_of_no_dependency_is_repeated_as_aiohttp_does() -> None:
    first = threading.Event()

    def closes(connection: Connection) -> None:
        connection.request()
        if not first.is_set():
            first.set()
            connection.answer()
            connection.request()  # The second one is read, and never answered.
            return
        connection.answer()

    with RawServer(closes) as stranger, RawServer(half) as server:
        async with session(ResilientMiddleware([prices(server.url)])) as client:
            for url in (server.url, stranger.url, stranger.url):
                async with client.get(url + "/") as response:
                    assert await response.read() == b"ok"
        assert len(stranger.requests) == 3


async def test_a_websocket_is_not_cut_off_and_holds_no_slot() -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    app = web.Application()
    app.router.add_get("/", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        dependency = prices(url, timeout=0.1)
        async with (
            session(ResilientMiddleware([dependency])) as client,
            client.ws_connect(url + "/") as socket,
        ):
            assert dependency.snapshot().in_use == 0
            await asyncio.sleep(0.2)
            await socket.send_str("still there")
            assert await socket.receive_str() == "still there"
    finally:
        await runner.cleanup()
