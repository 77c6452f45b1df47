"""How supervision gets on with anyio scopes, as Starlette and FastAPI use them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.context import current
from tests.runtime.small_shell import (
    App,
    Exchange,
    Held,
    Outcome,
    Shell,
    expired,
    nothing_left,
    plain,
    run,
    run_held,
    serve,
    until,
)

pytestmark = pytest.mark.usefixtures("own_time")


class Log:
    """What the parts of a handler did."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.clean: list[str] = []
        self.seen: list[str] = []
        self.cancels = 0

    async def work(self, name: str, clean_up: float = 0.03) -> None:
        """Wait long; when cancelled, clean up with several awaits, which one more cancel would break."""
        self.begun.append(name)
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            self.cancels += 1
            for _ in range(3):
                await asyncio.sleep(clean_up / 3)
            self.clean.append(name)
            raise

    @asynccontextmanager
    async def resource(self, name: str, clean_up: float = 0.03) -> AsyncIterator[None]:
        """Be a database session: its end awaits something."""
        self.begun.append(name)
        try:
            yield
        finally:
            for _ in range(3):
                await asyncio.sleep(clean_up / 3)
            self.clean.append(name)

    def all_clean(self) -> None:
        assert sorted(self.clean) == sorted(self.begun)


class Wrapping(BaseHTTPMiddleware):
    """A function-style middleware that holds a session around the rest and tells what it saw."""

    def __init__(self, app: Any, log: Log, name: str = "dispatch") -> None:
        super().__init__(app)
        self.log = log
        self.name = name

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        async with self.log.resource(self.name, 0.01):
            try:
                return await call_next(request)
            except BaseException as error:
                self.log.seen.append(type(error).__name__)
                raise


def starlette(log: Log, endpoint: Callable[..., Any], wrappings: int = 0) -> App:
    middleware = [Middleware(Wrapping, log=log, name=f"dispatch {number}") for number in range(wrappings)]
    return Starlette(routes=[Route("/", endpoint)], middleware=middleware)


@pytest.mark.parametrize("wrappings", [0, 1, 3])
async def test_an_endpoint_and_every_middleware_around_it_clean_up(wrappings: int) -> None:
    log = Log()

    async def endpoint(request: Request) -> Response:
        await log.work("endpoint")
        return PlainTextResponse("never")

    async with nothing_left():
        outcome = await run(starlette(log, endpoint, wrappings))
    expired(outcome)
    log.all_clean()
    assert log.cancels == 1
    assert log.seen == ["CancelledError"] * wrappings
    assert outcome.late == 0


async def test_function_middleware_inside_and_endpoint_with_a_group() -> None:
    log = Log()

    async def endpoint(request: Request) -> Response:
        async with log.resource("session"), anyio.create_task_group() as group:
            group.start_soon(log.work, "a", 0.01)
            group.start_soon(log.work, "b", 0.08)
            await log.work("c", 0.05)
        return PlainTextResponse("never")

    async with nothing_left():
        outcome = await run(starlette(log, endpoint, 2))
    expired(outcome)
    log.all_clean()
    assert len(log.clean) == 6
    assert log.cancels == 3


async def _anyio_group(log: Log) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(log.work, "a", 0.01)
        group.start_soon(log.work, "b", 0.09)


async def _anyio_group_with_a_session_around(log: Log) -> None:
    async with log.resource("session"):
        await _anyio_group(log)


async def _group_in_group(log: Log) -> None:
    async def child(name: str) -> None:
        async with log.resource(f"session {name}"), anyio.create_task_group() as group:
            group.start_soon(log.work, f"{name}1", 0.01)
            group.start_soon(log.work, f"{name}2", 0.05)

    async with anyio.create_task_group() as group:
        group.start_soon(child, "a")
        group.start_soon(child, "b")
        group.start_soon(log.work, "c", 0.01)


