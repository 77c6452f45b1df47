"""One running request against servers with bad habits, and callers who leave at the worst instant."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import quart
import starlette.requests
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from resilient_mw import current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.cancel import CancelReason
from tests.asgi.driver import (
    HANG,
    LATCHED,
    ONE_SHOT,
    RAISE,
    Counting,
    Message,
    Request,
    answer,
    budget,
    figures,
    http_scope,
    nothing_left,
    outcomes,
    plain,
    queued,
    slots,
    until,
)

pytestmark = pytest.mark.usefixtures("own_time")


TELLING = pytest.mark.parametrize("telling", [LATCHED, ONE_SHOT])
DISCONNECT = {"type": "http.disconnect"}


@TELLING
@pytest.mark.parametrize(
    "after", [0.0, 0.02, 0.1], ids=["at once", "before it is watched", "while it is watched"]
)
async def test_a_caller_who_leaves_cancels_the_handler(telling: str, after: float) -> None:
    told: list[object] = []

    async def handler() -> None:
        current().on_cancel(told.append)
        try:
            await asyncio.sleep(5)
        finally:
            told.append(current().cancel_reason)

    middleware = ResilienceMiddleware(plain(handler), limit=1)
    async with nothing_left(middleware):
        request = Request(middleware, telling=telling).start()
        await asyncio.sleep(after)
        request.disconnect()
        left = time.monotonic()
        await request.end(1.0)
        assert time.monotonic() - left < 0.25
    assert (request.raised, request.messages, request.cancelling) == (None, [], 0)
    assert told == [CancelReason.CLIENT_DISCONNECT] * 2
    assert outcomes(middleware) == {"client_disconnect": 1}


@TELLING
async def test_who_listens_is_stopped_from_the_outside_and_who_asks_later_hears_why(telling: str) -> None:
    """Told once by the server. Heard while the work is being cancelled, it would disturb the clean-up."""
    heard: list[Message] = []

    stopped: list[str] = []

    async def listen(receive: Any) -> None:
        try:
            heard.append(await receive())
        except asyncio.CancelledError:
            stopped.append("while it listened")
            raise

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(listen(receive))
                await asyncio.sleep(0.01)
                request.disconnect()
                await asyncio.sleep(5)
        finally:
            for _ in range(2):
                await listen(receive)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, telling=telling)
        await request.run(1.0)
    assert stopped == ["while it listened"] * 3
    assert heard == [DISCONNECT] * 2


@TELLING
async def test_two_who_receive_before_anything_has_come(telling: str) -> None:
    """Only one call of the server's `receive` is under way at a time: hypercorn, gunicorn and daphne wake only one."""
    heard: dict[str, Message] = {}

    async def listen(who: str, receive: Any) -> None:
        heard[who] = await receive()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        tasks = [asyncio.create_task(listen(who, receive)) for who in ("first", "second", "third")]
        await asyncio.sleep(0.1)
        assert request.inside_receive == 1
        request.feed(b"a", more_body=False)
        await asyncio.sleep(0.01)
        assert list(heard) == ["first"]
        request.disconnect()
        try:
            await asyncio.wait(tasks, timeout=1.0)
        finally:
            await asyncio.wait(tasks, timeout=1.0)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, body=(), telling=telling)
        await request.run(2.0)
    assert heard.pop("first")["body"] == b"a"
    assert heard == {"second": DISCONNECT, "third": DISCONNECT}


@pytest.mark.parametrize("turns", range(10))
async def test_a_receive_cancelled_midway_loses_nothing(turns: int) -> None:
    """As Starlette's `is_disconnected()` and timeouts around `receive` do it, at each turn of the loop."""
    received: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            receiver = asyncio.create_task(receive())
            for _ in range(turns):
                await asyncio.sleep(0)
            if len(request._incoming) < 6 and len(received) == 2:
                request.feed(b"late")
            receiver.cancel()
            await asyncio.wait({receiver})
            if receiver.cancelled():
                receiver = asyncio.create_task(receive())
                await asyncio.wait({receiver})
            message = receiver.result()
            received.append(message["body"])
            more = message["more_body"]
        await answer(send)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, body=[b"0", b"1", b"2", b"3"])
        await request.run()
    assert request.raised is None
    assert received[:4] == [b"0", b"1", b"2", b"3"]


