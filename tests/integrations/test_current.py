"""`current()` wherever a framework runs code for a request: the same one everywhere, also with a section inside."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from flask import Flask, Response, after_this_request, stream_with_context
from flask.typing import ResponseReturnValue
from quart import Quart
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from resilient_mw import (
    CancelReason,
    DeadlineExceeded,
    Dependency,
    RequestContext,
    ResilienceError,
    ServerPolicy,
    current,
)
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.runtime.context import NO_REQUEST
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from resilient_mw_integrations.httpx import AsyncResilientTransport, ResilientTransport
from tests.asgi import driver

Log = list[Any]


def slots(policy: ServerPolicy) -> int:
    return sum(each.slots for each in guard_of(policy).snapshot().classes)


async def asked(app: Any, path: str = "/", milliseconds: int = 5000) -> driver.Request:
    scope = driver.http_scope(path, headers=[driver.budget(milliseconds)])
    return await driver.Request(app, scope).run()


def in_copied_context(pool: concurrent.futures.Executor, work: Callable[[], object]) -> Awaitable[object]:
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(pool, contextvars.copy_context().run, work)


# -- Starlette and FastAPI ---------------------------------------------------------------------------------------------


async def test_the_same_context_in_everything_that_fastapi_runs_for_a_request() -> None:  # noqa: C901
    seen: dict[str, RequestContext] = {}

    def note(where: str) -> None:
        seen[where] = current()
        current().check()
        assert seen[where].remaining() > (4 if not where.startswith("background") else 1e9)

    app = FastAPI()

    def sync_dependency() -> None:
        note("sync dependency")

    async def async_dependency() -> None:
        note("async dependency")

    def sync_yield() -> Iterator[None]:
        note("sync yield, before")
        yield
        seen["sync yield, after"] = current()

    async def async_yield() -> AsyncIterator[None]:
        note("async yield, before")
        yield
        seen["async yield, after"] = current()

    async def child(where: str) -> None:
        await asyncio.sleep(0)
        note(where)

    async def background() -> None:
        note("background, async")

    dependencies = [Depends(each) for each in (sync_dependency, async_dependency, sync_yield, async_yield)]

    @app.get("/async", dependencies=dependencies)
    async def endpoint(tasks: BackgroundTasks) -> str:
        note("endpoint")
        tasks.add_task(note, "background, sync")
        tasks.add_task(background)
        await asyncio.to_thread(note, "to_thread")
        await anyio.to_thread.run_sync(note, "anyio thread")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            await in_copied_context(pool, lambda: note("run_in_executor"))
        await asyncio.create_task(child("task"))
        await asyncio.gather(child("gather"), asyncio.wait_for(child("wait_for"), 1))
        async with asyncio.TaskGroup() as group:
            group.create_task(child("task group"))
        async with anyio.create_task_group() as anyio_group:
            anyio_group.start_soon(child, "anyio group")
        return "done"

    @app.get("/sync")
    def sync_endpoint() -> str:
        note("sync endpoint")
        return "done"

    @app.middleware("http")
    async def function_middleware(request: Request, call_next: Callable[[Request], Any]) -> Any:
        note("function middleware")
        return await call_next(request)

    middleware = AsgiMiddleware(app)
    async with driver.nothing_left(middleware):
        assert (await asked(middleware, "/async")).status == 200
    assert len(seen) == 18
    assert len({id(each) for each in seen.values()}) == 1
    assert NO_REQUEST not in seen.values()
    first = seen["endpoint"]
    assert (await asked(middleware, "/sync")).status == 200
    assert seen["sync endpoint"] is seen["function middleware"] is not first
    assert current() is NO_REQUEST


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "BaseHTTPMiddleware"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_background_tasks_are_told_of_no_deadline_and_of_no_caller_who_left(
    kind: str, wrapped: bool
) -> None:
    seen: Log = []

    def sync_task() -> None:
        time.sleep(0.2)
        current().check()
        seen.append((current().cancel_reason, current().remaining()))

    async def async_task() -> None:
        await asyncio.sleep(0.2)
        current().check()
        seen.append((current().cancel_reason, current().remaining()))
        async with current().within(0.5), current().shield(0.1):
            await asyncio.sleep(0.01)

    async def endpoint(request: Request) -> PlainTextResponse:
        current().on_cancel(seen.append)
        return PlainTextResponse("x", background=BackgroundTask(async_task if kind == "async" else sync_task))

    class Nothing(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: Any) -> Any:
            with current().within(60):
                return await call_next(request)

    app = Starlette(routes=[Route("/", endpoint)], middleware=[Middleware(Nothing)] if wrapped else [])
    policy = ServerPolicy()
    middleware = AsgiMiddleware(app, policy)
    request = driver.Request(middleware, driver.http_scope(headers=[driver.budget(100)])).start()
    await driver.until(lambda: len(request.messages) >= 2)
    request.disconnect()
    assert slots(policy) == 1
    await request.end()
    assert (request.status, request.raised) == (200, None)
    assert [each[0] for each in seen] == [None]
    assert seen[0][1] > (50 if wrapped and kind == "async" else 0)
    assert slots(policy) == 0


@pytest.mark.parametrize("kind", ["async", "sync", "dependency", "stream"])
async def test_a_commit_in_a_section_completes_wherever_the_framework_runs_it(kind: str) -> None:
    log: Log = []
    committed_at: list[float] = []
    app = FastAPI()

    async def async_commit() -> None:
        async with current().shield(2.0):
            await asyncio.sleep(0.4)
            current().check()
            log.append("committed")
            committed_at.append(time.monotonic())

    def sync_commit() -> None:
        with current().shield(2.0):
            time.sleep(0.4)
            current().check()
            log.append("committed")
            committed_at.append(time.monotonic())

    @app.get("/async")
    async def async_endpoint() -> str:
        await async_commit()
        log.append("went on")
        return "x"

    @app.get("/sync")
    def sync_endpoint() -> str:
        sync_commit()
        return "x"

    async def session() -> AsyncIterator[None]:
        yield
        await async_commit()
        log.append("went on")

    @app.get("/dependency", dependencies=[Depends(session, scope="function")])
    async def with_dependency() -> str:
        return "x"

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "a"
            await async_commit()
            log.append("went on")
            yield "b"

        return StreamingResponse(parts())

    policy = ServerPolicy()
    middleware = AsgiMiddleware(app, policy)
    async with driver.nothing_left(middleware):
        request = await asked(middleware, f"/{kind}", 100)
        await driver.until(lambda: slots(policy) == 0)
    assert log == ["committed"]
    assert request.raised is None
    if kind == "stream":
        assert request.status == 200
        assert not any(m["type"] == "http.response.body" and not m.get("more_body") for m in request.messages)
    else:
        assert request.status == 504
        assert request.began + request.times[0] < committed_at[0] - 0.1  # whatever the section is doing


async def test_a_caller_who_leaves_a_starlette_endpoint_in_its_section() -> None:
    log: Log = []

    async def endpoint(request: Request) -> PlainTextResponse:
        async with current().shield(2.0):
            await asyncio.sleep(0.3)
            log.append("committed")
        log.append("went on")
        return PlainTextResponse("x")

    middleware = AsgiMiddleware(Starlette(routes=[Route("/", endpoint)]))
    request = driver.Request(middleware).start()
    await asyncio.sleep(0.1)
    request.disconnect()
    await request.end()
    assert log == ["committed"]
    assert driver.outcomes(middleware) == {"client_disconnect": 1}


@pytest.mark.parametrize("end", ["deadline", "disconnect"])
async def test_a_section_in_a_quart_view_is_left_into_the_cancel(end: str) -> None:
    """Quart cancels its view itself, a few turns after it has heard of the end."""
    log: Log = []
    app = Quart("shop")

    @app.get("/")
    async def view() -> str:
        async with current().shield(2.0):
            await asyncio.sleep(0.3)
            log.append("committed")
        log.append("went on")
        return "x"

    middleware = AsgiMiddleware(app)
    scope = driver.http_scope(headers=[(b"host", b"test"), driver.budget(100 if end == "deadline" else 5000)])
    request = driver.Request(middleware, scope).start()
    await asyncio.sleep(0.1)
    if end == "disconnect":
        request.disconnect()
    await request.end()
    assert log == ["committed"]
    assert driver.outcomes(middleware) == {"client_disconnect" if end == "disconnect" else "deadline": 1}


async def test_a_section_in_an_inner_application_holds_both_middlewares_back() -> None:
    log: Log = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with current().shield(2.0):
            await asyncio.sleep(0.2)
            log.append("committed")
        log.append("went on")

    inner, outer = ServerPolicy(), ServerPolicy()
    middleware = AsgiMiddleware(AsgiMiddleware(app, inner), outer)
    request = await asked(middleware, "/", 100)
    assert (request.status, request.raised, request.cancelling) == (504, None, 0)
    assert log == ["committed"]
    assert slots(inner) == slots(outer) == 0


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_call_in_a_section_has_the_sections_budget_and_one_outside_none(kind: str) -> None:
    log: Log = []
    app = FastAPI()
    prices = Dependency("prices", match="http://prices/*", retry=None)

    def told(request: httpx.Request) -> httpx.Response:
        log.append(1000 < int(request.headers["x-request-timeout-ms"]) <= 2000)
        return httpx.Response(200)

    @app.get("/sync")
    def sync_endpoint() -> str:
        with httpx.Client(transport=ResilientTransport([prices], httpx.MockTransport(told))) as client:
            time.sleep(0.2)
            with current().shield(2.0):
                log.append(client.get("http://prices/1").status_code)
            try:
                client.get("http://prices/2")
            except ResilienceError:
                log.append("refused")
                raise
        return "x"

    @app.get("/async")
    async def async_endpoint() -> str:
        async with httpx.AsyncClient(
            transport=AsyncResilientTransport([prices], httpx.MockTransport(told))
        ) as client:
            with current().shield(2.0):
                await asyncio.sleep(0.2)
                log.append((await client.get("http://prices/1")).status_code)
            try:
                await client.get("http://prices/2")
            except ResilienceError:
                log.append("refused")
                raise
        return "x"

    request = await asked(AsgiMiddleware(app), f"/{kind}", 100)
    assert request.status == 504
    assert log == [True, 200, "refused"]


# -- Flask -------------------------------------------------------------------------------------------------------------


def flask_app(seen: dict[str, RequestContext]) -> Flask:
    app = Flask("shop")

    def note(where: str) -> None:
        seen[where] = current()

    @app.before_request
    def before() -> None:
        note("before_request")

    @app.teardown_request
    def teardown(_: object) -> None:
        note("teardown")

    @app.get("/")
    def view() -> ResponseReturnValue:
        note("view")
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(note, "thread"))
        thread.start()
        thread.join()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(contextvars.copy_context().run, note, "pool").result()

        async def in_a_loop() -> None:
            note("event loop")
            await asyncio.to_thread(note, "to_thread")

        asyncio.run(in_a_loop())

        def parts() -> Iterator[str]:
            note("stream")
            yield "x"

        @after_this_request
        def later(response: Response) -> Response:
            note("after_this_request")
            return response

        response = Response(stream_with_context(parts()))
        response.call_on_close(lambda: note("call_on_close"))
        return response

    return app


def test_the_same_context_in_everything_that_flask_runs_for_a_request() -> None:
    seen: dict[str, RequestContext] = {}
    middleware = WsgiMiddleware(flask_app(seen).wsgi_app, deadline_default=5.0)
    assert ScriptedWSGI(middleware).run().status == "200 OK"
    assert len(seen) == 10
    assert len({id(each) for each in seen.values()}) == 1
    assert current() is NO_REQUEST


def test_a_commit_in_a_flask_view_has_its_time_and_the_callbacks_wait_for_it() -> None:
    log: Log = []
    app = Flask("shop")

    @app.get("/")
    def view() -> ResponseReturnValue:
        current().on_cancel(log.append)
        with current().shield(2.0) as inside:
            time.sleep(0.2)
            inside.check()
            assert 1.5 < inside.remaining() <= 2.0
            log.append("committed")
        time.sleep(0.1)
        current().check()
        return "x"

    policy = ServerPolicy(deadline_default=0.1, deadline_minimum=0.0)
    middleware = WsgiMiddleware(app.wsgi_app, policy)
    app.testing = True  # errors leave the view
    assert ScriptedWSGI(middleware).run().status == "504 Gateway Timeout"
    assert log == ["committed", CancelReason.DEADLINE]
    assert slots(policy) == 0


def test_a_section_in_a_thread_that_a_view_has_left_behind_holds_the_slot() -> None:
    log: Log = []
    entered, go_on = threading.Event(), threading.Event()
    app = Flask("shop")

    def commit() -> None:
        with current().shield(5.0):
            entered.set()
            go_on.wait(3)
            log.append("committed")

    @app.get("/")
    def view() -> ResponseReturnValue:
        current().on_cancel(log.append)
        threading.Thread(target=contextvars.copy_context().run, args=(commit,), daemon=True).start()
        assert entered.wait(3)
        time.sleep(0.15)
        return "x"

    policy = ServerPolicy(deadline_default=0.1, deadline_minimum=0.0)
    answered: Log = []
    server = ScriptedWSGI(WsgiMiddleware(app.wsgi_app, policy))
    thread = threading.Thread(target=lambda: answered.append(server.run().status))
    thread.start()
    assert entered.wait(3)
    thread.join(0.4)
    assert slots(policy) == 1
    assert log == []
    go_on.set()
    thread.join(3)
    assert answered == ["504 Gateway Timeout"]
    assert log == ["committed", CancelReason.DEADLINE]
    assert slots(policy) == 0


def test_a_section_whose_time_is_over_holds_a_flask_view_up_no_longer() -> None:
    log: Log = []
    app = Flask("shop")

    @app.get("/")
    def view() -> ResponseReturnValue:
        current().on_cancel(log.append)
        with current().shield(0.15) as inside:
            time.sleep(0.4)
            log.append("left")
            inside.check()
        return "x"

    app.testing = True
    middleware = WsgiMiddleware(app.wsgi_app, deadline_default=0.05, deadline_minimum=0.0)
    assert ScriptedWSGI(middleware).run().status == "504 Gateway Timeout"
    assert log == [CancelReason.DEADLINE, "left"]


def test_an_async_flask_view_is_cancelled_by_a_scope_and_completes_its_section() -> None:
    log: Log = []
    app = Flask("shop")

    @app.get("/")
    def view() -> ResponseReturnValue:
        async def work() -> None:
            async with current().within(10):  # the request has less
                async with current().shield(2.0):
                    await asyncio.sleep(0.2)
                    log.append("committed")
                await asyncio.sleep(5)

        asyncio.run(work())
        return "x"

    app.testing = True
    middleware = WsgiMiddleware(app.wsgi_app, deadline_default=0.1, deadline_minimum=0.0)
    began = time.monotonic()
    assert ScriptedWSGI(middleware).run().status == "504 Gateway Timeout"
    assert log == ["committed"]
    assert time.monotonic() - began < 2


def test_what_goes_on_after_a_flask_response_has_no_deadline() -> None:
    seen: Log = []
    app = Flask("shop")

    def side() -> None:
        time.sleep(0.3)
        current().check()
        seen.append((current().cancel_reason, current().remaining()))

    @app.get("/")
    def view() -> ResponseReturnValue:
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(side,), daemon=True))
        threads[0].start()
        response = Response("x")
        response.call_on_close(lambda: seen.append(current().remaining()))
        return response

    threads: list[threading.Thread] = []
    middleware = WsgiMiddleware(app.wsgi_app, deadline_default=0.2, deadline_minimum=0.0)
    assert ScriptedWSGI(middleware).run().status == "200 OK"
    threads[0].join(3)
    assert seen == [float("inf"), (None, float("inf"))]


def test_a_view_that_checks_after_its_section_is_stopped_there() -> None:
    app = Flask("shop")
    log: Log = []

    @app.get("/")
    def view() -> ResponseReturnValue:
        with current().shield(1.0):
            time.sleep(0.1)
        try:
            current().check()
        except DeadlineExceeded:
            log.append("stopped")
            raise
        return "x"

    app.testing = True
    middleware = WsgiMiddleware(app.wsgi_app, deadline_default=0.05, deadline_minimum=0.0)
    assert ScriptedWSGI(middleware).run().status == "504 Gateway Timeout"
    assert log == ["stopped"]
