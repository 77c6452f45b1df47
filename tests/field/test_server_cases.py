"""Field cases of the server half that concern a framework, a client or a real server beside the middleware."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import anyio
import fastapi
import httpx
import pytest
from fastapi import BackgroundTasks, Depends
from starlette.middleware.base import BaseHTTPMiddleware

from resilient_mw import Dependency, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw_integrations.httpx import AsyncResilientTransport
from tests.asgi.driver import Request, answer, budget, http_scope, nothing_left, outcomes, queued, until
from tests.servers.probe import MAX_WAIT
from tests.servers.processes import Server, listening
from tests.servers.test_matrix import Change, state
from tests.servers.test_matrix import until as seen
from tests.servers.wire import ask, connected

# -- B13: one deadline through layers that run what is below them in a task of their own ---------------------------------


def _deadline() -> float:
    """Return the deadline of the current context on the monotonic clock, infinite where there is none."""
    found: float = getattr(current(), "deadline_at", math.inf)
    return found


def _noting(app: Any, who: str, noted: dict[str, tuple[float, float]]) -> Any:
    """Return an application below a function middleware that notes the deadline before and after it."""

    async def dispatch(request: Any, call_next: Any) -> Any:
        before = _deadline()
        response = await call_next(request)
        noted[who] = (before, _deadline())
        return response

    return BaseHTTPMiddleware(app, dispatch)


@pytest.mark.parametrize("layers", ["above", "below", "both"])
async def test_b13_function_middlewares_dependencies_and_background_tasks_see_one_deadline(
    layers: str,
) -> None:
    """B13: handler, nested dependency, child task and background task read the same; layers above ours see none."""
    noted: dict[str, tuple[float, float]] = {}
    found: dict[str, float] = {}
    app = fastapi.FastAPI()

    def note(who: str) -> None:
        found[who] = _deadline()

    async def inner() -> None:
        note("dependency of a dependency")

    def outer(_: None = Depends(inner)) -> None:
        note("dependency in a thread")

    async def later() -> None:
        note("background")

    async def child() -> None:
        note("child")

    @app.get("/")
    async def endpoint(background: BackgroundTasks, _: None = Depends(outer)) -> str:
        note("handler")
        await asyncio.create_task(child())
        background.add_task(later)
        return "done"

    protected = ResilienceMiddleware(_noting(app, "below", noted) if layers != "above" else app)
    served: Any = _noting(protected, "above", noted) if layers != "below" else protected
    async with nothing_left(protected):
        request = await Request(served, http_scope(headers=[budget(5000)])).run()
    assert request.status == 200
    assert len(found) == 5
    assert len(set(found.values())) == 1
    assert found["handler"] < math.inf
    assert noted.get("above", (math.inf, math.inf)) == (math.inf, math.inf)
    assert noted.get("below", (found["handler"],) * 2) == (found["handler"],) * 2


# -- B14: what a handler has open when its caller leaves is closed in the task that opened it ----------------------------


class Opened:
    """Scopes that were opened and closed, and whether by the same task."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None
        count = task.cancelling()
        async with current().within(5):
            self.opened += 1
            try:
                yield
            finally:
                assert asyncio.current_task() is task
                await asyncio.sleep(0)
                self.closed += 1
        assert task.cancelling() == count


async def _in_a_generator(opened: Opened) -> None:
    async def numbers() -> AsyncIterator[int]:
        async with opened.scope():
            yield 1
            await asyncio.sleep(5)

    async for _ in numbers():
        pass


async def _around_a_gather(opened: Opened) -> None:
    async def child() -> None:
        async with opened.scope():
            await asyncio.sleep(5)

    async with opened.scope():
        await asyncio.gather(child(), child())


async def _in_a_group_of_anyio(opened: Opened) -> None:
    async def child() -> None:
        async with opened.scope():
            await anyio.sleep(5)

    async with opened.scope(), anyio.create_task_group() as group:
        group.start_soon(child)
        group.start_soon(child)


async def _in_an_exit_stack(opened: Opened) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(opened.scope())
        await asyncio.sleep(5)


@pytest.mark.parametrize("ends", ["disconnect", "deadline"])
@pytest.mark.parametrize(
    ("work", "scopes"),
    [(_in_a_generator, 1), (_around_a_gather, 3), (_in_a_group_of_anyio, 3), (_in_an_exit_stack, 3)],
)
async def test_b14_scopes_are_closed_where_they_were_opened(work: Any, scopes: int, ends: str) -> None:
    """B14: in a dependency with a yield, a generator, a gather, a group of anyio. No complaint, no cancel left over."""
    opened = Opened()
    app = fastapi.FastAPI()

    async def dependency() -> AsyncIterator[None]:
        async with opened.scope():
            yield

    @app.get("/")
    async def endpoint(_: None = Depends(dependency)) -> str:
        await work(opened)
        return "done"

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(
            middleware, http_scope(headers=[budget(150 if ends == "deadline" else 5000)])
        ).start()
        await until(lambda: opened.opened == scopes + 1, 1.0)
        if ends == "disconnect":
            request.disconnect()
        await request.end(2.0)
        gc.collect()
    assert opened.closed == opened.opened
    assert (request.raised, request.cancelling) == (None, 0)
    assert outcomes(middleware) == {"client_disconnect" if ends == "disconnect" else "deadline": 1}


