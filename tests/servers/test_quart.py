"""A Quart application on real servers: Quart's own cancellation, its streams, websockets and background tasks stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.servers.processes import Server, listening
from tests.servers.wire import ask, connected


@pytest.fixture(scope="module", params=["uvicorn-httptools", "hypercorn"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with listening(
        request.param, tmp_path_factory.mktemp("quart"), "app", "tests.integrations.quart_app"
    ) as running:
        yield running


async def state(server: Server) -> Any:
    return (await ask(server.port, "/state")).json


async def until(server: Server, holds: Callable[[Any], bool]) -> Any:
    """Wait until something holds of the state."""
    for _ in range(500):
        if holds(found := await state(server)):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(found)


async def test_a_caller_who_leaves_cancels_the_view_once_and_the_slot_comes_back(server: Server) -> None:
    begun, cancelled = "begun", "cancelled: client_disconnect"
    before = (await state(server))["counts"]
    async with connected(server.port) as wire:
        await wire.send("/api/sleep/30")
        await until(
            server, lambda now: now["counts"].get(begun, 0) > before.get(begun, 0) and now["slots"] == 1
        )
        wire.leave()
        now = await until(server, lambda now: now["counts"].get(cancelled, 0) > before.get(cancelled, 0))
    await until(server, lambda now: now["slots"] == 0)
    assert now["counts"][cancelled] == before.get(cancelled, 0) + 1


async def test_the_deadline_is_answered_on_time_and_the_view_is_cancelled(server: Server) -> None:
    cancelled = "cancelled: deadline"
    before = (await state(server))["counts"].get(cancelled, 0)
    late = await ask(server.port, "/api/sleep/30", budget=300)
    assert (late.status, late.json["reason"]) == (504, "deadline_exceeded")
    assert late.seconds < 5
    await until(server, lambda now: now["counts"].get(cancelled, 0) == before + 1 and now["slots"] == 0)


async def test_a_sync_view_holds_its_slot_until_its_thread_is_back(server: Server) -> None:
    before = (await state(server))["counts"].get("thread returned", 0)
    late = await ask(server.port, "/thread")
    assert late.status == 504
    now = await until(server, lambda now: now["slots"] == 0)
    assert now["counts"]["thread returned"] == before + 1


async def test_streams_and_bodies_pass_and_one_that_is_left_is_closed(server: Server) -> None:
    assert (await ask(server.port, "/short")).body == b"0 1\n1 1\n2 1\n"
    uploaded = await ask(server.port, "/upload", method="POST", body=b"x" * 300_000)
    assert uploaded.body == b"300000"
    before = (await state(server))["counts"].get("stream closed", 0)
    async with connected(server.port) as wire:
        await wire.send("/stream")
        await wire.reader.readuntil(b"2\n")
        wire.leave()
    await until(server, lambda now: now["counts"].get("stream closed", 0) == before + 1 and now["slots"] == 0)


async def test_a_background_task_outlives_its_answer_and_its_deadline(server: Server) -> None:
    before = (await state(server))["counts"].get("background done", 0)
    assert (await ask(server.port, "/background")).body == b"promised"
    await until(server, lambda now: now["counts"].get("background done", 0) == before + 1)


async def test_a_websocket_passes_and_is_counted(server: Server) -> None:
    async with connect(f"ws://127.0.0.1:{server.port}/echo") as socket:
        await socket.send("hello")
        assert await asyncio.wait_for(socket.recv(), 10) == "hello"
        assert (await state(server))["sockets"] == 1
    await until(server, lambda now: now["sockets"] == 0)


async def test_refusals_and_health_checks_while_all_slots_are_taken(server: Server) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(4):
            wire = await stack.enter_async_context(connected(server.port))
            await wire.send("/api/sleep/30")
        await until(server, lambda now: now["slots"] == 4)
        refused = await ask(server.port, "/api/sleep/0")
        assert (refused.status, refused.json["reason"]) == (503, "queue_full")
        assert (await ask(server.port, "/health")).body == b"ok"
    await until(server, lambda now: now["slots"] == 0)
