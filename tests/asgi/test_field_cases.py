"""Faults that people met elsewhere, as far as they show without a real server. The ids are those of `tests/field/CASES.md`."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import anyio.to_thread
import fastapi
import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from resilient_mw import current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.core.events import Refused
from tests.asgi.driver import (
    App,
    Counting,
    Message,
    Request,
    answer,
    budget,
    figures,
    hello,
    http_scope,
    is_idle,
    nothing_left,
    outcomes,
    plain,
    queued,
    slots,
    until,
)

pytestmark = pytest.mark.usefixtures("own_time")


ON_TIME = 0.25


def refused(middleware: ResilienceMiddleware) -> dict[str, int]:
    total: dict[str, int] = {}
    for route in figures(middleware).routes:
        for reason, count in route.refused.items():
            total[reason] = total.get(reason, 0) + count
    return total


def function_middleware(app: App) -> App:
    """What `@app.middleware("http")` puts around an application."""

    async def dispatch(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    wrapped: Any = BaseHTTPMiddleware(app, dispatch)
    return wrapped  # type: ignore[no-any-return]


# -- who leaves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [True, False], ids=["outside ours", "inside ours"])
@pytest.mark.parametrize("telling", ["latched", "one-shot"])
async def test_b04_abandoned_requests_are_cancelled_through_function_middlewares(
    outside: bool, telling: str
) -> None:
    """B04: such a middleware runs what is below it in a task of its own, behind memory streams."""
    cancelled = 0
    asked: list[bool] = []

    async def endpoint(request: Any) -> PlainTextResponse:
        nonlocal cancelled
        await request.body()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled += 1
            asked.append(await request.is_disconnected())
            raise
        return PlainTextResponse("")

    app: Any = Starlette(routes=[Route("/", endpoint)])
    middleware: Any = ResilienceMiddleware(app if outside else function_middleware(app), limit=20)
    served = function_middleware(middleware) if outside else middleware
    async with nothing_left(middleware):
        requests = [Request(served, telling=telling).start() for _ in range(20)]
        await asyncio.sleep(0.1)
        left = time.monotonic()
        for request in requests:
            request.disconnect()
        await until(lambda: cancelled == 20 and slots(middleware) == 0, 1.0)
        assert time.monotonic() - left < 1.0
        for request in requests:
            await request.end(1.0)
    # Below a function middleware Starlette's is_disconnected() never becomes true, with us or without.
    assert asked == [outside] * 20
    assert outcomes(middleware) == {"client_disconnect": 20}
    # Outside, the framework's own middleware has no answer to pass on, and says so: without us it does the same.
    assert {type(request.raised) for request in requests} == {RuntimeError if outside else type(None)}


@pytest.mark.parametrize("leave_after", [0.01, 0.06, 0.09, 0.1, 0.105])
async def test_b05_callers_who_leave_around_the_answer_make_no_error(leave_after: float) -> None:
    """B05: function middlewares inside ours, several of ours, and the caller leaves before, at and after the answer."""

    async def endpoint(request: Any) -> PlainTextResponse:
        await asyncio.sleep(0.1)
        return PlainTextResponse("x" * 10_000)

    layered: Any = Starlette(routes=[Route("/", endpoint)])
    for _ in range(2):
        layered = function_middleware(layered)
    inner: Any = ResilienceMiddleware(layered, limit=40)
    outer = ResilienceMiddleware(inner, limit=40)
    async with nothing_left(outer, inner):
        requests = [Request(outer).start() for _ in range(20)]
        await asyncio.sleep(leave_after)
        for number, request in enumerate(requests):
            request.disconnect()
            if number % 5 == 4:
                await asyncio.sleep(0)
        for request in requests:
            await request.end(1.0)
    assert [request.raised for request in requests if request.raised] == []
    assert {request.status for request in requests} <= {200, None}
    assert set(outcomes(outer)) <= {"client_disconnect", "completed"}


async def test_b05_what_others_do_about_a_caller_who_left_is_no_error() -> None:
    """B05: a layer below finds an empty stream and raises because the one above it was cut off."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise RuntimeError("No response returned.") from None

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await asyncio.sleep(0.01)
        request.disconnect()
        await request.end(1.0)
    assert (request.raised, request.messages) == (None, [])
    assert outcomes(middleware) == {"client_disconnect": 1}


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gzip", [False, True])
async def test_b16_events_pass_as_they_happen(gzip: bool) -> None:
    """B16: the head leaves before the first event, and each event on its own."""
    made: list[float] = []

    async def events() -> Any:
        for number in range(3):
            await asyncio.sleep(0.5)
            made.append(time.monotonic() - request.began)
            yield f"data: {number}\n\n"

    async def endpoint(request: Any) -> StreamingResponse:
        return StreamingResponse(events(), media_type="text/event-stream")

    app: Any = Starlette(routes=[Route("/", endpoint)])
    middleware = ResilienceMiddleware(GZipMiddleware(app) if gzip else app)
    async with nothing_left(middleware):
        request = Request(middleware, http_scope(headers=[(b"accept-encoding", b"gzip")]))
        await request.run()
    assert request.status == 200
    assert request.times[0] < 0.4
    bodies = [at for at, each in zip(request.times, request.messages, strict=True) if each.get("body")]
    assert all(0 <= at - due < 0.4 for at, due in zip(bodies[-3:], made, strict=True))


