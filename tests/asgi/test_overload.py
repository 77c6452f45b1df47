"""Overload under ASGI: the tick looks, the end of everything is seen, and a cheaper answer is marked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from resilient_mw import Band, OverloadPolicy, current
from resilient_mw.admission.overload_policy import Signal
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.runtime.overload import Overload
from tests.asgi.driver import Counting, Request, answer, budget, http_scope, nothing_left, plain, until

# Only what these tests bring about, and at once.
pytestmark = pytest.mark.usefixtures("own_time")


QUICK: dict[str, Any] = {
    "slots": Band(0.5, 1.0), "queue": None, "queue_age": None, "loop_lag": None, "memory": None,
    "memory_pressure": None, "gc": None, "pool_wait": None, "dependency_errors": None, "dependency_latency": None, "rise": 0.02, "fall": 0.02, "dwell": 0.0,
}  # fmt: skip


def protected(app: Any, **bands: Any) -> tuple[ResilienceMiddleware, Overload]:
    middleware = ResilienceMiddleware(app, limit=1, overload=OverloadPolicy(**(QUICK | bands)))
    return middleware, middleware.protection.guard.overload


def known(overload: Overload) -> dict[Signal, float]:
    """What the last look said; nobody looks now."""
    assert overload._measure is not None
    return overload._measure.signals()


async def test_the_tick_looks_while_a_request_is_in_flight_and_once_more_when_none_is() -> None:
    app = Counting()
    middleware, overload = protected(app, loop_lag=Band(100.0, 200.0))
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await until(lambda: overload.state.value == "overloaded")
        app.gate.set()
        await request.end()
        await until(lambda: known(overload) == {Signal.SLOTS: 0.0, Signal.LOOP_LAG: 0.0})
        assert not overload.crowded


async def test_who_comes_after_a_quiet_time_does_not_see_the_storm_before_it() -> None:
    app = Counting()
    levels: list[float] = []

    async def level(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/level":
            levels.append(current().overload)
        await app(scope, receive, send)

    middleware, overload = protected(level)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await until(lambda: overload.state.value == "overloaded")
        app.gate.set()
        await request.end()
        await asyncio.sleep(0.3)
        assert overload.level > 0.0  # nobody has looked since
        await Request(middleware, http_scope("/level")).run()
    assert levels == [pytest.approx(0.0, abs=0.05)]


async def test_a_loop_that_is_always_late_is_seen_and_not_held_against_it_afterwards() -> None:
    async def hog() -> None:
        end = time.monotonic() + 0.9
        while time.monotonic() < end:
            time.sleep(0.25)  # noqa: ASYNC251  that is the point
            await asyncio.sleep(0)

    middleware, overload = protected(plain(hog), slots=None, loop_lag=Band(0.05, 0.15), fall=60.0)
    async with nothing_left(middleware):
        await Request(middleware).run()
        assert overload.level > 0.5
        await until(lambda: known(overload) == {Signal.LOOP_LAG: 0.0})


def marking(respond: Callable[[Any], Any]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        current().mark_degraded()
        await respond(send)

    return app


async def test_a_cheaper_answer_is_marked_and_the_applications_message_is_not_touched() -> None:
    head = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"set-cookie", b"a"), (b"set-cookie", b"b")],
    }

    async def respond(send: Any) -> None:
        await send(head)
        await send({"type": "http.response.body", "body": b"cheap"})

    middleware, _ = protected(marking(respond))
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert request.starts[0]["headers"] == [
        (b"set-cookie", b"a"), (b"set-cookie", b"b"), (b"x-degraded", b"1"),
    ]  # fmt: skip
    assert request.body == b"cheap"
    assert head["headers"] == [(b"set-cookie", b"a"), (b"set-cookie", b"b")]


async def test_a_head_without_headers_is_marked() -> None:
    async def respond(send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    middleware, _ = protected(marking(respond))
    request = await Request(middleware).run()
    assert request.header("x-degraded") == "1"


async def test_an_answer_that_nobody_marked_and_a_504_are_not_marked() -> None:
    async def too_long(send: Any) -> None:
        await asyncio.sleep(5)

    middleware, _ = protected(plain(lambda: asyncio.sleep(0)))
    assert (await Request(middleware).run()).header("x-degraded") is None
    middleware, _ = protected(marking(too_long))
    async with nothing_left(middleware):
        request = await Request(middleware, http_scope(headers=[budget(60)])).run()
    assert request.status == 504
    assert request.header("x-degraded") is None


async def test_what_is_marked_after_the_head_changes_nothing() -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)
        current().mark_degraded()

    middleware, _ = protected(late)
    assert (await Request(middleware).run()).header("x-degraded") is None