async def test_an_error_of_the_servers_receive_reaches_the_application_directly_and_behind_the_watcher() -> (
    None
):
    for pause in (0.0, 0.15):

        async def app(scope: Any, receive: Any, send: Any, *, pause: float = pause) -> None:
            await asyncio.sleep(pause)
            with pytest.raises(OSError, match="broken"):
                await receive()
            await answer(send)

        async def receive() -> Message:
            raise OSError("broken")

        middleware = ResilienceMiddleware(app)
        async with nothing_left(middleware):
            request = Request(middleware)
            request.receive = receive  # type: ignore[method-assign]
            await request.run()
        assert (request.status, request.raised) == (200, None)


@TELLING
async def test_starlettes_is_disconnected_becomes_true(telling: str) -> None:
    """B04: it asks with a `receive` that it cancels at once."""
    answers: list[bool] = []

    async def endpoint(request: starlette.requests.Request) -> PlainTextResponse:
        await request.body()
        try:
            async with asyncio.timeout(1.0):
                while not answers or not answers[-1]:
                    answers.append(await request.is_disconnected())
                    await asyncio.sleep(0.005)
                    if len(answers) == 3:
                        driven.disconnect()
        finally:
            # It is cancelled from the outside first, wherever it is, and may ask why.
            answers.append(await request.is_disconnected())
        return PlainTextResponse("")

    middleware = ResilienceMiddleware(Starlette(routes=[Route("/", endpoint)]))
    async with nothing_left(middleware):
        driven = Request(middleware, telling=telling)
        await driven.run(2.0)
    assert answers[:3] == [False] * 3
    assert answers[-1] is True
    assert outcomes(middleware) == {"client_disconnect": 1}


# -- send --------------------------------------------------------------------------------------------------------------


async def test_oserror_from_send_is_a_disconnect_and_not_an_error() -> None:
    """Spec 2.4: servers may raise; nobody's log needs a traceback for it."""
    ended: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await asyncio.sleep(0.005)
                request.gone = True  # the server knows, and receive() says nothing yet
        finally:
            ended.append(current().cancel_reason)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, lost=RAISE)
        await request.run(1.0)
    assert request.raised is None
    assert ended == [CancelReason.CLIENT_DISCONNECT]
    assert outcomes(middleware) == {"client_disconnect": 1}


@pytest.mark.parametrize("part", ["start", "a part of the body", "the last part", "504"])
@pytest.mark.parametrize("told", [True, False], ids=["receive() says so", "nobody says so"])
async def test_a_send_that_hangs_holds_no_slot_beyond_the_deadline_and_a_second(
    part: str, told: bool
) -> None:
    """In HTTP/2 of hypercorn `send()` never returns once the connection is lost."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if part == "504":
            request.gone = told
            request._lost = HANG
            await asyncio.sleep(5)
        if part == "start":
            lose()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if part == "a part of the body":
            lose()
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        if part == "the last part":
            lose()
        await send({"type": "http.response.body", "body": b"x"})
        raise AssertionError("the server did not hang")

    def lose() -> None:
        request._hang_all = True  # type: ignore[attr-defined]
        if told:
            request.disconnect()

    async def send(message: Message) -> None:
        if getattr(request, "_hang_all", False) or (part == "504" and message.get("status") == 504):
            await asyncio.get_running_loop().create_future()
        await Request.send(request, message)

    middleware = ResilienceMiddleware(app, limit=1, deadline_default=0.3)
    async with nothing_left(middleware):
        request = Request(middleware)
        request.send = send  # type: ignore[method-assign]
        request.start()
        await until(lambda: slots(middleware) == 1)
        began = time.monotonic()
        await until(lambda: slots(middleware) == 0, 2.0)
        assert time.monotonic() - began < 0.3 + 0.3, "the slot does not wait for the bytes"
        await request.end(1.5)
        assert time.monotonic() - began < 0.3 + 1.0 + 0.3
    assert request.raised is None
    assert request.cancelling == 0


@TELLING
async def test_a_disconnect_while_the_last_message_is_on_its_way_cancels_nothing(telling: str) -> None:
    """B01: servers tell it as soon as they have written the answer, before `send()` has returned."""
    background: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0.1)  # watched by now
        await answer(send)
        await asyncio.sleep(0.1)
        background.append("done")

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(
            middleware, telling=telling, stall=lambda message: message["type"] == "http.response.body"
        ).start()
        await request.stalled.wait()
        request.disconnect()
        await request.end(1.0)
    assert background == ["done"]
    assert request.raised is None
    assert outcomes(middleware) == {"completed": 1}


async def test_who_listens_hears_of_a_disconnect_at_the_instant_of_the_last_message() -> None:
    """B04: nothing is cancelled for a complete response, and who waits for the disconnect must not wait for ever."""
    told: list[Message] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        listener = asyncio.ensure_future(receive())
        await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        request.disconnect()
        await asyncio.sleep(0)  # it has been read, and the request ends at the next turn
        await send({"type": "http.response.body"})
        told.append(await listener)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await request.end(1.0)
    assert [each["type"] for each in told] == ["http.disconnect"]
    assert outcomes(middleware) == {"completed": 1}


async def test_a_last_message_that_hangs_does_not_keep_the_slot_of_a_caller_who_has_gone() -> None:
    """B01: some servers never return from `send()` once the connection is lost, and the deadline may be far away."""
    sending = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0.1)  # watched by now
        await answer(send)

    middleware = ResilienceMiddleware(app, deadline_default=30)

    async def server(scope: Any, receive: Any, send: Any) -> None:
        async def hangs(message: Any) -> None:
            if message["type"] == "http.response.body":
                sending.set()
                await asyncio.get_running_loop().create_future()
            await send(message)

        await middleware(scope, receive, hangs)

    async with nothing_left(middleware):
        request = Request(server).start()
        await sending.wait()
        request.disconnect()
        await request.end(2.0)
    assert request.raised is None
    assert outcomes(middleware) == {"client_disconnect": 1}


async def test_a_deadline_after_a_complete_response_cancels_nothing() -> None:
    """B01: nor does the deadline; background work lives on, and keeps its slot."""
    background: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)
        await asyncio.sleep(0.15)
        background.append(slots(middleware))

    middleware = ResilienceMiddleware(app, deadline_default=0.05)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert (request.status, request.body, request.raised) == (200, b"done", None)
    assert background == [1]
    assert outcomes(middleware) == {"completed": 1}


@TELLING
@pytest.mark.parametrize("at", [0, 1])
async def test_a_disconnect_while_an_earlier_message_is_on_its_way_cancels(telling: str, at: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0.1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"x"})
        await asyncio.sleep(5)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, telling=telling, stall=lambda _: len(request.messages) == at + 1)
        request.start()
        await request.stalled.wait()
        request.disconnect()
        await request.end(1.0)
    assert outcomes(middleware) == {"client_disconnect": 1}
    assert len(request.messages) == at + 1


# -- who notices first -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raises", [True, False])
async def test_an_application_that_notices_the_disconnect_first_is_no_error(raises: bool) -> None:
    """B05: Starlette's `request.stream()` raises at once, others return; both end before we have cancelled anything."""

    class ClientDisconnect(Exception):
        pass

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if raises:
            raise ClientDisconnect

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, body=()).start()
        await asyncio.sleep(0.01)
        request.disconnect()
        await request.end()
    assert request.raised is None
    assert outcomes(middleware) == {"client_disconnect": 1}