async def test_b35_a_slot_is_held_to_the_end_of_the_body() -> None:
    """B35: not to its head; and a body that ends early frees it."""
    streaming = most = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal streaming, most
        await send({"type": "http.response.start", "status": 200, "headers": []})
        streaming += 1
        most = max(most, streaming)
        try:
            for _ in range(6):
                await asyncio.sleep(0.02)
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                if scope["path"] == "/fails":
                    raise LookupError
            await send({"type": "http.response.body"})
        finally:
            streaming -= 1

    middleware = ResilienceMiddleware(app, limit=2, queue=9, wait_share=1.0)
    async with nothing_left(middleware):
        requests = [
            Request(middleware, http_scope(path)).start() for path in ("/", "/", "/fails", "/", "/", "/fails")
        ]
        await asyncio.sleep(0.05)
        assert (slots(middleware), queued(middleware)) == (2, 4)
        requests[3].disconnect()  # in the queue
        for request in requests:
            await request.end()
    assert most == 2
    assert [request.complete for request in requests] == [True, True, False, False, True, False]


# -- bursts and backlogs -----------------------------------------------------------------------------------------------


async def test_b37_a_burst_in_one_turn_of_the_loop_passes_no_bound() -> None:
    """B37: the check and the taking of the slot are one step."""
    app = Counting()
    events: list[object] = []
    middleware = ResilienceMiddleware(app, limit=5, queue=0, listeners=[events.append])
    async with nothing_left(middleware):
        requests = [Request(middleware).start() for _ in range(500)]
        await until(lambda: sum(request.status == 503 for request in requests) == 495)
        assert (app.running, slots(middleware)) == (5, 5)
        app.gate.set()
        for request in requests:
            await request.end()
    assert (app.begun, app.most) == (5, 5)
    assert refused(middleware) == {"queue_full": 495}
    assert len([event for event in events if isinstance(event, Refused)]) == 495


async def test_b37_the_queue_passes_no_bound_either() -> None:
    """B37: 5 run, 7 wait, the rest is refused."""
    app = Counting()
    middleware = ResilienceMiddleware(app, limit=5, queue=7)
    async with nothing_left(middleware):
        requests = [Request(middleware).start() for _ in range(300)]
        await until(lambda: sum(request.status == 503 for request in requests) == 288)
        assert (slots(middleware), queued(middleware)) == (5, 7)
        app.gate.set()
        for request in requests:
            await request.end()
    assert (app.begun, app.most) == (12, 5)


