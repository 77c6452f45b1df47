"""A server that must have every request read to its end: Hypercorn over HTTP/2, and over HTTP/1.1 beyond ten parts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from resilient_mw.asgi import ResilienceMiddleware, early, refusal
from tests.asgi.driver import (
    HANG,
    LATCHED,
    ONE_SHOT,
    Message,
    Request,
    answer,
    budget,
    http_scope,
    nothing_left,
    outcomes,
    until,
)

START, MORE, END = "start", "more", "end"


pytestmark = pytest.mark.usefixtures("own_time")


def hypercorn(**more: Any) -> dict[str, Any]:
    """Return a POST as Hypercorn tells of it."""
    asgi = {"version": "3.0", "spec_version": "2.1"}
    offered: dict[str, Any] = {"http.response.trailers": {}, "http.response.push": {}}
    return http_scope(method="POST", asgi=asgi, http_version="2", extensions=offered) | more


def sent(request: Request) -> list[str]:
    """Return the kinds of the messages that have left."""
    kinds = []
    for message in request.messages:
        body = message["type"] == "http.response.body"
        kinds.append((MORE if message.get("more_body") else END) if body else START)
    return kinds


async def at_once(scope: Any, receive: Any, send: Any) -> None:
    await answer(send)


async def reading(scope: Any, receive: Any, send: Any) -> None:
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await answer(send)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("refused", [True, False], ids=["refused", "answered early"])
async def test_the_end_of_an_early_answer_waits_for_the_end_of_its_request(
    refused: bool, layers: int
) -> None:
    middleware = ResilienceMiddleware(at_once)
    outermost = ResilienceMiddleware(middleware) if layers == 2 else middleware
    scope = hypercorn(headers=[budget(0)] if refused else [])
    async with nothing_left(middleware, outermost):
        request = Request(outermost, scope, body=[b"1"], telling=ONE_SHOT)
        request._incoming[0]["more_body"] = True
        request.start()
        await until(lambda: sent(request) == [START, MORE])
        assert request.times[1] < 0.5
        assert (request.status, bool(request.body)) == (504 if refused else 200, True)
        for _ in range(20):
            request.feed(b"2")
        await until(lambda: not request._incoming)
        await asyncio.sleep(0.02)
        assert sent(request) == [START, MORE]
        assert request.task is not None
        assert not request.task.done()
        request.feed(b"3", more_body=False)
        await request.end()
    assert sent(request) == [START, MORE, END]


@pytest.mark.parametrize("spec", ["2.1", "2.3"])
async def test_what_is_read_to_its_end_passes_untouched(spec: str) -> None:
    middleware = ResilienceMiddleware(reading)
    async with nothing_left(middleware):
        scope = hypercorn(asgi={"version": "3.0", "spec_version": spec})
        request = await Request(middleware, scope, body=[b"1", b"2"]).run()
    assert sent(request) == [START, END]


@pytest.mark.parametrize("asgi", [{"version": "3.0", "spec_version": "2.3"}, {"version": "3.0"}, {}, None])
async def test_on_other_servers_early_answers_end_at_once(asgi: Message | None) -> None:
    middleware = ResilienceMiddleware(at_once)
    async with nothing_left(middleware):
        absent: tuple[Any, ...] = ({}, None)
        for extensions in absent:
            scope = http_scope(method="POST", asgi=asgi, extensions=extensions)
            request = await Request(middleware, scope, body=[]).run()
            assert sent(request) == [START, END]
            for name in ("asgi", "extensions"):
                scope.pop(name, None)
                request = await Request(middleware, scope, body=[]).run()
                assert (request.raised, sent(request)) == (None, [START, END])


async def test_over_http_1_too() -> None:
    middleware = ResilienceMiddleware(at_once)
    async with nothing_left(middleware):
        request = Request(middleware, hypercorn(http_version="1.1", extensions={}), body=[]).start()
        await until(lambda: sent(request) == [START, MORE])
        request.feed(b"", more_body=False)
        assert sent(await request.end()) == [START, MORE, END]


async def test_a_504_in_the_middle_of_an_upload() -> None:
    middleware = ResilienceMiddleware(reading, limit=1)
    async with nothing_left(middleware):
        request = Request(middleware, hypercorn(headers=[budget(100)]), body=[]).start()
        await until(lambda: sent(request) == [START, MORE], 1.0)
        assert request.status == 504
        await until(lambda: middleware.protection.guard.snapshot().classes[0].slots == 0, 1.0)
        request.feed(b"1")
        request.feed(b"2", more_body=False)
        assert sent(await request.end()) == [START, MORE, END]


@pytest.mark.parametrize("telling", [LATCHED, ONE_SHOT])
async def test_who_leaves_meanwhile_is_sent_nothing_more(
    telling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the end of it would hang for ever."""
    monkeypatch.setattr(early, "END_WITHIN", 10.0)
    middleware = ResilienceMiddleware(at_once)
    async with nothing_left(middleware):
        request = Request(middleware, hypercorn(), body=[], telling=telling, lost=HANG).start()
        await until(lambda: sent(request) == [START, MORE])
        request.disconnect()
        await request.end(1.0)
    assert sent(request) == [START, MORE]


