"""Requests that last: the slot for the head or the body, the deadline for the head, the body or the gaps."""

from __future__ import annotations

import asyncio
import copy
import gc
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from resilient_mw import DeadlineExceeded, RouteRule, ServerPolicy, current, deadline, priority
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.stream import StreamExchange
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.events import Cancelled, Event, Refused
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import StreamRouteSnapshot
from resilient_mw.runtime.guard import guard_of
from tests.asgi.driver import (
    HANG,
    LATCHED,
    ONE_SHOT,
    RAISE,
    App,
    Message,
    Request,
    budget,
    figures,
    http_scope,
    nothing_left,
    outcomes,
    plain,
    queued,
    slots,
    supervisor_of,
    until,
)
from tests.asgi.test_transparency import CONVERSATIONS

pytestmark = pytest.mark.usefixtures("own_time")


START: Message = {"type": "http.response.start", "status": 200, "headers": []}
CHUNK: Message = {"type": "http.response.body", "body": b"x", "more_body": True}
END: Message = {"type": "http.response.body", "body": b""}
ON_TIME = 0.25
"""Seconds within which something counts as on time on a busy machine."""


def rule(**said: Any) -> RouteRule:
    return RouteRule("/*", **said)


def guarded(app: App, said: RouteRule, **policy: Any) -> ResilienceMiddleware:
    return ResilienceMiddleware(app, ServerPolicy(routes=[said], **policy))


def streams(middleware: ResilienceMiddleware) -> tuple[StreamRouteSnapshot, ...]:
    found = figures(middleware).streams
    assert found is not None
    return found.routes


def opened(middleware: ResilienceMiddleware) -> int:
    return sum(each.opened for each in streams(middleware))


def ended(middleware: ResilienceMiddleware) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in streams(middleware):
        for outcome, count in each.ended.items():
            total[outcome] = total.get(outcome, 0) + count
    return total


def places(middleware: ResilienceMiddleware) -> int:
    return middleware.protection.guard.streams._streams.places


@asynccontextmanager
async def nothing_open(middleware: ResilienceMiddleware) -> AsyncIterator[None]:
    async with nothing_left(middleware):
        yield
        await until(lambda: not supervisor_of(middleware).in_flight)
        gc.collect()
        middleware.protection.guard.snapshot()
        middleware.protection.guard.streams._streams._look()  # as who needs a place does
        assert (opened(middleware), places(middleware)) == (0, 0)


class Events:
    """An application that sends its head, a chunk for each that it is given, and ends when it is told to."""

    def __init__(self, *, head: bool = True) -> None:
        self.chunks: asyncio.Queue[Message] = asyncio.Queue()
        self.closed: list[CancelReason | None] = []
        self.errors: list[BaseException] = []
        self.contexts: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.contexts.append(current())
        try:
            await send(dict(START))
            while True:
                message = await self.chunks.get()
                await send(message)
                if not message.get("more_body", False):
                    return
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            self.closed.append(current().cancel_reason)


# -- invisible otherwise -----------------------------------------------------------------------------------------------

RULES: dict[str, dict[str, Any]] = {
    "slot for the head": {"slot": "head"},
    "deadline for the head": {"deadline_covers": "head"},
    "deadline for gaps": {"deadline_covers": "gaps", "deadline_idle": 5.0},
    "slot for the head, deadline for gaps": {"slot": "head", "deadline_idle": 5.0},
    "all for the head": {"slot": "head", "deadline_covers": "head"},
}  # fmt: skip