async def _started_child(log: Log) -> None:
    async def child(task_status: Any) -> None:
        task_status.started()
        await log.work("started")

    async def never_started(task_status: Any) -> None:
        await log.work("starting")

    async with anyio.create_task_group() as group:
        await group.start(child)
        await group.start(never_started)


async def _mixed(log: Log) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_anyio_group(log))
        group.create_task(log.work("c", 0.05))


async def _scopes(log: Log) -> None:
    with anyio.move_on_after(3):
        with anyio.fail_after(3):
            async with log.resource("session"):
                await log.work("a")


async def _shielded_scope(log: Log) -> None:
    with anyio.CancelScope(shield=True):
        await log.work("a")


async def _scopes_in_children(log: Log) -> None:
    async def child(name: str) -> None:
        with anyio.move_on_after(3):
            await log.work(name)

    async with anyio.create_task_group() as group:
        group.start_soon(child, "a")
        with anyio.fail_after(3):
            await child("b")


async def _stream(log: Log) -> None:
    sender, receiver = anyio.create_memory_object_stream[str]()

    async def produce() -> None:
        async with sender:
            await log.work("producer")

    async with anyio.create_task_group() as group, receiver, log.resource("consumer"):
        group.start_soon(produce)
        async for _ in receiver:
            pass


SHAPES = [
    _anyio_group, _anyio_group_with_a_session_around, _group_in_group, _started_child, _mixed, _scopes,
    _shielded_scope, _scopes_in_children, _stream,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_part_below_an_anyio_scope_is_cancelled_once_and_cleans_up(
    shape: Callable[[Log], Awaitable[None]],
) -> None:
    log = Log()
    async with nothing_left():
        outcome = await run(plain(lambda: shape(log)))
    expired(outcome)
    log.all_clean()
    assert log.cancels == sum(not name.startswith(("session", "consumer")) for name in log.begun)
    assert outcome.late == 0


async def test_an_own_scope_that_times_out_still_works_afterwards() -> None:
    shell = Shell(plain(lambda: _anyio_group(Log())), deadline=0.03)
    outcome = Outcome()
    await shell({"type": "http"}, outcome)
    with anyio.move_on_after(0.01) as scope:
        await anyio.sleep(1)
    assert scope.cancelled_caught
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0.001)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_one_that_swallows_below_a_group_is_ended_by_the_nudge() -> None:
    seen: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            seen.append("swallowed")
        await asyncio.sleep(5)

    async def handler() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(stubborn)

    outcome = await run(plain(handler))
    expired(outcome)
    assert seen == ["swallowed"]
    assert outcome.late == 1
    assert outcome.returned_at == pytest.approx(0.36, abs=0.06)


async def test_a_child_that_has_not_begun_is_cancelled_in_its_first_wait() -> None:
    """Cancelled before its first step it would leave a coroutine that was never awaited."""
    log = Log()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        record = current()
        assert isinstance(record, Exchange)
        async with anyio.create_task_group() as group:
            record.supervisor.fire_soon(record, CancelReason.SHUTDOWN)
            group.start_soon(log.work, "child")
            await asyncio.sleep(5)

    async with nothing_left():
        outcome = await run(app, deadline=5)
    log.all_clean()
    assert log.cancels == 1
    assert outcome.late == 0
    assert outcome.cancelling == 0


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrappings", [0, 1, 2])
@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_begun_stream_is_cut_and_cleans_up(wrappings: int, spec_version: str) -> None:
    log = Log()

    async def body() -> AsyncIterator[bytes]:
        async with log.resource("session"):
            for _ in range(1000):
                yield b"x"
                await asyncio.sleep(0.01)

    async def endpoint(request: Request) -> Response:
        return StreamingResponse(body())

    asgi = {"version": "3.0", "spec_version": spec_version}
    async with nothing_left():
        outcome = await run(starlette(log, endpoint, wrappings), asgi=asgi)
    assert outcome.status == 200
    assert not outcome.finished
    assert outcome.raised is None
    assert outcome.cancelling == 0
    assert outcome.returned_at is not None
    assert outcome.returned_at < 2.0
    log.all_clean()


