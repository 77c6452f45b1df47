"""Pins every private name of other people that the survey uses, for the versions that are installed.

When one of these fails, a library has changed: requests are then stopped less well, and `awaits` has to follow.
"""

from __future__ import annotations

import asyncio
import asyncio.futures
import asyncio.tasks
import concurrent.futures
import sys
from types import CodeType, FunctionType
from typing import Any

import anyio
import anyio.to_thread
import asgiref.sync
import pytest
from anyio._backends import _asyncio as anyio_backend

from resilient_mw.runtime import awaits, wakeups
from tests.runtime.small_shell import until


def inner_functions(function: Any) -> set[str]:
    return {each.co_name for each in function.__code__.co_consts if isinstance(each, CodeType)}


def variables(function: Any) -> tuple[str, ...]:
    code = getattr(function, "__func__", function).__code__
    return (*code.co_varnames, *code.co_cellvars)


def test_codes_of_asyncio() -> None:
    assert awaits.WAIT_CODE is not None
    assert "fs" in variables(asyncio.tasks._wait)  # type: ignore[attr-defined]
    assert len(awaits.INNER_TASK_CODES) == 2
    assert "fut" in variables(asyncio.wait_for)
    assert "fut" in variables(asyncio.tasks._cancel_and_wait)  # type: ignore[attr-defined]
    assert awaits.GROUP_EXIT_CODES


def test_callbacks_of_asyncio() -> None:
    assert "_call_check_cancel" in inner_functions(asyncio.futures._chain_future)  # type: ignore[attr-defined]
    assert "source" in variables(asyncio.futures._chain_future)  # type: ignore[attr-defined]
    assert "_outer_done_callback" in inner_functions(asyncio.shield)
    assert "inner" in variables(asyncio.shield)


async def test_attributes_of_asyncio() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    async def waits() -> None:
        await future

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    assert task._fut_waiter is future  # type: ignore[attr-defined]
    ((wake_up, _),) = future._callbacks
    assert wakeups._wakes(wake_up, task)
    assert not wakeups._wakes(task.cancel, task)
    future.set_result(None)
    await task
    gathering = asyncio.gather(asyncio.sleep(0))
    assert len(awaits.gathered(gathering)) == 1
    await gathering
    async with asyncio.TaskGroup() as group:
        assert group._parent_task is asyncio.current_task()  # type: ignore[attr-defined]
        assert group._tasks == set()


async def test_futures_of_executors_and_shields() -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    source: concurrent.futures.Future[None] = concurrent.futures.Future()
    wrapped = asyncio.wrap_future(source)
    assert awaits.executor_call(wrapped) is source
    shield = asyncio.shield(wrapped)
    assert awaits.shielded(shield) is wrapped
    assert awaits.executor_call(shield) is None
    assert awaits.shielded(wrapped) is None
    source.set_result(None)
    await shield
    pool.shutdown()


async def test_names_of_anyio() -> None:
    task = asyncio.current_task()
    assert task is not None
    with anyio.CancelScope() as outer, anyio.CancelScope() as scope:
        await anyio.sleep(0.001)
        state = anyio_backend._task_states[task]
        assert state.cancel_scope is scope
        assert scope._host_task is task
        assert scope._parent_scope is outer
        assert scope in outer._child_scopes
        assert task in scope._tasks
        assert scope._cancel_called is False
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0.01)
        (child,) = awaits.scope_children(task)
        names = [getattr(callback, "__qualname__", "") for callback, _ in child._callbacks]
        assert wakeups._TASK_DONE in names
        callback = child._callbacks[names.index(wakeups._TASK_DONE)][0]
        assert isinstance(callback, FunctionType)
        assert awaits.cell(callback, "self") is group


async def test_the_thread_call_of_anyio() -> None:
    function = anyio_backend.AsyncIOBackend.run_sync_in_worker_thread
    assert {"future", "worker"} <= set(variables(function))
    worker = anyio_backend.WorkerThread
    assert "idle_since" in worker._report_result.__code__.co_names
    await anyio.to_thread.run_sync(int)
    (idle,) = anyio_backend._threadpool_idle_workers.get()
    await until(
        lambda: idle.queue.unfinished_tasks == 0
    )  # the thread says so a moment after its result has come


def test_the_bridge_of_asgiref() -> None:
    assert {"exec_coro", "task_context"} <= set(variables(asgiref.sync.SyncToAsync.__call__))
    assert asgiref.sync.SyncToAsync.__call__.__globals__["__name__"] == awaits._ASGIREF


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="not known yet")
async def test_the_steps_of_generators() -> None:
    async def numbers() -> Any:
        yield 1

    async def coroutine() -> None:
        return None

    stream = numbers()
    kinds = [anext(stream), anext(stream, None), stream.aclose(), stream.athrow(ValueError)]
    assert {type(kind).__name__ for kind in kinds} <= awaits._STEPS
    awaited = coroutine()
    assert type(awaited.__await__()).__name__ in awaits._STEPS
    await awaited
    assert await kinds[0] == 1
    await kinds[1]
    for kind in kinds[2:]:
        kind.close()