async def test_an_application_that_ends_in_the_turn_of_the_disconnect_is_no_error() -> None:
    """B05: it ends after its caller has been seen to go, and before anything of it could be stopped."""
    gone = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        listener = asyncio.ensure_future(receive())
        await gone.wait()
        listener.cancel()

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, body=()).start()
        await asyncio.sleep(0.01)
        request.disconnect()
        gone.set()
        await request.end()
    assert request.raised is None
    assert outcomes(middleware) == {"client_disconnect": 1}


async def test_an_error_after_a_complete_response_reaches_the_server() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)
        await receive()
        assert await receive() == DISCONNECT
        raise LookupError("in the background task")

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert isinstance(request.raised, LookupError)
    assert outcomes(middleware) == {"error": 1}


# -- while it waits ----------------------------------------------------------------------------------------------------


@TELLING
async def test_a_caller_who_leaves_the_queue_is_forgotten(telling: str) -> None:
    app = Counting()
    middleware = ResilienceMiddleware(app, limit=1, queue=3)
    async with nothing_left(middleware):
        first = Request(middleware).start()
        await until(lambda: app.running == 1)
        waiting = [Request(middleware, telling=telling).start() for _ in range(3)]
        await until(lambda: queued(middleware) == 3)
        for request in waiting[:2]:
            request.disconnect()
            await request.end(0.5)
            assert (request.raised, request.messages) == (None, [])
        assert queued(middleware) == 1
        app.gate.set()
        await first.end()
        await waiting[2].end()
    assert app.begun == 2
    assert sum(route.left for route in figures(middleware).routes) == 2