@pytest.mark.parametrize("said", list(RULES))
@pytest.mark.parametrize("name", list(CONVERSATIONS))
async def test_every_message_passes_unchanged_and_in_order(name: str, said: str) -> None:
    """B16: early hints, pathsend, zerocopysend, trailers, push, and what nobody knows yet; the very objects arrive."""
    conversation = copy.deepcopy(CONVERSATIONS[name]) if "debug" not in name else CONVERSATIONS[name]
    arrived: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert type(current()) is StreamExchange
        for count, message in enumerate(conversation, 1):
            await send(message)
            arrived.append(len(request.messages) - count)

    middleware = guarded(app, rule(**RULES[said]))
    async with nothing_open(middleware):
        request = Request(middleware)
        await request.run()
    assert request.raised is None
    assert all(ours is theirs for ours, theirs in zip(request.messages, conversation, strict=True))
    assert set(arrived) == {0}, "each message had reached the server when send() returned"
    assert outcomes(middleware) == {"completed": 1}
    assert ended(middleware) == ({"completed": 1} if RULES[said].get("slot") else {})


@pytest.mark.parametrize("said", list(RULES))
async def test_an_upload_is_read_when_the_application_takes_it(said: str) -> None:
    """Back-pressure: nothing is read ahead beyond the bound, every part comes as it was, each when it is there."""
    parts = [bytes([number]) * 10_000 for number in range(40)]
    received: list[bytes] = []
    most = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal most
        await asyncio.sleep(0.15)  # the watcher is at work by now
        more = True
        while more:
            message = await receive()
            received.append(message["body"])
            more = message["more_body"]
            most = max(most, len(parts) - len(request._incoming) - len(received))
        await send(dict(START))
        await send(dict(END))

    middleware = guarded(app, rule(**RULES[said]))
    async with nothing_open(middleware):
        request = Request(middleware, http_scope(method="POST"), body=parts)
        await request.run()
    assert (received, request.status) == (parts, 200)
    assert most * 10_000 <= 65_536 + 10_000


@pytest.mark.parametrize("said", list(RULES))
async def test_a_peer_who_takes_nothing_holds_back_the_application(said: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(dict(START))
        for number in range(5):
            sent.append(number)
            await send(dict(CHUNK))
        await send(dict(END))

    sent: list[int] = []
    middleware = guarded(app, rule(**RULES[said]))
    async with nothing_open(middleware):
        request = Request(middleware, stall=lambda message: message == CHUNK).start()
        await request.stalled.wait()
        await asyncio.sleep(0.1)
        assert sent == [0]
        request.go_on()
        await request.end()
    assert request.body == b"x" * 5


@pytest.mark.parametrize("said", list(RULES))
async def test_starlettes_streaming_response(said: str) -> None:
    closed: list[str] = []

    async def events() -> AsyncIterator[bytes]:
        try:
            for number in range(100):
                yield b"data: %d\n\n" % number
                await asyncio.sleep(0.02)
        finally:
            closed.append("closed")

    framework = Starlette(
        routes=[Route("/", lambda _: StreamingResponse(events(), media_type="text/event-stream"))]
    )
    middleware = guarded(framework, rule(**RULES[said]), limit=1)
    async with nothing_open(middleware):
        request = Request(middleware, telling=ONE_SHOT).start()
        await until(lambda: len(request.messages) > 4)
        assert slots(middleware) == (0 if RULES[said].get("slot") else 1)
        request.disconnect()
        await request.end(1.0)
        await until(lambda: closed == ["closed"], 1.0)


# -- the slot ----------------------------------------------------------------------------------------------------------


async def test_the_slot_comes_back_when_the_server_has_taken_the_head() -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), limit=1, queue=0)
    async with nothing_open(middleware):
        first = Request(middleware, stall=lambda message: message["type"] == "http.response.start").start()
        await first.stalled.wait()
        assert (slots(middleware), opened(middleware)) == (1, 0), "as long as the server has not taken it"
        first.go_on()
        await until(lambda: slots(middleware) == 0)
        assert streams(middleware) == (StreamRouteSnapshot("/*", "normal", 1, {}),)
        second = Request(middleware).start()
        await until(lambda: opened(middleware) == 2)
        assert outcomes(middleware) == {"completed": 2}, "as runs they are over"
        app.chunks.put_nowait(END)
        app.chunks.put_nowait(END)
        await first.end()
        await second.end()
    assert ended(middleware) == {"completed": 2}