async def test_b29_no_work_begins_for_those_who_left_or_whose_time_is_over() -> None:
    """B29: after a stall, the backlog holds only requests that somebody still waits for."""
    begun: list[str] = []
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await gate.wait()
        await answer(send)

    middleware = ResilienceMiddleware(
        app, limit=1, queue=100, max_wait=0.4, wait_share=1.0, deadline_default=5.0
    )
    async with nothing_left(middleware):
        blocked = Request(middleware, http_scope("/blocked")).start()
        await until(lambda: begun == ["/blocked"])
        requests: list[Request] = []
        for number in range(100):
            kind = ("/leaves", "/short", "/waits", "/leaves")[number % 4]
            headers = [budget(150)] if kind == "/short" else []
            requests.append(Request(middleware, http_scope(kind, headers=headers)).start())
        await until(lambda: queued(middleware) == 100)
        for request in requests:
            if request.scope["path"] == "/leaves":
                request.disconnect()
        await until(lambda: queued(middleware) == 50, 0.2)
        for request in requests:
            await request.end(1.0)
        assert queued(middleware) == 0
        # All were told on time, while the handler was still blocked.
        for request in requests:
            kind = request.scope["path"]
            if kind == "/leaves":
                assert request.messages == []
            else:
                due = 0.15 if kind == "/short" else 0.4
                reason = "expired_in_queue" if kind == "/short" else "queue_timeout"
                assert request.header("x-refusal-reason") == reason
                assert due - 0.01 <= request.times[0] < due + ON_TIME
        gate.set()
        await blocked.end()
        fresh = await Request(middleware, http_scope("/fresh")).run()
        assert fresh.times[0] < 0.5
    assert begun == ["/blocked", "/fresh"]


@pytest.mark.in_real_time
async def test_b38_a_dependency_that_never_answers_piles_nothing_up() -> None:
    """B38: requests, their bodies and their memory stay bounded; refusals are quick and read no body."""
    dependency = asyncio.Event()
    body = b"x" * 50_000
    middleware = ResilienceMiddleware(
        plain(dependency.wait), limit=20, queue=40, max_wait=0.3, deadline_default=0.5, wait_share=1.0
    )
    alive: set[Request] = set()
    most = unread_refusals = refusals = 0
    async with nothing_left(middleware):
        for _ in range(150):
            for _ in range(4):
                request = Request(middleware, http_scope(method="POST"), body=[body] * 3).start()
                assert request.task is not None
                alive.add(request)
            await asyncio.sleep(0.004)
            for request in [each for each in alive if each.task is not None and each.task.done()]:
                alive.discard(request)
                if request.header("x-refusal-reason") == "queue_full":
                    refusals += 1
                    unread_refusals += len(request._incoming) == 3
            most = max(most, len(alive))
        for request in alive:
            await request.end()
        assert most <= 60 + 8
        assert refusals == unread_refusals > 300
        dependency.set()
        recovered = await Request(middleware).run()
        assert (recovered.status, recovered.times[0] < 0.5) == (200, True)


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.in_real_time
async def test_b17_a_thread_keeps_its_slot_until_it_returns() -> None:
    """B17: limit 2, a pool of two, 20 expired requests with sync endpoints: never more than two threads at work."""
    lock = threading.Lock()
    working = most = begun = 0
    seen: list[bool] = []
    app = fastapi.FastAPI()

    @app.get("/")
    def endpoint() -> str:
        nonlocal working, most, begun
        with lock:
            working += 1
            begun += 1
            most = max(most, working)
        time.sleep(0.3)
        seen.append(current().cancelled)
        with lock:
            working -= 1
        return "done"

    middleware = ResilienceMiddleware(app, limit=2, queue=2, deadline_default=0.1, max_wait=0.05)
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 2
    try:
        async with nothing_left(middleware):
            requests = []
            for number in range(20):
                requests.append(Request(middleware).start())
                await asyncio.sleep(0.02)
                assert slots(middleware) >= working
                if number == 10:
                    assert slots(middleware) == 2, "both threads are at work for callers who have their 504"
            for request in requests:
                await request.end(2.0)
            expired = [each for each in requests if each.header("x-refusal-reason") is None]
            for request in expired:
                assert request.status == 504
                assert 0.095 <= request.times[0] < 0.1 + ON_TIME, "on time, although the thread goes on"
            await until(lambda: slots(middleware) == 0, 2.0)
            assert working == 0
    finally:
        limiter.total_tokens = before
    assert most == 2
    assert len(expired) == begun
    assert len(expired) < 10
    assert all(seen), "the thread can see that its work no longer matters"
    assert refused(middleware).keys() <= {"queue_full", "queue_timeout", "predicted_late"}
    assert sum(route.late for route in figures(middleware).routes) == 0, "250 ms is not passed here"


