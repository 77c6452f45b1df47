"""Brownout: while the service is overloaded, a route is answered by a cheaper variant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from resilient_mw.admission.overload_policy import OverloadState
from resilient_mw.runtime.context import current

DEGRADED_HEADER = "X-Degraded"
"""Marks an answer that a cheaper variant gave; its value is 1."""

P = ParamSpec("P")
R = TypeVar("R")


def degradable(cheap_variant: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have an endpoint answered by a cheaper variant while the overload state is not `normal`.

    The framework sees the parameters of the endpoint. The middleware marks the answer of the variant with
    `X-Degraded: 1`. Put it below the route decorator.

    Args:
        cheap_variant: takes the same parameters; a coroutine function if the endpoint is one, else a plain one.

    Raises:
        ValueError: the variant is of another kind or takes other parameters, or one of the two is a generator function.
    """

    def decorate(endpoint: Callable[P, R]) -> Callable[P, R]:
        _check(endpoint, cheap_variant)

        def chosen() -> Callable[P, R]:
            context = current()
            if context.measured().state is OverloadState.NORMAL:
                return endpoint
            context.mark_degraded()
            return cheap_variant

        if inspect.iscoroutinefunction(endpoint):

            @wraps(endpoint)
            async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
                answer: Any = chosen()(*args, **kwargs)
                return await answer

            return cast("Callable[P, R]", asynchronous)

        @wraps(endpoint)
        def synchronous(*args: P.args, **kwargs: P.kwargs) -> R:
            return chosen()(*args, **kwargs)

        return synchronous

    return decorate


def _check(endpoint: Callable[..., Any], variant: Callable[..., Any]) -> None:
    """Find a variant that does not fit now, and not when the service is overloaded."""
    for each in (endpoint, variant):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise ValueError(
                f"degradable: {each!r} is a generator function: return a response that streams instead"
            )
    if inspect.iscoroutinefunction(endpoint) is not inspect.iscoroutinefunction(variant):
        raise ValueError(
            f"degradable: {variant!r} cannot stand in for {endpoint!r}: both must be coroutine functions, or neither"
        )
    wanted, taken = (inspect.signature(each).parameters for each in (endpoint, variant))
    kinds = {each.kind for each in taken.values()}
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
        return
    if list(wanted) != list(taken):
        raise ValueError(
            f"degradable: {variant!r} cannot stand in for {endpoint!r}: it takes {list(taken)} and not {list(wanted)}"
        )