async def test_who_waits_for_the_slot_gets_it_at_the_head() -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), limit=1)
    async with nothing_open(middleware):
        first = Request(middleware, stall=lambda message: message["type"] == "http.response.start").start()
        await first.stalled.wait()
        second = Request(middleware).start()
        await until(lambda: queued(middleware) == 1)
        first.go_on()
        await until(lambda: opened(middleware) == 2)
        for each in (first, second):
            each.disconnect()
            await each.end(1.0)
    assert ended(middleware) == {"client_disconnect": 2}


async def test_a_run_took_until_its_head_and_a_stream_is_in_no_run_time() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.05)
        await send(dict(START))
        await asyncio.sleep(0.5)
        await send(dict(END))

    for said in RULES.values():
        middleware = guarded(app, rule(**said))
        async with nothing_open(middleware):
            await Request(middleware).run()
        (route,) = [each for each in figures(middleware).routes if each.arrived]
        assert sum(route.run.counts) == 1
        assert 0.045 <= route.run.total < 0.3, said
        assert middleware.protection.guard.controller.forecast.typical_run < 0.3
        (entry,) = [each for each in middleware.protection.guard.entries.all() if each.arrived]
        assert entry.median.value is None or entry.median.value < 0.3


@pytest.mark.parametrize("lost", [RAISE, HANG, "ignore"])
@pytest.mark.parametrize("telling", [LATCHED, ONE_SHOT])
async def test_a_caller_who_leaves_ends_the_stream(telling: str, lost: str) -> None:
    events: list[Event] = []
    app = Events()
    middleware = guarded(app, rule(slot="head", deadline_covers="head"), listeners=[events.append])
    async with nothing_open(middleware):
        request = Request(middleware, telling=telling, lost=lost).start()
        await until(lambda: opened(middleware) == 1)
        await asyncio.sleep(0.2)
        request.disconnect()
        app.chunks.put_nowait(CHUNK)
        await request.end(1.0)
    assert app.closed == [CancelReason.CLIENT_DISCONNECT]
    assert (request.raised, request.cancelling) == (None, 0)
    assert outcomes(middleware) == {"completed": 1}
    assert ended(middleware) == {"client_disconnect": 1}
    (event,) = events
    assert isinstance(event, Cancelled)
    assert event.reason is CancelReason.CLIENT_DISCONNECT


