"""The virtual clock."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.simulation import Engine
from resilient_mw.simulation import engine as engine_module
from resilient_mw.simulation.engine import CEILING


@given(st.lists(st.integers(0, 5), max_size=50))
def test_events_run_in_order_of_time_and_at_one_instant_in_order_of_scheduling(instants: list[int]) -> None:
    engine = Engine()
    ran: list[tuple[float, int]] = []
    for number, instant in enumerate(instants):
        engine.at(float(instant), lambda number=number: ran.append((engine.now, number)))  # type: ignore[misc]
    engine.run()
    assert ran == sorted((float(instant), number) for number, instant in enumerate(instants))
    assert len(engine) == 0


def test_an_event_scheduled_for_now_comes_after_those_of_this_instant() -> None:
    engine = Engine()
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        engine.after(0.0, partial(ran.append, "late"))

    engine.at(1.0, first)
    engine.at(1.0, partial(ran.append, "second"))
    engine.run()
    assert ran == ["first", "second", "late"]
    assert engine.now == 1.0


def test_run_until_includes_that_instant_and_leaves_the_clock_there() -> None:
    engine = Engine()
    ran: list[float] = []
    for instant in (1.0, 2.0, 2.5):
        engine.at(instant, lambda: ran.append(engine.now))
    engine.run(2.0)
    assert ran == [1.0, 2.0]
    assert engine.now == 2.0
    engine.run(2.2)
    assert engine.now == 2.2
    engine.run()
    assert ran == [1.0, 2.0, 2.5]
    assert engine.now == 2.5


def test_the_clock_starts_at_zero_and_stays_there_without_events() -> None:
    engine = Engine()
    engine.run()
    assert engine.now == 0.0


def test_a_cancelled_event_neither_runs_nor_moves_the_clock() -> None:
    engine = Engine()
    ran: list[str] = []
    timer = engine.at(5.0, partial(ran.append, "no"))
    engine.at(1.0, partial(engine.cancel, timer))
    assert timer.pending
    engine.run()
    engine.cancel(timer)
    assert ran == []
    assert engine.now == 1.0
    assert not timer.pending


def test_cancelling_an_event_that_has_happened_is_harmless() -> None:
    engine = Engine()
    timer = engine.at(1.0, lambda: None)
    engine.run()
    engine.cancel(timer)
    engine.at(2.0, lambda: None)
    assert len(engine) == 1


def test_cancelled_events_do_not_fill_the_memory() -> None:
    engine = Engine()
    for number in range(100_000):
        engine.cancel(engine.at(number / 1000, lambda: None))
    assert len(engine) == 0
    assert len(engine._heap) <= Engine.SLACK + 1


@pytest.mark.parametrize("instant", [-1.0, 0.5, CEILING + 1, math.inf, math.nan])
def test_the_past_and_what_is_beyond_the_ceiling_are_refused(instant: float) -> None:
    engine = Engine()
    engine.run(1.0)
    with pytest.raises(ValueError, match="is not allowed: it must be an instant from 1.0"):
        engine.at(instant, lambda: None)
    with pytest.raises(ValueError, match="is not allowed"):
        engine.after(instant - engine.now, lambda: None)


def test_a_loop_in_which_time_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MOST_AT_ONE_INSTANT", 1000)
    engine = Engine()

    def again() -> None:
        engine.after(0.0, again)

    engine.at(3.0, again)
    with pytest.raises(RuntimeError, match=r"more than 1000 events at 3\.0"):
        engine.run()


def test_many_events_at_different_instants_are_no_such_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MOST_AT_ONE_INSTANT", 10)
    engine = Engine()
    for number in range(100):
        engine.at(number / 10, lambda: None)
    engine.run()
    assert engine.now == 9.9
