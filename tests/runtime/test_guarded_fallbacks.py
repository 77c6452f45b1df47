"""Fallbacks of guarded functions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from resilient_mw import CancelReason, Dependency, RequestCancelled, budget, current
from resilient_mw.calls import Fallback
from tests.runtime.test_guarded import both


@pytest.fixture(params=["sync", "async"])
def half(request: pytest.FixtureRequest) -> int:
    return ["sync", "async"].index(request.param)


def guarded(fallback: Fallback, **options: Any) -> Dependency:
    return Dependency("db", retry=None, breaker=None, fallback=fallback, **options)


def fail(*_: object) -> None:
    raise OSError("away")


async def afail() -> int:
    raise OSError("away")


def stops(error: BaseException) -> Callable[[], None]:
    def stop() -> None:
        raise error

    return stop


def test_the_value_stands_in_for_an_error_and_is_counted(half: int) -> None:
    db = guarded(Fallback(value=None))
    assert both(db)[half](fail) is None
    assert both(db)[half](lambda: 5) == 5
    assert db.snapshot().fallbacks == {"value": 1}


def test_an_answer_and_a_cancellation_are_no_errors_to_stand_in_for(half: int) -> None:
    db = guarded(Fallback(value=1), exceptions={LookupError: "answered"})
    with pytest.raises(KeyError):
        both(db)[half](stops(KeyError()))
    with pytest.raises(RequestCancelled):
        both(db)[half](stops(RequestCancelled(CancelReason.CLIENT_DISCONNECT)))
    assert db.snapshot().fallbacks == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_b79_no_fallback_catches_control_flow(error: type[BaseException]) -> None:
    db = guarded(Fallback(value=1, function=lambda *_: 2, stale_for=60))
    with pytest.raises(error):
        db.guard(idempotent=True).call(stops(error()))
    assert db.snapshot().fallbacks == {}


async def test_b79_a_coroutine_with_a_fallback_can_be_cancelled() -> None:
    db = guarded(Fallback(value=1))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(db.acall(asyncio.sleep, 10), 0.05)


def test_the_function_gets_the_error_and_what_is_left(half: int) -> None:
    got: list[Any] = []

    def instead(error: Exception, left: float) -> str:
        got.extend([error, left, current().remaining()])
        return "spare"

    db = guarded(Fallback(function=instead, value="value"))
    with budget(5.0):
        assert both(db)[half](fail) == "spare"
    assert isinstance(got[0], OSError)
    assert 4.5 < got[2] <= got[1] <= 5.0
    assert db.snapshot().fallbacks == {"function": 1}


def test_a_function_that_breaks_or_has_none_leaves_it_to_the_value_and_the_error(half: int) -> None:
    def breaks(error: Exception, left: float) -> None:
        raise ZeroDivisionError

    assert both(guarded(Fallback(function=breaks, value=3)))[half](fail) == 3
    assert both(guarded(Fallback(function=lambda *_: None, value=3)))[half](fail) == 3
    db = guarded(Fallback(function=breaks))
    with pytest.raises(OSError, match="away") as caught:
        both(db)[half](fail)
    assert "ZeroDivisionError" in caught.value.__notes__[0]
    assert db.snapshot().fallbacks == {"failed": 1}


async def test_an_async_function_ends_with_the_budget() -> None:
    async def slow(error: Exception, left: float) -> int:
        await asyncio.sleep(3)
        return 1

    async def quick(error: Exception, left: float) -> int:
        await asyncio.sleep(0)
        return 2

    begun = time.monotonic()
    with budget(0.1):
        assert await guarded(Fallback(function=slow, value=3)).acall(afail) == 3
    assert time.monotonic() - begun < 1
    assert await guarded(Fallback(function=quick)).acall(afail) == 2
    with pytest.raises(TypeError, match="async"):
        guarded(Fallback(function=quick)).call(fail)


def test_the_last_good_value_is_kept_by_arguments_and_only_where_the_function_reads(half: int) -> None:
    db = guarded(Fallback(stale_for=60))
    answers: list[Any] = ["one", "two"]

    def read(key: object) -> Any:
        if not answers:
            raise OSError("away")
        return answers.pop(0)

    async def aread(key: object) -> Any:
        return read(key)

    def call(key: object, *, idempotent: bool = True) -> Any:
        calls = db.guard(idempotent=idempotent)
        return asyncio.run(calls.acall(aread, key)) if half else calls.call(read, key)

    assert [call(1), call(2)] == ["one", "two"]
    assert [call(1), call(2), call(1)] == ["one", "two", "one"]
    assert db.snapshot().fallbacks == {"stale": 3}
    with pytest.raises(OSError, match="away"):
        call(3)
    with pytest.raises(OSError, match="away"):
        call(1, idempotent=False)
    answers.append("list")
    assert call([1]) == "list"
    with pytest.raises(OSError, match="away"):
        call([1])


def test_the_last_good_value_gets_too_old() -> None:
    db = guarded(Fallback(stale_for=0.05))
    answers = [1]

    def read() -> int:
        if not answers:
            raise OSError("away")
        return answers.pop()

    reads = db.guard(idempotent=True)(read)
    assert [reads(), reads()] == [1, 1]
    time.sleep(0.06)
    with pytest.raises(OSError, match="away"):
        reads()


class Argument:
    """Hashed and compared by code that may do anything."""

    def __init__(self, hashed: Callable[[], int], compared: Callable[[], bool]) -> None:
        self.hashed, self.compared = hashed, compared

    def __hash__(self) -> int:
        return self.hashed()

    def __eq__(self, other: object) -> bool:
        return self.compared()


def _breaks() -> Any:
    raise ValueError("this code of a user is broken")


@dataclass
class Callable5:
    """A function that cannot be hashed."""

    name: str = "five"

    def __call__(self, *_: object) -> int:
        return 5


@pytest.mark.parametrize(
    ("function", "hashed", "compared"),
    [
        (lambda _: 5, _breaks, bool),
        (lambda _: 5, int, _breaks),
        (Callable5(), int, bool),
    ],
)
def test_a_good_value_is_returned_whatever_its_arguments_do(
    function: Any, hashed: Callable[[], int], compared: Callable[[], bool]
) -> None:
    calls = guarded(Fallback(stale_for=60)).guard(idempotent=True)
    for _ in range(3):
        assert calls.call(function, Argument(hashed, compared)) == 5


def test_arguments_that_call_the_dependency_when_they_are_compared_do_not_wait_for_themselves() -> None:
    db = guarded(Fallback(stale_for=60))
    calls = db.guard(idempotent=True)

    def compared() -> bool:
        db.call(int)
        return True

    def twice() -> None:
        for _ in range(2):
            calls.call(isinstance, Argument(int, compared), object)

    thread = threading.Thread(target=twice, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert db.snapshot().attempts["2xx"] > 2


def test_nothing_stands_in_for_a_coroutine_function_that_is_called_in_a_thread() -> None:
    db = guarded(Fallback(value=1), bulkhead=1)
    with pytest.raises(TypeError, match="use acall"):
        _ = db.call(afail)
    assert db.snapshot().in_use == 0
