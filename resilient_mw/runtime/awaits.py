"""What a task waits for, read from names that asyncio, anyio and asgiref keep to themselves.

This file only looks; it changes nothing and imports none of the libraries it looks into. Whatever is not as
expected raises an ordinary exception (AttributeError, KeyError, TypeError): `survey` catches it and does without.
tests/runtime/test_survey_names.py pins every name for each supported version.
"""
# ruff: noqa: SLF001

from __future__ import annotations

import asyncio
import asyncio.tasks
import concurrent.futures
import gc
import inspect
import sys
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

Task = asyncio.Task[Any]
Future = asyncio.Future[Any]

MAX_DEPTH = 1000
"""Coroutines of one task that are looked at; a longer chain is not known to end."""

_SUSPENDED = (CoroutineType, GeneratorType, AsyncGeneratorType)
_STEPS = {"async_generator_asend", "async_generator_athrow", "anext_awaitable", "coroutine_wrapper"}
_ANYIO = "anyio._backends._asyncio"
_ASGIREF = "asgiref.sync"


def _code(owner: object, name: str) -> CodeType | None:
    return getattr(getattr(owner, name, None), "__code__", None)


WAIT_CODE = _code(asyncio.tasks, "_wait")
INNER_TASK_CODES = {_code(asyncio.tasks, "wait_for"), _code(asyncio.tasks, "_cancel_and_wait")} - {None}
GROUP_EXIT_CODES = {_code(asyncio.TaskGroup, "__aexit__"), _code(asyncio.TaskGroup, "_aexit")} - {None}


def awaited(task: Task) -> Future | None:
    """Return the future that the task is suspended at; None if it only yielded to the loop."""
    future: Future | None = task._fut_waiter  # type: ignore[attr-defined]
    return future


def has_started(task: Task) -> bool:
    """Return whether the task has taken its first step."""
    coroutine = task.get_coro()
    return (
        not isinstance(coroutine, CoroutineType)
        or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED
    )


def chain_of(task: Task) -> list[Any]:
    """Return the coroutines and generators of a task, from its own to the one that awaits the future.

    The step of an asynchronous generator does not tell whose step it is: there the garbage collector's view of it
    leads on.
    """
    chain: list[Any] = []
    step: Any = task.get_coro()
    while step is not None and len(chain) < MAX_DEPTH:
        if isinstance(step, CoroutineType):
            following = step.cr_await
        elif isinstance(step, AsyncGeneratorType):
            following = step.ag_await
        elif isinstance(step, GeneratorType):
            following = step.gi_yieldfrom
        elif type(step).__name__ in _STEPS:
            step = next((each for each in gc.get_referents(step) if isinstance(each, _SUSPENDED)), None)
            continue
        else:
            break
        chain.append(step)
        step = following
    return chain


def frame_of(step: Any) -> FrameType | None:
    """Return the suspended frame of a coroutine or generator."""
    frame: FrameType | None
    if isinstance(step, CoroutineType):
        frame = step.cr_frame
    elif isinstance(step, AsyncGeneratorType):
        frame = step.ag_frame
    else:
        frame = step.gi_frame
    return frame


def group_tasks(task: Task, steps: list[Any]) -> list[Task]:
    """Return the children of the asyncio task groups that the task has entered in these of its coroutines.

    The groups lie among the local variables and on the value stacks. The garbage collector's view is used, because
    reading `f_locals` of somebody's frame would keep his variables alive.
    """
    children: list[Task] = []
    for step in steps:
        for each in gc.get_referents(step):
            group = each.__self__ if isinstance(each, MethodType) else each
            if isinstance(group, asyncio.TaskGroup) and group._parent_task is task:  # type: ignore[attr-defined]
                children += [child for child in group._tasks if child not in children]
    return children


def gathered(future: Future) -> list[Future]:
    """Return the futures that `asyncio.gather` collects in this one."""
    return list(getattr(future, "_children", ()))


def executor_call(future: Future) -> concurrent.futures.Future[Any] | None:
    """Return the executor's future that this one was chained to, if it was."""
    source = _callback_cell(future, "_chain_future.<locals>._call_check_cancel", "source")
    return source if isinstance(source, concurrent.futures.Future) else None


def shielded(future: Future) -> Future | None:
    """Return what `asyncio.shield` protects, if this future is one that it made."""
    inner = _callback_cell(future, "shield.<locals>._outer_done_callback", "inner")
    return inner if asyncio.isfuture(inner) else None


def _callback_cell(future: Future, qualname: str, variable: str) -> object:
    """Return a variable that a callback of the future closes over; None if it has no such callback."""
    for callback, _ in future._callbacks or ():
        if isinstance(callback, FunctionType) and callback.__qualname__ == qualname:
            return cell(callback, variable)
    return None


def cell(function: FunctionType, variable: str) -> Any:
    """Return the value of a variable that a function closes over."""
    return (function.__closure__ or ())[function.__code__.co_freevars.index(variable)].cell_contents


def anyio_call(frame: FrameType, future: Future) -> Any:
    """Return the anyio worker thread that will fulfil this future, if the frame is anyio's and waits for one."""
    if frame.f_code.co_name == "run_sync_in_worker_thread" and _is_from(frame, _ANYIO):
        variables = frame.f_locals
        if variables.get("future") is future:
            return variables["worker"]
    return None


def asgiref_call(frame: FrameType) -> tuple[Future, list[Task]] | None:
    """Return the executor's future and the tasks below the thread, if the frame is that of `sync_to_async`."""
    if frame.f_code.co_name == "__call__" and _is_from(frame, _ASGIREF):
        variables = frame.f_locals
        if "exec_coro" in variables:
            return variables["exec_coro"], list(variables["task_context"])
    return None


def _is_from(frame: FrameType, module: str) -> bool:
    return frame.f_globals.get("__name__") == module


def anyio_module() -> ModuleType | None:
    """Return anyio's asyncio backend if somebody has imported it."""
    return sys.modules.get(_ANYIO)


def scope_children(task: Task) -> list[Task]:
    """Return the tasks that live in the anyio scopes which this task has entered."""
    backend = anyio_module()
    state = backend._task_states.get(task) if backend is not None else None
    scope = state.cancel_scope if state is not None else None
    children: list[Task] = []
    while scope is not None and scope._host_task is task:
        children += [each for each in scope._tasks if each is not task]
        children += [each._host_task for each in scope._child_scopes if each._host_task not in (None, task)]
        scope = scope._parent_scope
    return children
