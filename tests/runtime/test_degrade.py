"""`@degradable`: which variant answers, what it must be, and what a request can see of the overload."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from resilient_mw import current, degradable
from resilient_mw.admission.overload_policy import OverloadState
from resilient_mw.core import marks
from resilient_mw.core.marks import mark_of, priority
from resilient_mw.runtime.context import CURRENT, NO_REQUEST, RequestContext


class Measured:
    """A service whose overload is as the test says."""

    level = 0.7
    state = OverloadState.ELEVATED


class Context(RequestContext):
    """A request to it."""

    def __init__(self, measured: Measured) -> None:
        super().__init__()
        self._measured = measured

    def measured(self) -> Measured:
        return self._measured


@pytest.fixture
def request_context() -> Iterator[Context]:
    context = Context(Measured())
    token = CURRENT.set(context)
    yield context
    CURRENT.reset(token)


def cheap(item: int, *, deep: bool = True) -> str:
    """The cheap one."""
    return f"cheap {item} {deep}"


def full(item: int, *, deep: bool = True) -> str:
    """The full one."""
    return f"full {item} {deep}"


async def cheap_async(item: int, *, deep: bool = True) -> str:
    return f"cheap {item} {deep}"


async def full_async(item: int, *, deep: bool = True) -> str:
    return f"full {item} {deep}"


@pytest.mark.parametrize("state", OverloadState)
def test_the_state_decides_who_answers(request_context: Context, state: OverloadState) -> None:
    request_context._measured.state = state
    normal = state is OverloadState.NORMAL
    expected = "full 1 False" if normal else "cheap 1 False"
    assert degradable(cheap)(full)(1, deep=False) == expected
    assert request_context.degraded is not normal


@pytest.mark.parametrize("state", OverloadState)
async def test_the_same_for_coroutine_functions(state: OverloadState) -> None:
    context = Context(Measured())
    context._measured.state = state
    token = CURRENT.set(context)
    try:
        answer = await degradable(cheap_async)(full_async)(1, deep=False)
    finally:
        CURRENT.reset(token)
    normal = state is OverloadState.NORMAL
    assert answer == ("full 1 False" if normal else "cheap 1 False")
    assert context.degraded is not normal


def test_outside_a_request_the_endpoint_answers() -> None:
    assert degradable(cheap)(full)(1) == "full 1 True"
    assert (current().overload, current().overload_state) == (0.0, "normal")
    current().mark_degraded()
    assert not NO_REQUEST.degraded


def test_a_framework_sees_the_endpoint() -> None:
    for variant, endpoint in ((cheap, full), (cheap_async, full_async)):
        made: Any = degradable(variant)(endpoint)
        assert inspect.signature(made) == inspect.signature(endpoint)
        assert made.__name__ == endpoint.__name__
        assert inspect.iscoroutinefunction(made) is inspect.iscoroutinefunction(endpoint)


def test_marks_on_the_endpoint_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_marked", [])  # it is on no route

    def endpoint(item: int, *, deep: bool = True) -> str:
        return full(item, deep=deep)

    for made in (
        degradable(cheap)(priority("sheddable")(endpoint)),
        priority("sheddable")(degradable(cheap)(full)),
    ):
        mark = mark_of(made)
        assert mark is not None
        assert mark.priority == "sheddable"


def _generator(item: int, *, deep: bool = True) -> Iterator[str]:
    yield ""


async def _async_generator(item: int, *, deep: bool = True) -> AsyncIterator[str]:
    yield ""


def _other(thing: int) -> str:
    return ""


def _anything(*_args: Any, **_kwargs: Any) -> str:
    return "anything"


@pytest.mark.parametrize(
    ("variant", "endpoint", "why"),
    [
        (cheap_async, full, "coroutine functions, or neither"),
        (cheap, full_async, "coroutine functions, or neither"),
        (_generator, full, "generator function"),
        (cheap, _generator, "generator function"),
        (_async_generator, full_async, "generator function"),
        (_other, full, r"takes \['thing'\] and not \['item', 'deep'\]"),
    ],
)
def test_a_variant_that_does_not_fit_is_an_error_at_once(variant: Any, endpoint: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        degradable(variant)(endpoint)


def test_a_variant_may_take_anything(request_context: Context) -> None:
    variant: Any = _anything
    assert degradable(variant)(full)(1) == "anything"
    assert request_context.degraded


def test_a_nested_scope_sees_the_overload_of_its_request_and_marks_its_answer(
    request_context: Context,
) -> None:
    with current().within(1.0) as inner:
        assert (inner.overload, inner.overload_state) == (0.7, "elevated")
        inner.mark_degraded()
    assert request_context.degraded
