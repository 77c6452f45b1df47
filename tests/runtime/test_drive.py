"""The drivers obey the machine, and whatever interrupts them leaves nothing held."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from random import Random

import pytest

from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import (
    DELIVER,
    Action,
    Deliver,
    Expire,
    Fail,
    Failure,
    Head,
    Phase,
    Refuse,
    Start,
)
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime import drive_async, drive_sync
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.testing import ManualClock
from tests.runtime.scripted_attempts import AsyncScript, Script

RESET = Failure(Phase.HEAD)


class Setting:
    """An owner on a clock that stands still, and one call."""

    def __init__(self, *, backoff: float = 1.0, budget: float = math.inf) -> None:
        self.dependency = Dependency(
            "prices",
            "http://prices/*",
            retry=RetryPolicy(attempts=3, backoff_base=backoff, budget_ratio=None),
            breaker=BreakerPolicy(window=4, minimum_calls=4, trials=1),
            bulkhead=1,
            reserve=0.0,
        )
        self.clock = ManualClock()
        self.owner = DependencyOwner(self.dependency, self.clock, Random(1))
        self.budget = budget

    def call(self) -> Call:
        return Call(self.owner.state, "GET", deadline_at=self.clock.now() + self.budget)

    def nothing_held(self) -> bool:
        breaker = self.owner.state.breaker
        assert breaker is not None
        return self.owner.state.in_use == 0 and not breaker._trials


def _sync(setting: Setting, script: Script) -> Action:
    return drive_sync.drive(setting.owner, setting.call(), script)


def _async(setting: Setting, script: Script) -> Action:
    return asyncio.run(drive_async.drive(setting.owner, setting.call(), AsyncScript(script)))


both = pytest.mark.parametrize("run", [_sync, _async], ids=["sync", "async"])
Run = Callable[[Setting, Script], Action]


@both
def test_an_answer_is_delivered_and_its_slot_is_still_held(run: Run) -> None:
    setting, script = Setting(), Script([Head(200)])
    assert run(setting, script) == DELIVER
    assert script.asked == [Start(1, 2.0, 0.5)]
    assert setting.owner.state.in_use == 1
    assert run(setting, Script([])) == Refuse(Reason.BULKHEAD_FULL)


@both
def test_bad_answers_are_closed_waits_are_waited_and_the_last_one_is_delivered_open(run: Run) -> None:
    setting, script = Setting(), Script([Head(503), RESET, Head(503)])
    assert run(setting, script) == Deliver(3)
    starts = [asked for asked in script.asked if isinstance(asked, Start)]
    assert [start.number for start in starts] == [1, 2, 3]
    assert [type(asked) for asked in script.asked] == [Start, str, float, Start, float, Start]
    assert script.open == 1


@both
def test_without_a_back_off_nobody_sleeps(run: Run) -> None:
    setting, script = (
        Setting(backoff=0.0),
        Script([Head(503), RESET, RESET], at_sleep=AssertionError("slept")),
    )
    assert run(setting, script) == Fail(3)
    assert setting.nothing_held()


@both
def test_a_refusal_sends_nothing(run: Run) -> None:
    setting, script = Setting(budget=0.001), Script([])
    assert run(setting, script) == Refuse(Reason.INSUFFICIENT_BUDGET)
    assert script.asked == []


@both
def test_the_end_of_the_budget_is_told_with_its_phase(run: Run) -> None:
    setting = Setting(budget=1.0)

    class Slow(Script):
        def attempt(self, start: Start) -> Head | Failure:
            setting.clock.advance(start.timeout)
            return super().attempt(start)

    assert run(setting, Slow([Failure(Phase.TLS, timed_out=True)])) == Expire(Phase.TLS)
    assert setting.nothing_held()


@both
def test_a_back_off_that_ends_a_hair_early_is_taken_for_its_end(run: Run) -> None:
    # The clock stands still while the script "sleeps", so it is always early.
    setting, script = Setting(), Script([RESET, Head(200)])
    assert run(setting, script) == Deliver(2)
    assert setting.owner.state.budget is None


INTERRUPTIONS: list[BaseException] = [
    KeyboardInterrupt(), SystemExit(), GeneratorExit(), asyncio.CancelledError(), ValueError("not of the network"),
]  # fmt: skip


@both
@pytest.mark.parametrize("error", INTERRUPTIONS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "where", ["first attempt", "second attempt", "back-off", "while a response is closed"]
)
def test_b79_what_interrupts_passes_at_once_and_nothing_is_held(
    run: Run, error: BaseException, where: str
) -> None:
    script = {
        "first attempt": Script([error]),
        "second attempt": Script([Head(503), error]),
        "back-off": Script([RESET], at_sleep=error),
        "while a response is closed": Script([Head(503)], at_discard=error),
    }[where]
    setting = Setting()
    with pytest.raises(type(error)):
        run(setting, script)
    assert setting.nothing_held()
    assert script.open == 0
    assert script.asked[-1] == "discard"
    assert setting.owner.state.breaker is not None
    assert sum(setting.owner.state.breaker._outcomes) == (0 if where == "first attempt" else 1), (
        "nobody is blamed"
    )
    assert run(setting, Script([Head(200)])) == DELIVER


@both
def test_b79_an_error_in_the_clean_up_does_not_hide_what_interrupted(run: Run) -> None:
    setting = Setting()
    with pytest.raises(KeyboardInterrupt):
        run(setting, Script([KeyboardInterrupt()], at_discard=OSError("cannot close")))
    assert setting.nothing_held()


async def test_a_cancel_ends_a_back_off_at_once() -> None:
    setting = Setting()
    sleeping = asyncio.Event()

    class Sleeper(AsyncScript):
        async def sleep(self, until: float, waiter: object = None) -> None:
            sleeping.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(drive_async.drive(setting.owner, setting.call(), Sleeper(Script([RESET]))))
    await sleeping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert setting.nothing_held()


async def test_a_second_cancel_during_the_clean_up_passes_too_and_the_slot_is_back_before() -> None:
    setting = Setting()
    closing = asyncio.Event()

    class Stuck(AsyncScript):
        async def attempt(self, start: Start) -> Head | Failure:
            await asyncio.sleep(3600)
            return Head(200)

        async def discard(self, number: int) -> None:
            closing.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(drive_async.drive(setting.owner, setting.call(), Stuck(Script([]))))
    await asyncio.sleep(0)
    task.cancel()
    await closing.wait()
    assert setting.nothing_held()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
