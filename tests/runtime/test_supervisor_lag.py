"""The lag of the event loop: what the shared tick says of it, and when it says nothing."""

from __future__ import annotations

import asyncio
import time

import pytest

from resilient_mw.runtime.supervise import LEAST_LAG, Supervisor
from tests.runtime.small_shell import Exchange, Outcome

pytestmark = pytest.mark.usefixtures("own_time")


def record(supervisor: Supervisor) -> Exchange:
    return Exchange(supervisor, 60.0, Outcome(), time.monotonic())


async def blocked(seconds: float, times: int) -> None:
    """Block the loop again and again, as handlers do that never let go for long."""
    for _ in range(times):
        time.sleep(seconds)  # noqa: ASYNC251  the point of it
        await asyncio.sleep(0)


async def test_a_loop_that_is_behind_all_the_time_has_lag_and_no_more_than_it_makes_everybody_wait() -> None:
    supervisor = Supervisor(asyncio.get_running_loop())
    supervisor.enter(record(supervisor))
    assert supervisor.lag == 0.0
    lags = []
    for _ in range(10):
        await blocked(0.15, 1)
        lags.append(supervisor.lag)
    assert max(lags) >= LEAST_LAG
    assert max(lags) < 0.15 + 0.15, "the tick waits for a turn of the loop and no longer"


async def test_a_single_pause_is_nobodys_lag() -> None:
    supervisor = Supervisor(asyncio.get_running_loop())
    supervisor.enter(record(supervisor))
    lags = []
    await asyncio.sleep(0.08)
    time.sleep(0.3)  # noqa: ASYNC251  the point of it
    for _ in range(20):
        await asyncio.sleep(0.01)
        lags.append(supervisor.lag)
    # A busy machine may hold up another tick by itself, but never by as much as the pause.
    assert max(lags) < 0.1


async def test_lag_is_forgotten_when_the_loop_keeps_up_and_when_nothing_is_in_flight() -> None:
    supervisor = Supervisor(asyncio.get_running_loop())
    first = record(supervisor)
    supervisor.enter(first)
    await blocked(0.12, 6)
    assert supervisor.lag > 0.0
    await asyncio.sleep(0.25)
    assert supervisor.lag < 0.1
    await blocked(0.12, 6)
    assert supervisor.lag > 0.0
    supervisor.leave(first, lambda: None)
    await asyncio.sleep(0.2)
    assert supervisor.lag == 0.0


@pytest.mark.parametrize(
    ("lates", "lags"),
    [
        ([0.3, 0.2, 0.25, 0.0, 0.3], [0.0, 0.2, 0.2, 0.0, 0.0]),
        ([0.009, 0.009], [0.0, 0.0]),
        ([-9.0, 0.5, 9.0, 0.4], [0.0, 0.0, 0.5, 0.4]),
    ],
)
async def test_of_two_ticks_in_a_row_the_less_late_one_counts(lates: list[float], lags: list[float]) -> None:
    supervisor = Supervisor(asyncio.get_running_loop())
    seen = []
    for late in lates:
        supervisor._note_lag(late)
        seen.append(supervisor.lag)
    assert seen == lags


async def test_a_loop_that_keeps_up_has_none() -> None:
    supervisor = Supervisor(asyncio.get_running_loop())
    supervisor.enter(record(supervisor))
    lags = []
    for _ in range(40):
        await asyncio.sleep(0.01)
        lags.append(supervisor.lag)
    assert sorted(lags)[20] == 0.0, "a busy machine may hold up a tick or two"


async def test_lag_ends_with_the_tick() -> None:
    supervisor = Supervisor(asyncio.get_running_loop())
    one = record(supervisor)
    supervisor.enter(one)
    supervisor._note_lag(0.5)
    supervisor._note_lag(0.5)
    assert supervisor.lag == 0.5
    supervisor.leave(one, lambda: None)
    await asyncio.sleep(0.2)
    assert supervisor.lag == 0.0