@pytest.mark.in_real_time
async def test_b17_a_thread_that_a_cut_off_response_leaves_behind_keeps_its_slot() -> None:
    """B17: the connection is closed at the deadline, and nobody waits for the thread any more but its slot."""
    ended: list[float] = []

    def work() -> None:
        time.sleep(0.4)
        ended.append(time.monotonic())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.to_thread(work)

    middleware = ResilienceMiddleware(app, limit=1, queue=0, deadline_default=0.1)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
        assert request.returned_at < 0.1 + ON_TIME
        assert not request.complete
        assert slots(middleware) == 1
        assert (await Request(middleware).run()).header("x-refusal-reason") == "queue_full"
        await until(lambda: slots(middleware) == 0, 1.0)
        assert time.monotonic() - ended[0] < 0.05


async def test_b17_a_blocked_loop_answers_as_soon_as_it_breathes() -> None:
    """B17: nothing can interrupt code that blocks the loop; the answer is 504 all the same."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        time.sleep(0.3)  # noqa: ASYNC251
        await asyncio.sleep(5)

    middleware = ResilienceMiddleware(app, deadline_default=0.1)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert request.status == 504
    assert 0.3 <= request.times[0] < 0.3 + ON_TIME


@pytest.mark.in_real_time
async def test_b28_time_spent_waiting_for_a_thread_counts_and_a_late_start_does_not_happen() -> None:
    """B28: a pool of one, three requests: those who did not get their thread in time never enter the handler."""
    begun = 0
    app = fastapi.FastAPI()

    @app.get("/")
    def endpoint() -> str:
        nonlocal begun
        begun += 1
        time.sleep(0.3)
        return "done"

    @app.get("/health")
    async def health() -> str:
        return "up"

    middleware = ResilienceMiddleware(app, limit=50, deadline_default=0.15)
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 1
    try:
        async with nothing_left(middleware):
            requests = [Request(middleware).start() for _ in range(3)]
            await asyncio.sleep(0.05)
            checked = await Request(middleware, http_scope("/health")).run()
            assert (checked.status, checked.times[0] < 0.05) == (200, True), (
                "an async health check needs no thread"
            )
            for request in requests:
                await request.end(1.0)
                assert request.status == 504
                assert 0.145 <= request.times[0] < 0.15 + ON_TIME
            await until(lambda: slots(middleware) == 0, 1.0)
            await asyncio.sleep(0.05)
    finally:
        limiter.total_tokens = before
    assert begun == 1


# -- cancellation counts -----------------------------------------------------------------------------------------------


async def test_b23_timeouts_and_groups_work_after_one_of_ours_has_ended() -> None:
    """B23: a scope that ends its own cancel leaves no trace in the task."""
    log: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(2):
            try:
                async with current().within(0.02):
                    await asyncio.sleep(1)
            except DeadlineExceeded:
                log.append(task.cancelling())
            try:
                async with asyncio.timeout(0.02):
                    await asyncio.sleep(1)
            except TimeoutError as error:
                log.append((task.cancelling(), isinstance(error, DeadlineExceeded)))
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0.001))
        # Three levels, the outermost ends while the innermost cleans up.
        try:
            async with current().within(0.06), current().within(1.0):
                try:
                    async with current().within(0.02):
                        await asyncio.sleep(1)
                except DeadlineExceeded:
                    await asyncio.sleep(1)
        except DeadlineExceeded:
            log.append(task.cancelling())
        await answer(send)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert log == [0, (0, False), 0, (0, False), 0]
    assert (request.status, request.cancelling) == (200, 0)


@pytest.mark.parametrize("layers", [1, 2, 3])
async def test_b23_the_servers_task_is_as_good_as_new_after_an_expired_request(layers: int) -> None:
    """B23: servers go on in the same task (keep-alive): no count may remain, or their own timeouts fail."""
    middlewares: list[Any] = []
    app: Any = plain(lambda: asyncio.sleep(5))
    for number in range(layers):
        app = ResilienceMiddleware(app, deadline_default=0.05 + 0.001 * number)
        middlewares.append(app)

    async def connection(scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        await app(scope, receive, send)
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))

    async with nothing_left(*middlewares):
        request = await Request(connection).run()
    assert (request.raised, request.status) == (None, 504)


@pytest.mark.parametrize("answers", [True, False])
async def test_b23_a_handler_that_swallows_its_cancel_leaves_no_count(answers: bool) -> None:
    """B23: whether it answers afterwards, which comes too late, or not."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)
        if answers:
            await answer(send, b"too late")

    middleware = ResilienceMiddleware(app, deadline_default=0.05)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert (request.raised, request.status, request.cancelling) == (None, 504, 0)
    assert b"too late" not in request.body