@pytest.mark.parametrize("wrappings", [0, 1])
@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_stream_that_waits_for_its_first_chunk_cleans_up(wrappings: int, spec_version: str) -> None:
    """The head has passed; the generator waits as it would for a query."""
    log = Log()

    async def body() -> AsyncIterator[bytes]:
        async with log.resource("session"):
            await log.work("query", 0.06)
            yield b"never"

    async def endpoint(request: Request) -> Response:
        return StreamingResponse(body())

    asgi = {"version": "3.0", "spec_version": spec_version}
    async with nothing_left():
        outcome = await run(starlette(log, endpoint, wrappings), asgi=asgi)
    assert outcome.status == 200
    assert outcome.raised is None
    assert log.cancels == 1
    log.all_clean()


@pytest.mark.parametrize("wrappings", [0, 1])
@pytest.mark.in_real_time
async def test_a_stream_from_a_thread_is_closed_at_once_and_its_slot_held(wrappings: int) -> None:
    held = Held()

    def body() -> Iterator[bytes]:
        yield b"x"
        held.work()
        yield b"y"

    async def endpoint(request: Request) -> Response:
        return StreamingResponse(body())

    async with nothing_left():
        shell = Shell(starlette(Log(), endpoint, wrappings))
        outcome = await serve(shell)
        assert outcome.releases == 0
        held.release.set()
        await until(lambda: shell.taken == 0)
    assert outcome.status == 200
    assert outcome.raised is None
    assert outcome.cancelling == 0
    assert 0 <= outcome.freed_after(held.ended[0]) < 2.0


@pytest.mark.parametrize("wrappings", [0, 1])
@pytest.mark.in_real_time
async def test_b01_background_tasks_live_after_a_complete_response(wrappings: int) -> None:
    """B01: the deadline and the disconnect after the response cancel nothing."""
    done: list[bool] = []

    async def background() -> None:
        await asyncio.sleep(0.3)
        done.append(True)

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok", background=BackgroundTask(background))

    shell = Shell(starlette(Log(), endpoint, wrappings))
    outcome = Outcome()
    request = asyncio.create_task(serve(shell, outcome=outcome))
    await asyncio.sleep(0.05)
    outcome.disconnect()
    await request
    assert done == [True]
    assert outcome.status == 200
    assert outcome.releases == 1
    assert outcome.released_at is not None
    assert outcome.released_at >= 0.3


# -- threads -----------------------------------------------------------------------------------------------------------


async def _to_thread(held: Held) -> None:
    await anyio.to_thread.run_sync(held.work)


async def _abandoned(held: Held) -> None:
    await anyio.to_thread.run_sync(held.work, abandon_on_cancel=True)


async def _thread_in_anyio_group(held: Held) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, held.work)
        group.start_soon(anyio.sleep, 5)


async def _thread_in_a_group_of_asyncio(held: Held) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(anyio.to_thread.run_sync(held.work))
        group.create_task(asyncio.sleep(5))


async def _thread_in_gather(held: Held) -> None:
    await asyncio.gather(anyio.to_thread.run_sync(held.work), asyncio.sleep(5))


async def _executor_in_anyio_group(held: Held) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(asyncio.to_thread, held.work)
        group.start_soon(anyio.sleep, 5)


async def _thread_in_scope(held: Held) -> None:
    with anyio.fail_after(3):
        await anyio.to_thread.run_sync(held.work)


async def _thread_behind_a_context_manager(held: Held) -> None:
    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        await anyio.to_thread.run_sync(held.work)
        yield

    async with resource():
        pass


THREADS = [
    _to_thread, _abandoned, _thread_in_anyio_group, _thread_in_a_group_of_asyncio, _thread_in_gather,
    _executor_in_anyio_group, _thread_in_scope, _thread_behind_a_context_manager,
]  # fmt: skip