@pytest.mark.parametrize("after", ["head", "start"])
async def test_an_exception_gives_the_slot_back_once(after: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if after == "head":
            await send(dict(START))
        raise LookupError("of its own")

    middleware = guarded(app, rule(slot="head"), limit=1)
    async with nothing_open(middleware):
        request = await Request(middleware).run()
    assert isinstance(request.raised, LookupError)
    assert outcomes(middleware) == ({"completed": 1} if after == "head" else {"error": 1})
    assert ended(middleware) == ({"error": 1} if after == "head" else {})


@pytest.mark.parametrize("step", range(5))
async def test_a_cancellation_by_the_server_passes_at_every_step(step: int) -> None:
    """B16: the server shuts down during a stream, which ends at once; slot and place come back."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(dict(START))
        for _ in range(3):
            await send(dict(CHUNK))
        await asyncio.sleep(5)

    middleware = guarded(app, rule(slot="head", deadline_covers="head"), limit=1)
    async with nothing_open(middleware):
        request = await Request(middleware, cancel_at=step).run(1.0)
    assert isinstance(request.raised, asyncio.CancelledError)
    assert sum(ended(middleware).values()) == (0 if step < 2 else 1)
    assert outcomes(middleware) == ({"error": 1} if step < 2 else {"completed": 1})


async def test_a_forgotten_stream_gives_its_place_back() -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"))
    scope, sent = http_scope(), []

    async def send(message: Message) -> None:
        sent.append(message)

    coroutine = middleware(scope, None, send)
    task: Any = asyncio.get_running_loop().create_task(asyncio.sleep(0))
    coroutine.send(None)
    assert (opened(middleware), places(middleware)) == (1, 1)
    coroutine.close()
    figures(middleware)
    assert (opened(middleware), places(middleware), ended(middleware)) == (0, 0, {"error": 1})
    await task


async def test_what_the_application_holds_the_slot_for_keeps_it_beyond_the_head() -> None:
    app = Events()
    held: list[asyncio.Future[None]] = []

    async def holding(scope: Any, receive: Any, send: Any) -> None:
        held.append(asyncio.get_running_loop().create_future())
        current().hold(held[0])
        await app(scope, receive, send)

    middleware = guarded(holding, rule(slot="head"))
    async with nothing_open(middleware):
        request = Request(middleware).start()
        await until(lambda: len(request.messages) == 1)
        await asyncio.sleep(0.05)
        assert (slots(middleware), opened(middleware)) == (1, 0)
        held[0].set_result(None)
        await until(lambda: slots(middleware) == 0)
        assert opened(middleware) == 1
        app.chunks.put_nowait(END)
        await request.end()
    assert ended(middleware) == {"completed": 1}


async def test_held_to_the_very_end_a_stream_never_was_one() -> None:
    held: list[asyncio.Future[None]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        held.append(asyncio.get_running_loop().create_future())
        current().hold(held[0])
        await send(dict(START))
        await send(dict(END))

    middleware = guarded(app, rule(slot="head"))
    async with nothing_open(middleware):
        await Request(middleware).run()
        assert (slots(middleware), places(middleware)) == (1, 1)
        held[0].set_result(None)
        await until(lambda: slots(middleware) == 0)
    assert (outcomes(middleware), ended(middleware)) == ({"completed": 1}, {})


# -- the bound of streams ----------------------------------------------------------------------------------------------


async def test_over_the_limit_a_stream_is_refused_before_any_work() -> None:
    events: list[Event] = []
    app = Events()
    middleware = guarded(app, rule(slot="head"), stream_limit=2, listeners=[events.append])
    async with nothing_open(middleware):
        first, second = Request(middleware).start(), Request(middleware).start()
        await until(lambda: opened(middleware) == 2)
        refused = await Request(middleware).run()
        assert (refused.status, refused.header("x-refusal-reason")) == (503, "stream_limit")
        assert 1 <= int(refused.header("retry-after") or 0) <= 60
        assert refused.problem["reason"] == "stream_limit"
        first.disconnect()
        await first.end(1.0)
        third = Request(middleware).start()
        await until(lambda: opened(middleware) == 2)
        for each in (second, third):
            each.disconnect()
            await each.end(1.0)
    assert len(app.closed) == 3
    assert [event.reason for event in events if isinstance(event, Refused)] == [Reason.STREAM_LIMIT]


async def test_who_waits_for_a_slot_has_a_place_and_loses_it_when_he_waits_in_vain() -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), limit=1, stream_limit=2, max_wait=0.1, wait_share=1.0)
    async with nothing_open(middleware):
        first = Request(middleware, stall=lambda message: message["type"] == "http.response.start").start()
        await first.stalled.wait()
        waiting = Request(middleware).start()
        await until(lambda: queued(middleware) == 1)
        refused = await Request(middleware).run()
        assert refused.header("x-refusal-reason") == "stream_limit"
        await waiting.end(1.0)
        assert waiting.header("x-refusal-reason") == "queue_timeout"
        leaving = Request(middleware).start()
        await until(lambda: queued(middleware) == 1)
        leaving.disconnect()
        await leaving.end(1.0)
        following = Request(middleware).start()
        await until(lambda: queued(middleware) == 1)
        first.go_on()
        await until(lambda: opened(middleware) == 2)
        for each in (first, following):
            each.disconnect()
            await each.end(1.0)


async def test_who_leaves_as_his_wait_ends_gives_his_place_back() -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), limit=1)
    async with nothing_open(middleware):
        first = Request(middleware, stall=lambda message: message["type"] == "http.response.start").start()
        await first.stalled.wait()
        waiting = Request(middleware).start()
        await until(lambda: queued(middleware) == 1)
        await asyncio.sleep(0.02)
        guard = middleware.protection.guard
        waiter = guard.streams._streams._waiting[0]
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
    assert len(app.closed) == 1


async def test_a_refused_stream_and_an_error_of_our_own_take_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), limit=1)
    async with nothing_open(middleware):
        await Request(middleware, http_scope(headers=[budget(0)])).run()
        assert places(middleware) == 0
        app.chunks.put_nowait(END)
        guard = middleware.protection.guard
        with monkeypatch.context() as patch:
            patch.setattr(guard, "arrive", lambda *_: 1 / 0)
            assert (await Request(middleware).run()).status == 200
    assert figures(middleware).guard_errors == 1


async def test_exempt_requests_keep_their_place_to_the_end() -> None:
    app = Events()
    middleware = guarded(app, rule(priority="exempt", slot="head"), exempt_limit=1, stream_limit=1)
    async with nothing_open(middleware):
        first = Request(middleware).start()
        await until(lambda: len(first.messages) == 1)
        refused = await Request(middleware).run()
        assert refused.header("x-refusal-reason") == "exempt_limit"
        app.chunks.put_nowait(END)
        await first.end()


# -- the deadline ------------------------------------------------------------------------------------------------------


async def test_a_deadline_for_the_head_is_over_with_it() -> None:
    left: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        left.append(current().remaining())
        await send(dict(START))
        left.append(current().remaining())
        await asyncio.sleep(0.5)
        current().check()
        assert not current().cancelled
        await send(dict(CHUNK))
        await send(dict(END))

    middleware = guarded(app, rule(deadline_covers="head", deadline_default=0.2))
    async with nothing_open(middleware):
        request = await Request(middleware).run()
    assert request.body == b"x"
    assert 0.1 < left[0] <= 0.2
    assert left[1] == math.inf


@pytest.mark.parametrize("covers", ["head", "gaps"])
async def test_a_late_head_is_a_504(covers: str) -> None:
    app = plain(lambda: asyncio.sleep(5))
    middleware = guarded(app, rule(slot="head", deadline_covers=covers, deadline_default=0.2))
    async with nothing_open(middleware):
        request = await Request(middleware).run()
    assert request.status == 504
    assert 0.195 <= request.returned_at < 0.2 + ON_TIME
    assert (outcomes(middleware), ended(middleware)) == ({"deadline": 1}, {})


async def test_a_deadline_for_the_body_cuts_a_stream_that_has_no_slot_any_more() -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head", deadline_default=0.2))
    async with nothing_open(middleware):
        request = await Request(middleware).run()
    assert (app.closed, request.complete) == ([CancelReason.DEADLINE], False)
    assert 0.195 <= request.returned_at < 0.2 + ON_TIME
    assert (outcomes(middleware), ended(middleware)) == ({"completed": 1}, {"deadline": 1})


async def test_a_gap_that_lasts_too_long_ends_the_stream() -> None:
    app = Events()
    middleware = guarded(app, rule(deadline_idle=0.3, deadline_default=0.2))
    async with nothing_open(middleware):
        request = Request(middleware).start()
        for _ in range(6):
            await asyncio.sleep(0.1)
            app.chunks.put_nowait(CHUNK)
        await until(lambda: len(request.messages) == 7)
        last = time.monotonic()
        await request.end(1.0)
        assert 0.25 <= time.monotonic() - last < 0.3 + ON_TIME
    assert (app.closed, request.complete) == ([CancelReason.DEADLINE], False)
    assert outcomes(middleware) == {"deadline": 1}


async def test_a_gap_may_be_shorter_than_what_was_left_for_the_head() -> None:
    app = Events()
    middleware = guarded(app, rule(deadline_idle=0.2, deadline_default=5.0))
    async with nothing_open(middleware):
        request = await Request(middleware).run(2.0)
    assert 0.195 <= request.returned_at < 0.2 + ON_TIME
    assert app.closed == [CancelReason.DEADLINE]


async def test_a_peer_who_takes_nothing_is_a_gap() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(dict(START))
        await send(dict(CHUNK))
        raise AssertionError("the chunk was never taken")

    middleware = guarded(app, rule(slot="head", deadline_idle=0.2))
    async with nothing_open(middleware):
        request = await Request(middleware, stall=lambda message: message == CHUNK).run(2.0)
    assert 0.195 <= request.returned_at < 0.2 + ON_TIME
    assert (request.raised, ended(middleware)) == (None, {"deadline": 1})


@pytest.mark.parametrize("kind", ["http.response.pathsend", "http.response.zerocopysend"])
async def test_inside_a_file_there_are_no_gaps_to_be_seen(kind: str) -> None:
    message = {"type": kind, "path": "/etc/hostname", "file": 3, "more_body": True}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(dict(START))
        await send(message)
        if kind.endswith("zerocopysend"):
            await asyncio.sleep(5)

    middleware = guarded(app, rule(slot="head", deadline_idle=0.2))
    async with nothing_open(middleware):
        request = Request(middleware, stall=lambda each: each is message).start()
        await request.stalled.wait()
        await asyncio.sleep(0.4)
        assert not request.task.done()  # type: ignore[union-attr]
        request.go_on()
        await request.end(1.0)
    expected = "deadline" if kind.endswith("zerocopysend") else "completed"
    assert ended(middleware) == {expected: 1}, "after the file, gaps count again"


async def test_trailers_are_chunks_and_hints_are_not() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(dict(START) | {"trailers": True})
        await send(dict(END))
        for _ in range(4):
            await asyncio.sleep(0.15)
            await send({"type": "http.response.trailers", "headers": [], "more_trailers": True})
        for _ in range(20):
            await asyncio.sleep(0.1)
            await send({"type": "http.response.early_hint", "links": []})

    middleware = guarded(app, rule(deadline_idle=0.3))
    async with nothing_open(middleware):
        request = await Request(middleware).run(3.0)
    assert 0.89 <= request.returned_at < 0.9 + 2 * ON_TIME
    assert outcomes(middleware) == {"deadline": 1}


async def _upload(
    said: RouteRule, script: Callable[[Request], Any], **headers: Any
) -> tuple[Request, list[float]]:
    left: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            more = (await receive())["more_body"]
            left.append(current().remaining())
        await asyncio.sleep(0.05)
        await send(dict(START))
        await send(dict(END))

    middleware = guarded(app, said)
    async with nothing_open(middleware):
        request = Request(middleware, http_scope(method="POST", **headers), body=()).start()
        await script(request)
        await request.end(2.0)
    return request, left


async def test_an_upload_may_last_while_its_parts_come() -> None:
    async def script(request: Request) -> None:
        for number in range(6):
            await asyncio.sleep(0.1)
            request.feed(b"x", more_body=number < 5)

    said = rule(deadline_covers="gaps", deadline_idle=0.4, deadline_default=0.3)
    request, left = await _upload(said, script)
    assert request.status == 200
    assert len(left) == 6
    assert all(0.2 < each <= 0.3 for each in left), "the smaller one of both from each part on"
    request, left = await _upload(rule(deadline_covers="head", deadline_default=0.3), script)
    assert request.status == 504, "what covers the head covers the upload before it"


async def test_an_upload_that_stalls_is_a_504() -> None:
    async def script(request: Request) -> None:
        for _ in range(2):
            await asyncio.sleep(0.2)
            request.feed(b"x")

    request, left = await _upload(rule(deadline_idle=0.3, deadline_default=0.3), script)
    assert len(left) == 2
    assert request.status == 504
    assert 0.69 <= request.returned_at < 0.7 + 2 * ON_TIME


async def test_a_body_in_one_part_moves_nothing() -> None:
    async def script(request: Request) -> None:
        await asyncio.sleep(0.2)
        request.feed(b"x", more_body=False)

    _, (left,) = await _upload(rule(deadline_idle=5.0, deadline_default=0.5), script)
    assert left <= 0.4


async def test_parts_that_come_after_the_head_fill_gaps_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(dict(START))
        while (await receive())["more_body"]:
            pass
        await send(dict(END))

    middleware = guarded(app, rule(slot="head", deadline_idle=0.3))
    async with nothing_open(middleware):
        request = Request(middleware, http_scope(method="POST"), body=()).start()
        for number in range(5):
            await asyncio.sleep(0.15)
            request.feed(b"x", more_body=number < 4)
        await request.end(1.0)
    assert request.complete


async def test_a_stream_keeps_no_timer_and_no_task_of_ours_beyond_its_watcher() -> None:
    """Moving the deadline arms nothing: the loop holds as many timers after 500 chunks as before."""
    app = Events()
    middleware = guarded(app, rule(slot="head", deadline_idle=30.0, deadline_default=0.06))
    loop: Any = asyncio.get_running_loop()
    async with nothing_open(middleware):
        request = Request(middleware).start()
        await until(lambda: opened(middleware) == 1)
        await asyncio.sleep(0.2)
        before = len(loop._scheduled)
        for _ in range(500):
            app.chunks.put_nowait(CHUNK)
        await until(lambda: len(request.messages) == 501)
        await asyncio.sleep(0.1)
        assert len(loop._scheduled) <= before + 2
        (exchange,) = app.contexts
        assert not exchange._timed, (
            "the timer of the head's deadline has ended, none is armed for the far one"
        )
        request.disconnect()
        await request.end(1.0)


async def test_another_one_of_ours_around_a_stream_ends_it_before() -> None:
    app = Events()
    inner = guarded(app, rule(slot="head", deadline_covers="head"))
    outer = ResilienceMiddleware(inner, deadline_default=0.2)
    async with nothing_open(inner), nothing_left(outer):
        request = Request(outer).start()
        await until(lambda: opened(inner) == 1)
        assert current().remaining() == math.inf
        assert app.contexts[0].remaining() <= 0.2
        assert app.contexts[0].deadline_at < math.inf
        await request.end(1.0)
    assert app.closed == [CancelReason.DEADLINE]
    assert 0.195 <= request.returned_at < 0.2 + ON_TIME


@pytest.mark.parametrize("covers", ["head", "gaps"])
async def test_a_scope_bounds_a_stream_whose_deadline_moves(covers: str) -> None:
    left: list[float] = []

    async def bounded(send: Any) -> None:
        async with current().within(0.6), asyncio.timeout(5.0), current().within(10.0):
            await send(dict(START))
            while True:
                await asyncio.sleep(0.1)
                left.append(current().remaining())
                await send(dict(CHUNK))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(DeadlineExceeded):
            await bounded(send)
        await send(dict(END))

    idle = 0.3 if covers == "gaps" else None
    middleware = guarded(app, rule(deadline_covers=covers, deadline_idle=idle, deadline_default=0.3))
    async with nothing_open(middleware):
        request = await Request(middleware).run()
    assert (request.raised, request.complete) == (None, True)
    assert 0.59 <= request.returned_at < 0.6 + ON_TIME
    assert all(each <= 0.6 for each in left)


async def test_check_in_a_gap_that_is_over_ends_the_stream() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(dict(START))
        time.sleep(0.25)  # noqa: ASYNC251  the loop is blocked, so nobody else ends it
        with pytest.raises(DeadlineExceeded):
            current().check()
        current().check()

    middleware = guarded(app, rule(slot="head", deadline_idle=0.2))
    async with nothing_open(middleware):
        request = await Request(middleware).run()
    assert request.raised is None
    assert ended(middleware) == {"deadline": 1}


# -- marks -------------------------------------------------------------------------------------------------------------


async def test_marks_say_it_too() -> None:
    @priority("normal", slot="head")
    @deadline(default=0.3, idle=0.5)
    async def endpoint(request: Any) -> StreamingResponse:
        assert isinstance(current(), StreamExchange)

        async def events() -> AsyncIterator[bytes]:
            for _ in range(4):
                await asyncio.sleep(0.2)
                yield b"x"

        return StreamingResponse(events())

    framework: Any = Starlette(routes=[Route("/events", endpoint)])
    policy = ServerPolicy()
    middleware = ResilienceMiddleware(framework, policy)
    async with nothing_open(middleware):
        request = await Request(middleware, http_scope("/events") | {"app": framework}).run()
    assert request.body == b"xxxx"
    assert ended(middleware) == {"completed": 1}
    assert guard_of(policy).snapshot().guard_errors == 0


# -- everything at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_slots_and_places_come_back_once(  # noqa: C901  one branch for each accident
    seed: int,
) -> None:
    """Callers who leave, servers that cancel, handlers that fail, hold or stall, at random instants and in crowds."""
    dice = random.Random(seed)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        plan = random.Random(scope["path"])
        if plan.random() < 0.3:
            await receive()
        await asyncio.sleep(plan.choice([0, 0, 0.01, 0.06]))
        if plan.random() < 0.2:
            held = asyncio.get_running_loop().create_future()
            current().hold(held)
            asyncio.get_running_loop().call_later(plan.random() / 20, held.set_result, None)
        if plan.random() < 0.1:
            raise LookupError("before the head")
        await send(dict(START))
        for _ in range(plan.randrange(4)):
            await asyncio.sleep(plan.choice([0, 0.01, 0.03]))
            await send(dict(CHUNK))
        if plan.random() < 0.1:
            raise LookupError("after the head")
        await asyncio.sleep(plan.choice([0, 0, 0.05, 3.0]))
        await send(dict(END))
        await asyncio.sleep(plan.choice([0, 0, 0.02]))

    async def call(number: int) -> None:
        request = Request(
            middleware,
            http_scope(f"/{seed}/{number}", headers=[budget(dice.choice([40, 120, 900]))]),
            telling=dice.choice([LATCHED, ONE_SHOT]),
            lost=dice.choice(["ignore", RAISE, HANG]),
            cancel_at=dice.choice([None, None, None, 0, 1, 2, 3, 5]),
        ).start()
        if dice.random() < 0.4:
            await asyncio.sleep(dice.random() / 10)
            request.disconnect()
        await request.end()

    said: dict[str, Any] = {
        "slot": "head",
        **dice.choice([{}, {"deadline_covers": "head"}, {"deadline_idle": 0.1}]),
    }
    middleware = guarded(app, rule(**said), limit=3, queue=4, stream_limit=8, max_wait=0.1)
    async with nothing_open(middleware):
        calls = []
        for number in range(60):
            calls.append(asyncio.create_task(call(number)))
            await asyncio.sleep(dice.choice([0, 0, 0.01, 0.03]))
            assert places(middleware) <= 8
        if said.get("deadline_covers") == "head":  # nothing but his caller ends a stream that lasts
            await asyncio.wait(calls, timeout=4.0)
        await asyncio.gather(*calls)
    found = figures(middleware)
    assert found.guard_errors == 0
    assert sum(ended(middleware).values()) <= outcomes(middleware).get("completed", 0)
    assert sum(ended(middleware).values()) > 5