# -- health ------------------------------------------------------------------------------------------------------------


async def test_b26_health_answers_while_everything_is_taken() -> None:
    """B26: slots and queue are full; health passes, at once, and takes no slot."""
    app = Counting()

    async def routed(scope: Any, receive: Any, send: Any) -> None:
        await (hello if scope["path"] == "/healthz" else app)(scope, receive, send)

    middleware = ResilienceMiddleware(routed, limit=2, queue=50, max_wait=9.0, wait_share=1.0)
    async with nothing_left(middleware):
        requests = [Request(middleware).start() for _ in range(52)]
        await until(lambda: queued(middleware) == 50)
        for _ in range(20):
            checked = await Request(middleware, http_scope("/healthz")).run()
            assert (checked.status, checked.times[0] < 0.5) == (200, True)
            assert slots(middleware) == 2
            await asyncio.sleep(0.01)
        assert (await Request(middleware).run()).status == 503
        app.gate.set()
        for request in requests:
            await request.end()
    assert is_idle(middleware)


async def test_b26_a_slow_health_check_has_a_bound_of_its_own() -> None:
    """B26: 1,000 at once, 100 of them in, the rest refused."""
    app = Counting()
    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        requests = [Request(middleware, http_scope("/health")).start() for _ in range(1000)]
        await until(lambda: sum(request.status == 503 for request in requests) == 900)
        assert app.running == 100
        app.gate.set()
        for request in requests:
            await request.end()
    assert refused(middleware) == {"exempt_limit": 900}


# -- waiting is charged ------------------------------------------------------------------------------------------------


async def test_b31_a_slow_upload_is_charged() -> None:
    """B31: the time in which the body arrives counts, and a body that never comes does not hold a slot for ever."""
    charged: list[tuple[float, float]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message: Message = {"more_body": True}
        remaining, began = current().remaining(), time.monotonic()
        while message["more_body"]:
            message = await receive()
        charged.append((remaining - current().remaining(), time.monotonic() - began))
        await answer(send)

    middleware = ResilienceMiddleware(app, limit=1)
    async with nothing_left(middleware):
        request = Request(middleware, http_scope(method="POST", headers=[budget(500)]), body=[]).start()
        await asyncio.sleep(0.2)
        request.feed(b"x", more_body=False)
        await request.end()
        assert request.status == 200
        assert charged[0][0] == pytest.approx(charged[0][1], abs=0.005)
        assert charged[0][0] > 0.05
        stalled = await Request(middleware, http_scope(method="POST", headers=[budget(150)]), body=[]).run()
        assert stalled.status == 504
        assert 0.145 <= stalled.times[0] < 0.15 + ON_TIME
