"""The lag of an event loop: a standing backlog shows, one long callback does not, and silence is no answer."""

from __future__ import annotations

import asyncio
import time

import pytest

from resilient_mw.runtime.loop_lag import WINDOW, LoopLag

TICK = 0.05


def _ticks(lag: LoopLag, start: float, *lags: float) -> float:
    """Let timers run that are each set when the one before has run; return the instant of the last."""
    now = start
    for late in lags:
        expected_at = now + TICK
        now = expected_at + late
        lag.sample(expected_at, now)
    return now


def test_nothing_is_known_before_the_first_timer() -> None:
    assert LoopLag().reading(5.0) is None


def test_the_smallest_lag_of_the_window_counts() -> None:
    lag = LoopLag()
    now = _ticks(lag, 10.0, 0.02, 0.005, 0.01)
    assert lag.reading(now) == pytest.approx(0.005)
    now = _ticks(lag, now, 0.03, 0.04, 0.05, 0.06, 0.07)
    assert lag.reading(now) == pytest.approx(0.06), "older ones have left the window"


def test_one_long_callback_is_no_standing_lag() -> None:
    lag = LoopLag()
    now = _ticks(lag, 10.0, 0.0, 0.0, 0.09, 0.0)
    assert lag.reading(now) == 0.0


def test_a_loop_that_was_blocked_for_long_has_that_lag_until_the_next_timer() -> None:
    lag = LoopLag()
    now = _ticks(lag, 10.0, 0.0, 0.0, 3.0)
    assert lag.reading(now) == pytest.approx(3.0)
    assert lag.reading(_ticks(lag, now, 0.0)) == 0.0


def test_a_timer_that_ran_early_has_no_lag() -> None:
    lag = LoopLag()
    lag.sample(10.001, 10.0)
    assert lag.reading(10.0) == 0.0


def test_without_timers_nothing_is_known_any_more() -> None:
    lag = LoopLag()
    now = _ticks(lag, 10.0, 0.01)
    assert lag.reading(now + WINDOW - 0.001) == pytest.approx(0.01)
    assert lag.reading(now + WINDOW) is None


def test_it_remembers_the_window_and_no_more() -> None:
    lag = LoopLag()
    _ticks(lag, 0.0, *[0.01] * 10_000)
    assert len(lag._samples) <= WINDOW / TICK + 1


async def test_a_real_loop_that_is_kept_busy_lags_and_one_that_waits_does_not() -> None:
    """Each turn holds the loop for 120 ms, so a timer of 50 ms set after one runs only after the next."""
    loop, lag = asyncio.get_running_loop(), LoopLag()
    readings: list[float | None] = []
    busy = True

    def tick(expected_at: float) -> None:
        now = loop.time()
        lag.sample(expected_at, now)
        readings.append(lag.reading(now))
        loop.call_at(now + TICK, tick, now + TICK)

    def burn() -> None:
        time.sleep(0.12)
        if busy:
            loop.call_soon(burn)

    first = loop.time() + TICK
    loop.call_at(first, tick, first)
    await asyncio.sleep(0.4)
    idle = readings[-1]
    loop.call_soon(burn)
    await asyncio.sleep(0.6)
    busy = False
    loaded = readings[-1]
    assert idle is not None
    assert loaded is not None
    assert loaded > 0.03
    assert idle < loaded
