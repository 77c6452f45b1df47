"""The functions that a `CircuitBreaker` puts around others."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from resilient_mw.runtime.circuit import CircuitBreaker

F = TypeVar("F", bound=Callable[..., Any])


def wrapped(breaker: CircuitBreaker, function: F) -> F:
    """Return a function of the same kind, guarded."""
    if inspect.isasyncgenfunction(function):
        around = _async_generator
    elif inspect.isgeneratorfunction(function):
        around = _generator
    elif inspect.iscoroutinefunction(function):
        around = _async
    else:
        around = _sync
    return cast("F", wraps(function)(around(breaker, function)))


Running = dict[int, float]


def _short_way(
    breaker: CircuitBreaker,
) -> tuple[Callable[[], tuple[Running, int]], Callable[[Running, int], None]]:
    """Return how an attempt begins and how it succeeds, without the lock where the machine allows that."""
    machine, recent, now = breaker.machine, breaker.machine.recent, breaker.now
    draw, succeeded, numbered, short = recent.draw, recent.succeeded, breaker.numbered, breaker.short

    def begin() -> tuple[Running, int]:
        start = now()
        running, permit = recent.running, machine.closed_permit
        if short and start < machine.quiet_until:
            if numbered:
                permit = draw()
                running[permit] = start
        else:
            permit = breaker.begin()
        return running, permit

    def succeed(running: Running, permit: int) -> None:
        if (
            running is recent.running
            and now() < machine.quiet_until
            and (running.pop(permit, None) is not None if numbered else permit == machine.closed_permit)
        ):
            succeeded()
        else:
            breaker.end(permit, None)

    return begin, succeed


def _sync(breaker: CircuitBreaker, function: Callable[..., Any]) -> Callable[..., Any]:
    begin, succeed = _short_way(breaker)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        running, permit = begin()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            breaker.end(permit, error)
            raise
        succeed(running, permit)
        return result

    return guarded


def _async(breaker: CircuitBreaker, function: Callable[..., Any]) -> Callable[..., Any]:
    begin, succeed = _short_way(breaker)

    async def guarded(*args: Any, **kwargs: Any) -> Any:
        running, permit = begin()
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            breaker.end(permit, error)
            raise
        succeed(running, permit)
        return result

    return guarded


def _generator(breaker: CircuitBreaker, function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        permit = breaker.begin()
        try:
            result = yield from function(*args, **kwargs)
        except BaseException as error:
            breaker.end(permit, error)
            raise
        breaker.end(permit, None)
        return result

    return guarded


def _async_generator(breaker: CircuitBreaker, function: Callable[..., Any]) -> Callable[..., Any]:
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        permit = breaker.begin()
        try:
            async with aclosing(function(*args, **kwargs)) as inner:
                step = inner.__anext__()
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        break
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001  it belongs to the generator inside
                        step = inner.athrow(error)
                    else:
                        step = inner.asend(sent)
        except BaseException as error:
            breaker.end(permit, error)
            raise
        breaker.end(permit, None)

    return guarded
