"""Brownout: while the service is overloaded, a route is answered by a cheaper variant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from resilient_mw.admission.overload_policy import OverloadState
from resilient_mw.core.marks import mark_degradable
from resilient_mw.runtime.context import current
from resilient_mw.runtime.needed import missing_for
from resilient_mw.runtime.overload import Overload

DEGRADED_HEADER = "X-Degraded"
"""Marks an answer that a cheaper variant gave; its value is 1."""

P = ParamSpec("P")
R = TypeVar("R")


def degradable(cheap_variant: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have an endpoint answered by a cheaper variant while the overload state is not `normal`.

    Also while the circuit of a dependency is open that the route names by `needs`.

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
            measured = context.measured()
            try:
                needs = context.needs()
                if measured.state is OverloadState.NORMAL and (needs is None or missing_for(needs) is None):
                    return endpoint
            except Exception as error:  # noqa: BLE001  whatever our own code does, the whole endpoint can answer
                if isinstance(measured, Overload):
                    measured.listeners.failed("choice of a variant", error)
                return endpoint
            context.mark_degraded()
            return cheap_variant

        if inspect.iscoroutinefunction(endpoint):

            @wraps(endpoint)
            async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
                answer: Any = chosen()(*args, **kwargs)
                return await answer

            return cast("Callable[P, R]", mark_degradable(asynchronous))

        @wraps(endpoint)
        def synchronous(*args: P.args, **kwargs: P.kwargs) -> R:
            return chosen()(*args, **kwargs)

        return mark_degradable(synchronous)

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