async def test_a_caller_who_leaves_at_the_instant_of_his_turn_does_not_begin() -> None:
    """The slot was granted, the disconnect is read, and only then does the request's task run."""
    app = Counting()
    middleware = ResilienceMiddleware(app, limit=1, queue=1)
    guard = middleware._guard
    async with nothing_left(middleware):
        await Request(middleware, http_scope(headers=[budget(0)])).run()  # binds the routes
        entry = middleware._protection.entry("/", "", "GET", {})
        guard.arrive(entry, guard.clock.now(), guard.clock.now() + 9)
        request = Request(middleware).start()
        await until(lambda: queued(middleware) == 1)
        await asyncio.sleep(0.01)
        request.disconnect()  # the reader runs next
        guard.end(entry, 1, "completed", 0.0)  # and the request's task after it
        await request.end()
        assert app.begun == 0
        assert request.messages == []
        assert slots(middleware) == 0


async def test_what_a_waiting_request_sends_is_kept_for_its_handler() -> None:
    parts = [b"x" * 20_000] * 10
    received: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/first":
            await asyncio.sleep(0.1)
        else:
            more = True
            while more:
                message = await receive()
                received.append(message["body"])
                more = message["more_body"]
        await answer(send)

    middleware = ResilienceMiddleware(app, limit=1, queue=1)
    async with nothing_left(middleware):
        first = Request(middleware, http_scope("/first")).start()
        second = Request(middleware, http_scope("/upload", "POST"), body=parts).start()
        await until(lambda: queued(middleware) == 1)
        await asyncio.sleep(0.02)
        assert len(second._incoming) == 6, "64 KiB and no more while it waits"
        await first.end()
        await second.end()
    assert second.status == 200
    assert received == parts


# -- frameworks with tasks of their own --------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 1, 2], ids=["nothing sent", "a part sent", "two parts sent"])
async def test_a_stalled_upload_leaves_no_view_behind_at_the_deadline(sent: int) -> None:
    """Quart waits for its view and its receiver by `asyncio.wait`: only `http.disconnect` stops both."""
    ended: list[str] = []
    app = quart.Quart(__name__)

    @app.post("/")
    async def view() -> str:
        try:
            await quart.request.get_data()
        finally:
            ended.append("view")
        return ""

    middleware = ResilienceMiddleware(app, deadline_default=0.2)
    async with nothing_left(middleware):
        request = Request(
            middleware,
            http_scope("/", "POST", headers=[(b"host", b"t"), (b"content-length", b"99")]),
            body=(),
        ).start()
        for _ in range(sent):
            request.feed(b"x")
            await asyncio.sleep(0.01)
        await request.end(1.0)
    assert request.status == 504
    assert ended == ["view"]


async def test_an_interrupted_receive_that_somebody_else_cancels_too_is_cancelled() -> None:
    """The offered disconnect must not swallow a cancel that is not ours."""
    results: list[str] = []

    async def receiver(receive: Any) -> None:
        try:
            await receive()
            results.append("returned")
        except asyncio.CancelledError:
            results.append("cancelled")
            raise

    async def app(scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.create_task(receiver(receive))
        await asyncio.sleep(0.01)
        current().offer_disconnect()  # type: ignore[attr-defined]
        task.cancel()
        await asyncio.wait({task})
        await answer(send)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        await Request(middleware, body=()).run()
    assert results == ["cancelled"]


async def test_a_task_left_behind_in_receive_is_told_at_the_end() -> None:
    """As ASGI has it after a response; servers that tell once would leave it, and a reader of ours, for ever."""
    heard: list[Message] = []
    tasks: list[asyncio.Task[None]] = []

    async def listen(receive: Any) -> None:
        heard.append(await receive())
        heard.append(await receive())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        tasks.append(asyncio.create_task(listen(receive)))
        await asyncio.sleep(0.01)
        await answer(send)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, telling=ONE_SHOT)
        request._told = True
        await request.run()
    assert heard == [DISCONNECT] * 2


@TELLING
async def test_a_streaming_response_of_starlette_stops_quietly(telling: str) -> None:
    """B05: its own listener, a task group and our cancel meet; nobody raises, nothing is left."""
    for leave_after in (0.0, 0.01, 0.05, 0.06, 0.1):
        ended: list[str] = []

        async def chunks(into: list[str] = ended) -> Any:
            try:
                while True:
                    yield b"x"
                    await asyncio.sleep(0.01)
            finally:
                into.append("stream")

        async def endpoint(request: starlette.requests.Request, body: Any = chunks) -> StreamingResponse:
            await asyncio.sleep(0.05)
            return StreamingResponse(body())

        middleware = ResilienceMiddleware(Starlette(routes=[Route("/", endpoint)]))
        async with nothing_left(middleware):
            request = Request(middleware, telling=telling).start()
            await asyncio.sleep(leave_after)
            request.disconnect()
            await request.end(1.0)
        assert request.raised is None
        assert outcomes(middleware) == {"client_disconnect": 1}
        assert ended in ([], ["stream"])