@pytest.mark.parametrize("shape", THREADS)
@pytest.mark.in_real_time
async def test_b17_the_504_leaves_on_time_and_the_slot_is_held_until_the_thread_ends(
    shape: Callable[[Held], Awaitable[None]],
) -> None:
    """B17 for anyio's threads."""
    held = Held()
    async with nothing_left():
        outcome = await run_held(plain(lambda: shape(held)), held, late=True)
    expired(outcome)
    assert 0 <= outcome.freed_after(held.ended[0]) < 2.0
    assert outcome.late == 1


@pytest.mark.parametrize("wrappings", [0, 2])
@pytest.mark.in_real_time
async def test_b17_a_sync_endpoint_of_starlette(wrappings: int) -> None:
    """B17: also inside function-style middleware; the thread limit is respected meanwhile."""
    log = Log()
    held = Held()

    def endpoint(request: Request) -> Response:
        held.work()
        return PlainTextResponse("too late")

    async with nothing_left():
        outcome = await run_held(starlette(log, endpoint, wrappings), held, late=True)
    expired(outcome)
    assert outcome.freed_after(held.ended[0]) >= 0
    log.all_clean()


@pytest.mark.in_real_time
async def test_the_thread_limit_of_anyio_is_not_outgrown() -> None:
    lock = threading.Lock()
    at_work = most = 0

    def endpoint(request: Request) -> Response:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        exchange = current()
        assert isinstance(exchange, Exchange)
        while exchange.reason is None:
            time.sleep(0.005)
        time.sleep(0.08)
        with lock:
            at_work -= 1
        return PlainTextResponse("too late")

    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 2
    shell = Shell(starlette(Log(), endpoint), deadline=0.04)
    try:
        async with nothing_left():
            outcomes = await asyncio.gather(*(serve(shell) for _ in range(20)))
            await until(lambda: shell.taken == 0)
            assert limiter.borrowed_tokens == 0
    finally:
        limiter.total_tokens = before
    assert [outcome.status for outcome in outcomes] == [504] * 20
    assert most == 2


@pytest.mark.in_real_time
async def test_work_that_still_queues_for_a_thread_never_runs() -> None:
    ran: list[str] = []
    limiter = anyio.CapacityLimiter(1)

    held = Held()

    async def blocker() -> None:
        await anyio.to_thread.run_sync(held.work, limiter=limiter)

    async def handler() -> None:
        await anyio.to_thread.run_sync(ran.append, "ran", limiter=limiter)

    async with nothing_left():
        blocked = asyncio.create_task(blocker())
        await until(lambda: limiter.borrowed_tokens == 1)
        outcome = await run(plain(handler))
        expired(outcome)
        assert not blocked.done()
        held.release.set()
        await blocked
    assert ran == []


