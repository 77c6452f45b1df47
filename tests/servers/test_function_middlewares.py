"""FastAPI behind uvicorn, with function middlewares (`@app.middleware("http")`) inside and outside ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial

import pytest

from tests.servers.processes import Server, listening
from tests.servers.test_matrix import WITHIN, Change, idle_afterwards, state, until
from tests.servers.wire import ask, connected

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["above", "below"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ours above four function middlewares, or below one."""
    folder = tmp_path_factory.mktemp("functions")
    with listening("uvicorn-httptools", folder, request.param, "tests.servers.probe_fastapi") as running:
        yield running


def _raised(server: Server) -> int:
    return server.logged().count("Exception in ASGI application")


async def test_b04_abandoned_requests_are_cancelled_in_either_order(server: Server) -> None:
    """B04: 20 of 20 within a second, slots free within a second."""
    async with idle_afterwards(server) as change, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(server.port)) for _ in range(20)]
        for wire in wires:
            await wire.send("/sleep")
        await until(server, lambda now: change.of(now, "begun") == 20, 10.0)
        await asyncio.sleep(0.3)
        for wire in wires:
            wire.leave()
        await until(
            server,
            lambda now: change.of(now, "cancelled: client_disconnect") == 20 and now["slots"] == 0,
            WITHIN,
        )


async def test_504_on_time_in_either_order(server: Server) -> None:
    for path in ("/sleep", "/thread?seconds=1.5"):
        async with idle_afterwards(server), connected(server.port) as wire:
            await wire.ask("/thread?seconds=0")  # the first one imports what runs it, in the loop's thread
            answer = await wire.ask(path, budget=200)
            assert answer.status == 504
            assert 0.195 <= answer.seconds < 1.4
            assert (await wire.ask("/work")).status == 200


def has_begun(change: Change, number: int, now: dict[str, int]) -> bool:
    return change.of(now, "begun") == number


@pytest.mark.parametrize("leave_after", [0.05, 0.15, 0.19, 0.2, 0.21])
async def test_b05_callers_who_leave_around_the_answer_make_no_error(
    server: Server, leave_after: float
) -> None:
    """B05: the handler takes 0.2 s; nothing that happens between the layers reaches the server's log."""
    before = _raised(server)
    path = "/sleep" if leave_after < 0.15 else "/work"
    async with idle_afterwards(server) as change:
        for begun in (15, 30):
            all_begun = asyncio.Event()

            async def call(number: int, all_begun: asyncio.Event) -> None:
                async with connected(server.port) as wire:
                    await wire.send(path)
                    await all_begun.wait()
                    await asyncio.sleep(leave_after - 0.03 + number * 0.0005)
                    wire.leave(rudely=number % 2 == 1)

            calls = [asyncio.create_task(call(number, all_begun)) for number in range(15)]
            await until(server, partial(has_begun, change, begun), 10.0)
            all_begun.set()
            await asyncio.gather(*calls)
            await until(server, lambda now: now["slots"] == 0, WITHIN)
        now = await state(server)
        assert change.of(now, "begun") == 30
    if leave_after < 0.15:
        assert change.of(now, "cancelled: client_disconnect") == 30
    if "below" not in server.log.name:
        assert _raised(server) == before, server.logged()
    assert (await ask(server.port, "/work")).status == 200
