"""What the garbage collector ends, at any allocation, must not wait for a lock that this thread holds."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from random import Random

import pytest

from resilient_mw import DeadlineExceeded, ServerPolicy, current
from resilient_mw.core.marks import Mark
from resilient_mw.runtime.async_gate import AsyncWait
from resilient_mw.runtime.guard import Guard


def test_a_forgotten_waiter_is_taken_back_by_the_next_arrival() -> None:
    guard = Guard(ServerPolicy(limit=1, queue=1), rng=Random(1))
    entry = guard.entries.get("/", Mark())
    far = guard.clock.now() + 60
    assert guard.arrive(entry, guard.clock.now(), far).admitted
    waiter = guard.arrive(entry, guard.clock.now(), far).waiter
    assert waiter is not None
    loop = asyncio.new_event_loop()
    waiting = AsyncWait(guard, waiter, loop).wait()
    waiting.send(None)

    def collect_under_the_lock() -> None:
        with guard._lock:
            waiting.close()

    thread = threading.Thread(target=collect_under_the_lock, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "the collector waits for a lock that its own thread holds"
    loop.close()
    assert guard.arrive(entry, guard.clock.now(), far).waiter is not None
    assert guard.snapshot().classes[1].queued == 1


def test_a_scope_that_is_left_in_another_context_raises_nothing() -> None:
    scope = current().within(1.0)
    copy_context().run(scope.__enter__)
    raised: list[BaseException] = []

    def leave() -> None:
        try:
            scope.__exit__()
        except BaseException as error:  # noqa: BLE001  whatever it is, the test wants to know
            raised.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert raised == []


async def test_within_ends_its_block_and_leaves_no_trace() -> None:
    """B23: after a deadline of ours was caught, the task is as it was, and other timeouts work."""
    task = asyncio.current_task()
    assert task is not None
    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            async with current().within(0.01):
                await asyncio.sleep(1)
        assert task.cancelling() == 0
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1)
    assert not isinstance(caught.value, DeadlineExceeded)
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))


async def test_within_never_claims_a_foreign_timeout_or_cancellation() -> None:
    """B19."""
    with pytest.raises(TimeoutError) as caught:
        async with current().within(5):
            raise TimeoutError("somebody else's")
    assert not isinstance(caught.value, DeadlineExceeded)

    async def inner() -> None:
        async with current().within(5):
            await asyncio.sleep(5)

    task = asyncio.create_task(inner())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nested_scopes_shrink_and_never_grow() -> None:
    """B23, three levels: the inner one ends with the outer one, and each says whose time was over."""
    async with current().within(0.05) as outer, current().within(10) as inner:
        assert inner.deadline_at == outer.deadline_at
    ended = []

    async def inside() -> None:
        try:
            async with current().within(5), current().within(10):
                await asyncio.sleep(1)
        except asyncio.CancelledError:
            ended.append("by the outer one")
            raise

    with pytest.raises(DeadlineExceeded):
        async with current().within(0.02):
            await inside()
    assert ended == ["by the outer one"]
    with pytest.raises(DeadlineExceeded, match=r"within 0\.01"):
        async with current().within(5), current().within(0.01):
            await asyncio.sleep(1)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
