"""Where two features meet: streams, shadow mode, needs, drain, sections and two policies around each other."""

from __future__ import annotations

import asyncio

import pytest

from tests.asgi.driver import (
    Message,
    Request,
    http_scope,
    nothing_left,
    queued,
    until,
)
from tests.asgi.test_stream import (
    Events,
    guarded,
    rule,
)

# -- streams in shadow mode --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shadow", [["deadlines"], ["quotas"]])
async def test_who_leaves_as_his_wait_ends_had_no_place_in_shadow_mode(shadow: list[str]) -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), limit=1, shadow=shadow)
    guard = middleware.protection.guard
    async with nothing_left(middleware):
        first = Request(middleware).start()
        await until(lambda: len(app.contexts) == 1)
        waiting = Request(middleware).start()
        await until(lambda: queued(middleware) == 1)
        await asyncio.sleep(0.02)
        waiter = next(iter(guard.controller.classes[1].queue))
        wake = waiter.wake
        assert wake is not None

        def leaving() -> None:
            waiting.disconnect()
            wake()

        waiter.wake = leaving
        first.disconnect()
        await first.end(1.0)
        await waiting.end(1.0)
        assert waiting.raised is None
    assert len(app.contexts) == 1


# -- streams and the garbage collector ---------------------------------------------------------------------------------


async def test_the_place_of_a_forgotten_stream_is_found_by_the_next_one() -> None:
    app = Events()
    middleware = guarded(app, rule(slot="head"), stream_limit=1)

    async def send(message: Message) -> None:
        pass

    coroutine = middleware(http_scope(), None, send)
    coroutine.send(None)
    coroutine.close()
    request = Request(middleware).start()
    await until(lambda: len(app.contexts) == 2)
    request.disconnect()
    await request.end(1.0)
    assert request.status == 200
