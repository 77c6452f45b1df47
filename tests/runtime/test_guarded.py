"""Guarded functions: the machine of the transports, for anything that can be called."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from resilient_mw import (
    BreakerPolicy,
    CallRefused,
    CancelReason,
    DeadlineExceeded,
    Dependency,
    Reason,
    RequestCancelled,
    ResilienceWarning,
    RetryPolicy,
    budget,
    current,
)
from resilient_mw.calls.dependency import check_dependencies
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import CURRENT
from resilient_mw.runtime.guarded_errors import CallExpired
from resilient_mw.runtime.thread_context import ThreadContext

ODD = RetryPolicy(attempts=3, backoff_base=0, budget_ratio=None)
SENSITIVE = BreakerPolicy(window=2, minimum_calls=2, failure_ratio=1.0, open_for=60)


class Flaky:
    """A function that fails so often, and then works."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, value: int = 1, *, double: bool = False) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return value * 2 if double else value


def both(dependency: Dependency, *, idempotent: bool = False) -> list[Callable[..., Any]]:
    """Return how a plain function is called from a thread, and how from a coroutine."""
    calls = dependency.guard(idempotent=idempotent)

    def from_coroutine(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def run() -> Any:
            async def awaited() -> Any:
                return function(*args, **kwargs)

            return await calls.acall(awaited)

        return asyncio.run(run())

    return [calls.call, from_coroutine]


@pytest.fixture(params=["sync", "async"])
def half(request: pytest.FixtureRequest) -> int:
    return ["sync", "async"].index(request.param)


# -- what a call is ----------------------------------------------------------------------------------------------------


def test_a_dependency_without_a_match_is_called_and_counted(half: int) -> None:
    db = Dependency("db")
    assert both(db)[half](Flaky(), 3, double=True) == 6
    figures = db.snapshot()
    assert (figures.calls, dict(figures.attempts), figures.in_use) == (1, {"2xx": 1}, 0)


@pytest.mark.parametrize("match", ["", (), []])
def test_a_dependency_without_a_match_is_none_of_a_transport(match: Any) -> None:
    with pytest.raises(ValueError, match="'db' gets no request"):
        check_dependencies([Dependency("db", match)])


def test_what_the_function_raises_passes_unchanged(half: int) -> None:
    db, error = Dependency("db"), KeyError("x")
    with pytest.raises(KeyError) as caught:
        both(db)[half](Flaky(error))
    assert caught.value is error
    assert db.snapshot().attempts == {"error": 1}
    assert error.__cause__ is None


def test_a_function_runs_once_unless_it_is_idempotent(half: int) -> None:
    db = Dependency("db", retry=ODD)
    flaky = Flaky(LookupError(), LookupError())
    with pytest.raises(LookupError):
        both(db)[half](flaky)
    assert flaky.calls == 1
    assert db.snapshot().retries_refused == {"unsafe": 1}
    flaky = Flaky(LookupError(), LookupError())
    assert both(db, idempotent=True)[half](flaky) == 1
    assert flaky.calls == 3


def test_what_was_never_sent_is_repeated_in_any_case(half: int) -> None:
    db = Dependency("db", retry=ODD, exceptions={ConnectionRefusedError: "unsent"})
    flaky = Flaky(ConnectionRefusedError())
    assert both(db)[half](flaky) == 1
    assert flaky.calls == 2


def test_answers_do_not_open_the_circuit_and_failures_do(half: int) -> None:
    db = Dependency("db", breaker=SENSITIVE, retry=None, exceptions={LookupError: "answered"})
    call = both(db)[half]
    for _ in range(5):
        with pytest.raises(KeyError):
            call(Flaky(KeyError()))
    assert db.snapshot().breaker == "closed"
    for _ in range(2):
        with pytest.raises(ConnectionError):
            call(Flaky(ConnectionError()))
    flaky = Flaky()
    with pytest.raises(CallRefused) as caught:
        call(flaky)
    assert flaky.calls == 0
    assert caught.value.reason is Reason.CIRCUIT_OPEN
    assert caught.value.dependency == "db"
    assert "not asked at the moment: its circuit is open, and the next trial is in " in str(caught.value)
    assert caught.value.retry_in > 50
    assert db.snapshot().refused == {"circuit_open": 1}


def test_a_refusal_of_a_call_inside_blames_nobody(half: int) -> None:
    outer = Dependency("outer", breaker=SENSITIVE, retry=None)
    for _ in range(5):
        with pytest.raises(CallRefused, match="inner"):
            both(outer)[half](Flaky(CallRefused("inner is away", Reason.CIRCUIT_OPEN, "inner")))
    assert outer.snapshot().breaker == "closed"


def test_a_hook_that_breaks_hides_nothing(half: int) -> None:
    def hook(error: Exception) -> str:
        raise RuntimeError("no idea")

    db = Dependency("db", exceptions=hook)
    with pytest.warns(ResilienceWarning, match="no idea"), pytest.raises(KeyError):
        both(db)[half](Flaky(KeyError()))
    assert db.snapshot().in_use == 0


def test_the_bulkhead_bounds_functions(half: int) -> None:
    db = Dependency("db", bulkhead=1)
    calls = both(db)

    def inside() -> None:
        calls[0](Flaky())

    with pytest.raises(
        CallRefused,
        match=r"all 1 that may be under way at once are\. Answer .*bulkhead=\.\.\.\)\. It was not called$",
    ):
        calls[half](inside)
    assert db.snapshot().in_use == 0


# -- time --------------------------------------------------------------------------------------------------------------


def test_the_function_sees_the_time_of_its_attempt(half: int) -> None:
    db = Dependency("db", timeout=10.0, total_timeout=30.0, reserve=5.0)
    call = both(db)[half]
    assert 5.0 < call(lambda: current().remaining()) <= 10.0
    with budget(12.0):
        assert 2.0 < call(lambda: current().remaining()) <= 7.0
    inner = Dependency("inner", timeout=50.0, total_timeout=60.0)
    assert call(lambda: inner.call(lambda: current().remaining())) <= 10.0


async def test_a_coroutine_is_cancelled_at_the_timeout_of_the_dependency() -> None:
    db = Dependency("db", timeout=0.05, retry=None, breaker=SENSITIVE)
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append("cleaned up")

    begun = time.monotonic()
    for _ in range(2):
        with pytest.raises(CallExpired, match=r"timeout=0\.05") as caught:
            await db.acall(slow)
        assert caught.value.phase == "head"
    assert time.monotonic() - begun < 1
    assert ended == ["cleaned up"] * 2
    assert db.snapshot().attempts == {"timeout": 2}
    assert db.snapshot().breaker == "open"


async def test_the_callers_budget_ends_a_coroutine_and_blames_nobody() -> None:
    db = Dependency("db", timeout=5.0, breaker=SENSITIVE)
    for _ in range(3):
        with budget(0.1), pytest.raises(CallExpired, match="caller's budget ended the call") as caught:
            await db.acall(asyncio.sleep, 10)
        assert (caught.value.phase, caught.value.dependency) == ("head", "db")
    assert db.snapshot().expired == {"head": 3}
    assert db.snapshot().breaker == "closed"


def test_a_function_that_checks_ends_on_time() -> None:
    db = Dependency("db", timeout=5.0)

    def work() -> None:
        while True:
            current().check()
            time.sleep(0.005)

    begun = time.monotonic()
    with budget(0.1), pytest.raises(DeadlineExceeded) as caught:
        db.call(work)
    assert isinstance(caught.value, CallExpired)
    assert caught.value.phase == "head"
    assert time.monotonic() - begun < 1


def test_a_thread_that_overruns_gets_its_result_and_is_counted() -> None:
    db = Dependency("db", timeout=0.02, retry=None, breaker=SENSITIVE)
    for _ in range(2):
        db.call(time.sleep, 0.03)
    assert db.snapshot().attempts == {"body": 2}
    assert db.snapshot().breaker == "open"
    assert db.snapshot().in_use == 0


def test_a_thread_that_overruns_the_callers_budget_is_counted_as_expired() -> None:
    db = Dependency("db", timeout=5.0, breaker=SENSITIVE)
    for _ in range(3):
        with budget(0.05):
            db.call(time.sleep, 0.06)
    assert db.snapshot().expired == {"body": 3}
    assert db.snapshot().breaker == "closed"


def test_with_too_little_budget_the_function_is_not_called(half: int) -> None:
    db, flaky = Dependency("db"), Flaky()
    with budget(0.001), pytest.raises(CallRefused) as caught:
        both(db)[half](flaky)
    assert caught.value.reason is Reason.INSUFFICIENT_BUDGET
    assert flaky.calls == 0
    assert str(caught.value).startswith("the caller's budget is too small to ask the dependency 'db'")


# -- whoever gives up --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_b79_control_flow_passes_at_its_first_occurrence(error: type[BaseException]) -> None:
    db = Dependency("db", retry=ODD, breaker=SENSITIVE, exceptions=lambda _: "failed")
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        raise error

    for _ in range(3):
        with pytest.raises(error):
            db.guard(idempotent=True).call(stop)
    assert calls == 3
    assert (db.snapshot().attempts, db.snapshot().breaker) == ({"cancelled": 3}, "closed")
    assert db.snapshot().in_use == 0


async def test_b79_a_guarded_coroutine_can_be_cancelled_from_outside() -> None:
    db = Dependency("db", retry=ODD, bulkhead=1)
    calls = 0

    async def slow() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(10)

    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(db.guard(idempotent=True).acall(slow), 0.1)
    assert time.monotonic() - begun < 1
    assert calls == 1
    assert db.snapshot().attempts == {"cancelled": 1}
    assert db.snapshot().in_use == 0


async def test_a_cancellation_during_the_backoff_holds_nothing() -> None:
    db = Dependency("db", retry=RetryPolicy(backoff_base=30, backoff_cap=30), total_timeout=None)
    task = asyncio.create_task(db.guard(idempotent=True).acall(_failing))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert db.snapshot().in_use == 0


async def _failing() -> None:
    raise ValueError


def test_a_request_that_is_over_is_not_tried_again(half: int) -> None:
    db = Dependency("db", retry=RetryPolicy(attempts=3, backoff_base=0.02, budget_ratio=None))
    context = ThreadContext(MONOTONIC.now() + 30, MONOTONIC)
    calls = 0

    def fail() -> None:
        nonlocal calls
        calls += 1
        context.reason = CancelReason.CLIENT_DISCONNECT
        raise OSError

    token = CURRENT.set(context)
    try:
        with pytest.raises(RequestCancelled):
            both(db, idempotent=True)[half](fail)
    finally:
        CURRENT.reset(token)
    assert calls == 1
    assert db.snapshot().in_use == 0


def test_a_function_that_sees_its_request_cancelled_blames_nobody() -> None:
    db = Dependency("db", retry=ODD, breaker=SENSITIVE)
    for _ in range(3):
        with pytest.raises(RequestCancelled):
            db.guard(idempotent=True).call(_give_up)
    assert (db.snapshot().attempts, db.snapshot().breaker) == ({"cancelled": 3}, "closed")


def _give_up() -> None:
    raise RequestCancelled(CancelReason.CLIENT_DISCONNECT)


# -- decorators --------------------------------------------------------------------------------------------------------


async def test_the_decorator_keeps_what_a_function_is() -> None:
    db = Dependency("db", retry=ODD)

    @db.guard
    def rows(table: str, *, limit: int = 1) -> list[str]:
        """Read."""
        return [table] * limit

    @db.guard(idempotent=True)
    async def later(number: int) -> int:
        if db.snapshot().retries < 1:
            raise OSError
        return number

    assert rows("a", limit=2) == ["a", "a"]
    assert (rows.__name__, rows.__doc__) == ("rows", "Read.")
    assert asyncio.iscoroutinefunction(later)
    assert await later(5) == 5
    assert db.snapshot().calls == 2


def test_methods_are_guarded_with_their_object() -> None:
    db = Dependency("db")

    class Stub:
        name = "stub"

        @db.guard
        def ask(self) -> str:
            return self.name

    assert Stub().ask() == "stub"


def test_what_cannot_be_guarded_says_so() -> None:
    db = Dependency("db")

    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> None: ...

    with pytest.raises(TypeError, match="generator"):
        db.guard(numbers)
    with pytest.raises(TypeError, match="takes a function"):
        db.guard(5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"use acall\(\)"):
        db.call(later)  # type: ignore[unused-coroutine]
    assert db.snapshot().in_use == 0


def test_arguments_of_any_name_reach_the_function() -> None:
    db = Dependency("db")
    assert db.call(dict, fn=1, self=2, function=3, idempotent=4) == {
        "fn": 1,
        "self": 2,
        "function": 3,
        "idempotent": 4,
    }


# -- one state ---------------------------------------------------------------------------------------------------------


def test_threads_and_loops_share_one_state() -> None:
    db = Dependency("db", bulkhead=1)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        leave.wait(5)

    thread = threading.Thread(target=db.call, args=(hold,))
    thread.start()
    assert inside.wait(5)
    with pytest.raises(
        CallRefused,
        match=r"all 1 that may be under way at once are\. Answer .*bulkhead=\.\.\.\)\. It was not called$",
    ):
        asyncio.run(db.acall(asyncio.sleep, 0))
    leave.set()
    thread.join(5)
    asyncio.run(db.acall(asyncio.sleep, 0))


def test_nothing_waits_for_a_garbage_collection() -> None:
    class Big:
        pass

    db, seen = Dependency("db", retry=ODD), []

    def fail() -> None:
        big = Big()
        seen.append(weakref.ref(big))
        raise ValueError(id(big))

    gc.disable()
    try:
        for _ in range(2):
            try:
                db.guard(idempotent=True).call(fail)
            except ValueError:
                pass
        assert [each() for each in seen] == [None] * 6
    finally:
        gc.enable()


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(("says", "runs"), [(True, 3), (False, 1)])
def test_the_users_own_rule_decides_whether_a_failure_may_pass(half: int, says: bool, runs: int) -> None:
    seen: list[BaseException] = []

    def rule(error: BaseException) -> bool:
        seen.append(error)
        return says

    retry = RetryPolicy(attempts=3, backoff_base=0.0, backoff_cap=0.0, budget_ratio=None, retry_if=rule)
    db = Dependency("db", retry=retry, breaker=None, bulkhead=1)
    raised: list[OSError] = []

    def fail() -> None:
        raised.append(OSError("away"))
        raise raised[-1]

    with pytest.raises(OSError, match="away"):
        both(db, idempotent=True)[half](fail)
    assert len(raised) == runs
    assert seen == raised


@pytest.mark.parametrize("half", [0, 1])
def test_a_rule_that_breaks_ends_the_call_and_nothing_is_held(half: int) -> None:
    db = Dependency("db", retry=RetryPolicy(retry_if=lambda _: 1), bulkhead=1)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="retry_if returned 1"):
        both(db)[half](lambda: 1 / 0)
    assert db.snapshot().in_use == 0


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(
    ("options", "idempotent", "runs"),
    [({}, True, 3), ({"ownership": None}, True, 9), ({}, False, 3), ({"retry": None}, True, 3)],
)
def test_attempts_inside_a_function_that_runs_again_do_not_multiply(
    half: int, options: dict[str, Any], idempotent: bool, runs: int
) -> None:
    thrice = RetryPolicy(attempts=3, backoff_base=0.0, backoff_cap=0.0, budget_ratio=None)
    outer = Dependency("outer", **{"retry": thrice, "breaker": None, **options})
    inner = Dependency("inner", retry=thrice, breaker=None)
    ran = 0

    def fail() -> None:
        nonlocal ran
        ran += 1
        raise OSError("away")

    def ask() -> None:
        inner.guard(idempotent=True).call(fail)

    with pytest.raises(OSError, match="away"):
        both(outer, idempotent=idempotent)[half](ask)
    assert ran == runs
