"""What the survey finds, structure by structure, and that it admits when it cannot see."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import asgiref.sync
import pytest

from resilient_mw.runtime import awaits, stopping, wakeups
from resilient_mw.runtime.survey import Survey, survey
from resilient_mw.runtime.thread_work import AnyioWork
from tests.runtime.small_shell import expired, nothing_left, plain, run


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What the threads of a test wait for."""
    event = threading.Event()
    yield event
    event.set()


@contextmanager
def named(name: str) -> Iterator[None]:
    task = asyncio.current_task()
    assert task is not None
    task.set_name(name)
    yield


async def sleeper(name: str) -> None:
    with named(name):
        await asyncio.sleep(30)


async def look(handler: Callable[[], Awaitable[object]], settle: float = 0.03) -> Survey:
    """Survey a handler after it has come to rest, then end it."""
    loop = asyncio.get_running_loop()
    found: list[Survey] = []

    async def root() -> None:
        await handler()

    task = loop.create_task(root(), name="root")
    await asyncio.sleep(settle)
    loop.call_soon(lambda: found.append(survey(task)))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task], timeout=1)
    return found[0]


def names(tasks: list[asyncio.Task[Any]]) -> list[str]:
    return sorted(task.get_name() for task in tasks)


async def test_a_plain_wait() -> None:
    found = await look(lambda: asyncio.sleep(30))
    assert (names(found.leaves), found.outer, found.threads) == (["root"], [], [])
    assert not found.below_scope
    assert not found.by_wait
    assert not found.blind


class ServersOwn:
    """What Granian's `receive()` and `send()` are to be awaited with: a future in name only."""

    def __init__(self) -> None:
        self._asyncio_future_blocking = False
        self._future = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        if name not in {
            "add_done_callback",
            "remove_done_callback",
            "get_loop",
            "done",
            "cancelled",
            "result",
            "cancel",
        }:
            raise AttributeError(name)
        return getattr(self._future, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        self._asyncio_future_blocking = True
        yield self


async def test_a_wait_for_the_server_itself() -> None:
    async def waits() -> None:
        await ServersOwn()

    found = await look(waits)
    assert (names(found.leaves), found.blind) == (["root"], False)
    work = threading.Event()
    try:
        found = await look(lambda: asyncio.gather(waits(), asyncio.to_thread(work.wait, 5)))
        assert (len(found.threads), found.blind) == (1, False)
    finally:
        work.set()


async def _gather() -> None:
    await asyncio.gather(sleeper("a"), sleeper("b"))


async def _group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("a"))
        group.create_task(sleeper("b"))


async def _task() -> None:
    task = asyncio.create_task(sleeper("a"))
    await asyncio.create_task(_awaits(task))


async def _awaits(task: asyncio.Task[None]) -> None:
    with named("b"):
        await task


async def _anyio_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(sleeper, "a")
        group.start_soon(sleeper, "b")


async def _anyio_body() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(sleeper, "a")
        await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("handler", "leaves", "outer", "below_scope"),
    [
        (_gather, ["a", "b"], ["root"], False),
        (_group, ["a", "b"], ["root"], False),
        (_task, ["a"], ["b", "root"], False),
        (_anyio_group, ["a", "b"], ["root"], True),
        (_anyio_body, ["a"], ["root"], True),
    ],
)
async def test_tasks_that_a_task_waits_for(
    handler: Callable[[], Awaitable[None]], leaves: list[str], outer: list[str], below_scope: bool
) -> None:
    found = await look(handler)
    assert names(found.leaves) == leaves
    assert names(found.outer) == outer
    assert found.below_scope is below_scope


async def test_a_group_whose_body_is_busy_is_left_to_asyncio() -> None:
    async def handler() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("a"))
            await asyncio.sleep(30)

    found = await look(handler)
    assert names(found.leaves) == ["root"]


async def test_wait_and_shield_are_not_cancelled_through() -> None:
    other = asyncio.create_task(sleeper("other"))
    found = await look(lambda: asyncio.wait([other]))
    assert names(found.leaves) == ["root"]
    assert found.by_wait

    async def shielded() -> None:
        await asyncio.shield(other)

    found = await look(shielded)
    assert names(found.leaves) == ["root"]
    assert not found.by_wait
    other.cancel()