async def test_background_work_does_not_keep_the_end_back() -> None:
    done: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)
        await asyncio.sleep(0.5)
        done.append(time.monotonic() - request.began)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, hypercorn(), body=[]).start()
        await until(lambda: sent(request) == [START, MORE])
        request.feed(b"1", more_body=False)
        await until(lambda: sent(request)[-1] == END, 0.45)
        await request.end()
    assert request.times[-1] < done[0]


async def test_nobody_is_waited_for_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "REST_WITHIN", 0.1)
    middleware = ResilienceMiddleware(at_once)
    async with nothing_left(middleware):
        request = await Request(middleware, hypercorn(), body=[]).run(2.0)
    assert sent(request) == [START, MORE, END]


async def test_the_end_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller leaves when the request has been read, and `send()` hangs."""
    monkeypatch.setattr(early, "END_WITHIN", 0.05)
    middleware = ResilienceMiddleware(at_once)
    async with nothing_left(middleware):
        request = Request(middleware, hypercorn(), body=[], telling=ONE_SHOT, lost=HANG).start()
        await until(lambda: sent(request) == [START, MORE])
        request.feed(b"1", more_body=False)
        request.gone = True
        await request.end(2.0)


@pytest.mark.parametrize("begun", [True, False])
async def test_an_application_that_fails_is_read_to_its_end_before_the_server_hears_of_it(
    begun: bool,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise LookupError

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, hypercorn(), body=[]).start()
        await asyncio.sleep(0.05)
        assert request.raised is None
        request.feed(b"1", more_body=False)
        await request.end()
    assert isinstance(request.raised, LookupError)
    assert sent(request) == [START] * begun


@pytest.mark.parametrize("step", range(3))
async def test_the_server_may_cancel_it_at_any_step(step: int) -> None:
    middleware = ResilienceMiddleware(at_once)
    async with nothing_left(middleware):
        request = await Request(middleware, hypercorn(), body=[], cancel_at=step).run(2.0)
    assert isinstance(request.raised, asyncio.CancelledError)


async def test_what_an_application_sends_after_the_end_goes_nowhere() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)
        await answer(send)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, hypercorn(), body=[]).start()
        await asyncio.sleep(0.02)
        request.feed(b"1", more_body=False)
        await request.end()
    assert sent(request) == [START, MORE, END]


async def test_trailers_are_the_end_where_there_are_some() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": b"1"})
        await send({"type": "http.response.trailers", "headers": []})

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = await Request(middleware, hypercorn()).run()
    assert [each["type"].split(".")[-1] for each in request.messages] == ["start", "body", "trailers"]
    assert not request.messages[1].get("more_body")


async def test_a_middleware_around_that_cannot_read_on_ends_it() -> None:
    middleware: Any = ResilienceMiddleware(at_once)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        async def broken() -> Message:
            raise ConnectionResetError

        await middleware(scope, broken, send)

    async with nothing_left(middleware):
        request = await Request(outer, hypercorn(), body=[]).run(2.0)
    assert sent(request) == [START, MORE, END]


async def test_a_refusal_whose_caller_has_gone_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypercorn never comes back from the last `send()` over HTTP/2 then, whatever the method is."""
    monkeypatch.setattr(refusal, "LAST_WITHIN", 0.05)
    middleware = ResilienceMiddleware(at_once)
    async with nothing_left(middleware):
        scope = hypercorn(method="GET", headers=[budget(0)])
        request = Request(middleware, scope, stall=lambda message: message["type"] == "http.response.body")
        await request.run(2.0)
    assert sent(request) == [START, END]


@pytest.mark.parametrize("between", ["nothing", "a layer that wraps receive"])
async def test_a_complete_answer_is_not_cut_off_by_the_outer_one_of_two(between: str) -> None:
    """To the outer one the answer is complete when it is to the inner one, whenever its request ends."""
    inner: Any = ResilienceMiddleware(at_once)

    async def wrapping(scope: Any, receive: Any, send: Any) -> None:
        async def receive_through() -> Message:
            message: Message = await receive()
            return message

        await inner(scope, receive_through, send)

    outer = ResilienceMiddleware(inner if between == "nothing" else wrapping, deadline_default=0.2)
    async with nothing_left(inner, outer):
        request = Request(outer, hypercorn(), body=[b"1"])
        request._incoming[0]["more_body"] = True
        request.start()
        await asyncio.sleep(0.5)
        request.feed(b"", more_body=False)
        await request.end()
    assert sent(request) == [START, MORE, END]
    assert outcomes(outer) == {"completed": 1}