# -- B31: what was waited for is missing in what is sent on --------------------------------------------------------------


async def test_b31_a_wait_and_a_slow_upload_are_missing_in_the_budget_that_is_sent_on() -> None:
    """B31: of 2 s, 0.2 s went in the queue and 0.2 s in the upload; the call downstream says what is left."""
    said: list[int] = []

    def downstream(request: httpx.Request) -> httpx.Response:
        said.append(int(request.headers["x-request-timeout-ms"]))
        return httpx.Response(200)

    dependency = Dependency("stock", match="http://stock.example/*")
    transport = AsyncResilientTransport([dependency], httpx.MockTransport(downstream))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/first":
            await asyncio.sleep(0.2)
        else:
            while (await receive()).get("more_body", False):
                pass
            async with httpx.AsyncClient(transport=transport) as client:
                await client.get("http://stock.example/")
        await answer(send)

    middleware = ResilienceMiddleware(app, limit=1, queue=1)
    async with nothing_left(middleware):
        first = Request(middleware, http_scope("/first")).start()
        await asyncio.sleep(0.01)
        second = Request(middleware, http_scope(method="POST", headers=[budget(2000)]), body=[]).start()
        await until(lambda: queued(middleware) == 1)
        await first.end()
        await asyncio.sleep(0.2)
        gone = time.monotonic() - second.began
        second.feed(b"x", more_body=False)
        await second.end()
    assert (first.status, second.status) == (200, 200)
    assert gone >= 0.35
    assert said[0] <= 2000 - gone * 1000 + 5


# -- B97: what users write where seconds are wanted ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "5",
        b"5",
        -1,
        -1e-9,
        math.nan,
        -math.inf,
        Decimal(5),
        Fraction(5),
        datetime.timedelta.max,
        [5],
        5j,
    ],
    ids=repr,
)
async def test_b97_what_is_no_number_of_seconds_is_told_at_once(value: Any) -> None:
    """B97: ValueError where it is written, naming the value."""
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(ValueError, match="seconds=") as caught:
            current().within(value)
        told.append(str(caught.value))
        await answer(send)

    request = await Request(ResilienceMiddleware(app)).run()
    assert request.status == 200
    assert repr(value) in told[0]


@pytest.mark.parametrize("value", [1e12, 0x3C000001, 1e308, math.inf, 2**62], ids=repr)
async def test_b97_more_than_anybody_can_wait_is_bounded_by_what_is_left(value: float) -> None:
    """B97: no timer overflows, and the deadline of the request holds."""
    left: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with current().within(value):
            left.append(current().remaining())
        async with current().within(value):
            left.append(current().remaining())
            await asyncio.to_thread(lambda: left.append(current().remaining()))
            await asyncio.sleep(5)

    middleware = ResilienceMiddleware(app, deadline_default=0.3)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert request.status == 504
    assert len(left) == 3
    assert max(left) <= 0.3


async def test_b97_no_time_at_all_is_a_deadline_too() -> None:
    """B97: 0 is over, not endless."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(DeadlineExceeded):
            async with current().within(0):
                await asyncio.sleep(5)
        await answer(send)

    assert (await Request(ResilienceMiddleware(app)).run(1.0)).status == 200


# -- B98: a process that stood still -------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    pytest.importorskip("uvicorn")
    with listening("uvicorn-httptools", tmp_path) as running:
        yield running


@pytest.mark.slow
async def test_b98_after_a_standstill_nobody_is_served_whose_time_is_over(server: Server) -> None:
    """B98: the process is stopped for a while with one request at work, one in the queue and a new one on its way."""
    change = Change(await state(server))
    async with AsyncExitStack() as stack:
        working, waiting, fresh = [await stack.enter_async_context(connected(server.port)) for _ in range(3)]
        await working.send("/hold")  # every slot
        await seen(server, lambda now: now["slots"] == 20, 1.0)
        await waiting.send("/work", budget=5000)
        await seen(server, lambda now: now["queued"] == 1, 1.0)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            await fresh.send("/hello")
            await asyncio.sleep(MAX_WAIT + 0.5)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        resumed = time.monotonic()
        late = await waiting.read()
        assert (late.status, late.headers["x-refusal-reason"]) == (503, "queue_timeout")
        await ask(server.port, "/go")
        assert (await fresh.read()).status == 200
        assert time.monotonic() - resumed < 1.5
        assert (await working.read()).status == 200
    now = await state(server)
    assert change.of(now, "begun") == 1, "/work was never begun"
    assert (now["slots"], now["queued"], now["errors"]) == (0, 0, 0)


@pytest.mark.slow
async def test_b98_what_was_at_work_is_told_as_soon_as_the_process_goes_on(server: Server) -> None:
    """B98: the deadline passed meanwhile; 504 at once, and the work is cancelled."""
    change = Change(await state(server))
    async with connected(server.port) as wire:
        await wire.send("/sleep", budget=1000)
        await seen(server, lambda now: change.of(now, "begun") == 1, 0.9)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(1.5)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        answered = await wire.read()
        assert answered.status == 504
        assert answered.seconds < 3.0
    assert change.of(await state(server), "cancelled: deadline") == 1