async def _to_thread(event: threading.Event) -> None:
    await asyncio.to_thread(event.wait, 5)


async def _executor(event: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, event.wait, 5)


async def _anyio(event: threading.Event) -> None:
    await anyio.to_thread.run_sync(event.wait, 5)


async def _asgiref(event: threading.Event) -> None:
    await asgiref.sync.sync_to_async(event.wait, thread_sensitive=False)(5)


async def _in_gather(event: threading.Event) -> None:
    await asyncio.gather(_to_thread(event), asyncio.sleep(30))


async def _in_wait(event: threading.Event) -> None:
    await asyncio.wait([asyncio.create_task(_to_thread(event))])


async def _in_shield(event: threading.Event) -> None:
    await asyncio.shield(_to_thread(event))


async def _in_wait_for(event: threading.Event) -> None:
    await asyncio.wait_for(_to_thread(event), 20)


async def _in_generator(event: threading.Event) -> None:
    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        await asyncio.to_thread(event.wait, 5)
        yield

    async with resource():
        pass


async def _in_body(event: threading.Event) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_to_thread(event))
        await asyncio.sleep(30)


KINDS = [
    _to_thread, _executor, _anyio, _asgiref, _in_gather, _in_wait, _in_shield, _in_wait_for, _in_generator, _in_body,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_threads_of_every_kind(
    kind: Callable[[threading.Event], Awaitable[None]], gate: threading.Event
) -> None:
    loop = asyncio.get_running_loop()
    found: list[Survey] = []
    ended: list[float] = []

    async def root() -> None:
        await kind(gate)

    task = loop.create_task(root())
    await asyncio.sleep(0.02)
    loop.call_soon(lambda: found.append(survey(task)))
    await asyncio.sleep(0.01)
    (work,) = found[0].threads
    assert bool(found[0].leaves) is (kind in {_in_body, _in_gather})
    work.follow(loop, lambda: ended.append(time.monotonic()))
    task.cancel()
    await asyncio.sleep(0.03)
    assert not ended
    gate.set()
    await asyncio.sleep(0.06)
    assert len(ended) == 1
    await asyncio.wait([task])


async def test_a_call_that_still_queues_is_not_in_a_thread(gate: threading.Event) -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    blocked = pool.submit(gate.wait, 5)
    loop = asyncio.get_running_loop()
    found = await look(lambda: asyncio.wait_for(loop.run_in_executor(pool, int), 20))
    assert not found.threads
    assert len(found.queued) == len(found.queued_futures) == 1
    assert names(found.leaves) == ["root"]
    gate.set()
    await asyncio.wrap_future(blocked)
    pool.shutdown()


async def test_what_is_about_to_step_is_told_from_what_waits() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    async def handler() -> None:
        await future
        await asyncio.sleep(30)

    task = loop.create_task(handler())
    await asyncio.sleep(0.01)
    found: list[Survey] = []

    def at_the_same_turn() -> None:
        future.set_result(None)
        found.append(survey(task))

    loop.call_soon(at_the_same_turn)
    await asyncio.sleep(0.01)
    assert found[0].resuming == [task]
    assert not found[0].leaves
    task.cancel()


async def test_a_task_that_has_not_begun_is_told_apart() -> None:
    loop = asyncio.get_running_loop()
    found: list[Survey] = []

    def both() -> None:
        task = loop.create_task(asyncio.sleep(0))
        found.append(survey(task))
        assert found[0].unstarted == [task]

    loop.call_soon(both)
    await asyncio.sleep(0.01)
    assert found[0].leaves == []


async def test_tasks_of_another_loop_are_not_touched() -> None:
    log: list[str] = []

    async def in_other_loop() -> None:
        await asyncio.sleep(0.2)
        log.append("ended")

    def in_thread() -> None:
        asgiref.sync.async_to_sync(in_other_loop, force_new_loop=True)()

    outcome = await run(plain(asgiref.sync.sync_to_async(in_thread, thread_sensitive=False)))
    expired(outcome)
    assert log == ["ended"]
    assert outcome.released_at is not None
    assert outcome.released_at >= 0.2


@pytest.mark.parametrize(("queue", "idle"), [(0, False), (1, True)])
async def test_a_worker_left_behind_is_back_when_it_is_idle_or_has_been(queue: int, idle: bool) -> None:
    """It may have taken its next call before anybody looked."""
    worker = SimpleNamespace(queue=SimpleNamespace(unfinished_tasks=1), idle_since=1.0)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    ended: list[bool] = []
    work = AnyioWork(worker, future)
    work.follow(loop, lambda: ended.append(True))
    future.cancel()
    await asyncio.sleep(0.05)
    assert ended == []
    worker.queue.unfinished_tasks = queue
    worker.idle_since += idle
    await asyncio.sleep(0.05)
    assert ended == [True]


async def test_it_is_cheap_enough_for_requests_that_are_over() -> None:
    """No test of speed: a bound far above the noise, for a search that runs away."""
    found = await look(lambda: asyncio.gather(*(_anyio_group() for _ in range(200))), 0.1)
    assert len(found.leaves) == 400

    async def deep(levels: int) -> None:
        if levels:
            await deep(levels - 1)
        else:
            await asyncio.sleep(30)

    found = await look(lambda: deep(300))
    assert names(found.leaves) == ["root"]


# -- without the private names -----------------------------------------------------------------------------------------


def _missing(*_: object) -> Any:
    raise AttributeError("no such name")


@pytest.fixture
def _fresh_warning() -> Iterator[None]:
    stopping._warn_blind.cache_clear()
    yield
    stopping._warn_blind.cache_clear()


HANDLERS: list[Callable[[], Awaitable[Any]]] = [
    lambda: asyncio.sleep(5),
    _gather,
    _group,
    _anyio_group,
    lambda: asyncio.wait_for(asyncio.sleep(5), 4),
    lambda: asyncio.to_thread(time.sleep, 0.2),
]


@pytest.mark.usefixtures("_fresh_warning", "own_time")
@pytest.mark.parametrize("handler", HANDLERS, ids=["sleep", "gather", "group", "anyio", "wait_for", "thread"])
@pytest.mark.parametrize("name", ["awaited", "chain_of", "scope_children"])
async def test_without_its_names_it_falls_back_to_the_root(
    handler: Callable[[], Awaitable[object]],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "resilient_mw")
    monkeypatch.setattr(awaits, name, _missing)
    for _ in range(2):
        outcome = await run(plain(handler))
        expired(outcome)
        assert outcome.returned_at is not None
        assert outcome.returned_at < 0.2
    assert [record.name for record in caplog.records] == ["resilient_mw"]  # once
    assert "Cannot see" in caplog.text


@pytest.mark.usefixtures("_fresh_warning")
async def test_without_anyios_names_it_falls_back_to_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["anyio._backends._asyncio"], "_task_states")
    assert (await look(lambda: asyncio.sleep(30))).blind
    monkeypatch.undo()
    assert not (await look(lambda: asyncio.sleep(30))).blind


@pytest.mark.usefixtures("own_time")
async def test_without_the_wake_ups_everything_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outer tasks are not cancelled before they resume, groups are not quiet: less polite, not less final."""
    monkeypatch.setattr(wakeups, "awaited", _missing)
    monkeypatch.setattr(wakeups, "cell", _missing)
    async with nothing_left():
        for handler in (_anyio_group, _gather):
            outcome = await run(plain(handler))
            expired(outcome)


async def test_anyio_is_not_imported_by_looking() -> None:
    code = (
        "import asyncio, sys\n"
        "from resilient_mw.runtime.survey import survey\n"
        "async def main():\n"
        "    task = asyncio.create_task(asyncio.sleep(1))\n"
        "    await asyncio.sleep(0)\n"
        "    found = survey(task)\n"
        "    assert found.leaves == [task] and not found.blind\n"
        "    assert not {'anyio', 'asgiref'} & set(sys.modules)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=".")
    assert await process.wait() == 0