@pytest.mark.in_real_time
async def test_a_worker_that_takes_its_next_call_is_not_mistaken_for_the_old_one() -> None:
    """The thread of a cut stream comes back and is given to somebody else before it is looked at."""
    limiter = anyio.CapacityLimiter(1)
    held = Held()
    others: list[asyncio.Task[None]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await anyio.to_thread.run_sync(held.work, limiter=limiter)

    async def next_call() -> None:
        # Cut off from its thread, the request has given its token back: this one waits for the thread itself.
        for _ in range(60):
            await anyio.to_thread.run_sync(time.sleep, 0.03, limiter=limiter)

    async with nothing_left():
        shell = Shell(app)
        await serve(shell)
        assert shell.taken == 1
        held.release.set()
        await until(lambda: bool(held.ended))
        others.append(asyncio.create_task(next_call()))
        await until(lambda: shell.taken == 0)
        assert not others[0].done()
        await others[0]


# -- async code below a thread -----------------------------------------------------------------------------------------


@pytest.mark.in_real_time
async def test_what_a_thread_calls_back_into_is_cancelled() -> None:
    log = Log()

    def in_thread() -> None:
        anyio.from_thread.run(log.work, "below")

    async with nothing_left():
        outcome = await run(plain(lambda: anyio.to_thread.run_sync(in_thread)))
    expired(outcome)
    assert log.clean == ["below"]
    assert outcome.released_at is not None
    assert outcome.released_at < 2.0


@pytest.mark.parametrize("wrappings", [0, 1])
@pytest.mark.in_real_time
async def test_what_a_sync_endpoint_calls_back_into_is_cancelled(wrappings: int) -> None:
    log = Log()

    def endpoint(request: Request) -> Response:
        anyio.from_thread.run(log.work, "below")
        return PlainTextResponse("never")

    async with nothing_left():
        outcome = await run(starlette(log, endpoint, wrappings))
    expired(outcome)
    log.all_clean()
    assert outcome.released_at is not None
    assert outcome.released_at < 2.0


@pytest.mark.in_real_time
async def test_run_coroutine_threadsafe_below_a_thread_is_left_to_end() -> None:
    """Not structurally seen: the slot is held by the thread."""
    log: list[str] = []
    loop = asyncio.get_running_loop()

    async def below() -> None:
        await asyncio.sleep(0.3)
        log.append("ended")

    def in_thread() -> None:
        asyncio.run_coroutine_threadsafe(below(), loop).result()

    outcome = await run(plain(lambda: asyncio.to_thread(in_thread)))
    expired(outcome)
    assert log == ["ended"]
    assert outcome.released_at is not None
    assert outcome.released_at >= 0.3


# -- FastAPI -----------------------------------------------------------------------------------------------------------


def fastapi(log: Log, *, slow_enter: float = 0.0, slow_exit: float = 0.0, endpoint: float = 0.0) -> App:
    app = FastAPI()

    def sync_resource() -> Iterator[str]:
        log.begun.append("sync")
        time.sleep(slow_enter)
        try:
            yield "value"
        finally:
            assert threading.current_thread() is not threading.main_thread()
            time.sleep(slow_exit)
            log.clean.append("sync")

    async def async_resource() -> AsyncIterator[str]:
        async with log.resource("async", 0.006):
            yield "value"

    @app.get("/async")
    async def get_async(a: str = Depends(async_resource), b: str = Depends(sync_resource)) -> str:
        await log.work("endpoint")
        return a + b

    @app.get("/sync")
    def get_sync(a: str = Depends(async_resource), b: str = Depends(sync_resource)) -> str:
        time.sleep(endpoint)
        return a + b

    return app


@pytest.mark.parametrize("path", ["/async", "/sync"])
@pytest.mark.parametrize("where", ["slow_enter", "slow_exit", "endpoint"])
@pytest.mark.in_real_time
async def test_fastapi_runs_every_clean_up_in_its_place(path: str, where: str) -> None:
    """The dependency with `yield` is closed in a thread, not at garbage collection in the loop's thread."""
    log = Log()
    async with nothing_left():
        outcome = await run(fastapi(log, **{where: 0.25}), path)
    if outcome.answered_at is not None and outcome.status == 504:
        expired(outcome)
    log.all_clean()
    assert "sync" in log.clean
    assert outcome.cancelling == 0
    assert outcome.raised is None


@pytest.mark.parametrize("offset", [number * 0.0005 - 0.002 for number in range(9)])
@pytest.mark.in_real_time
async def test_fastapi_around_the_instant_at_which_the_thread_returns(offset: float) -> None:
    log = Log()
    async with nothing_left():
        outcome = await run(fastapi(log, slow_enter=0.05 + offset, endpoint=0.05), "/sync", deadline=0.055)
    assert outcome.status == 504
    log.all_clean()
    assert outcome.cancelling == 0


async def test_the_check_in_the_grace_refuses_the_next_step() -> None:
    ran: list[str] = []
    app = FastAPI()

    def slow() -> None:
        time.sleep(0.2)

    def refuse(_: None = Depends(slow)) -> None:
        current().check()

    @app.get("/")
    def endpoint(_: None = Depends(refuse)) -> str:
        ran.append("ran")
        return "late"

    expired(await run(app))
    assert ran == []
