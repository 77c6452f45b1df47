"""The share of the time that garbage collections take, with real collections and a clock moved by hand."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from resilient_mw.runtime.gc_share import GcShare
from resilient_mw.testing.clock import ManualClock


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No collection but those that a test asks for, and nothing left behind."""
    gc.collect()  # guards of other tests, which measure as long as they are there
    before = list(gc.callbacks)
    gc.disable()
    yield
    gc.enable()
    assert gc.callbacks == before


class Slow:
    """Garbage whose end takes time: it moves the clock while it is collected."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.clock, self.seconds, self.itself = clock, seconds, self

    def __del__(self) -> None:
        self.clock.advance(self.seconds)


def _collect(clock: ManualClock, seconds: float) -> None:
    Slow(clock, seconds)
    gc.collect()


def test_the_share_is_that_of_the_time_since_the_last_reading() -> None:
    clock = ManualClock()
    share = GcShare(clock)
    share.start()
    try:
        clock.advance(3.0)
        _collect(clock, 1.0)
        assert share.reading() == pytest.approx(0.25)
        clock.advance(1.0)
        assert share.reading() == 0.0
        _collect(clock, 0.5)
        assert share.reading() == 1.0
    finally:
        share.stop()


def test_no_time_has_no_share() -> None:
    clock = ManualClock()
    share = GcShare(clock)
    share.start()
    assert share.reading() is None
    share.stop()


def test_without_start_it_tells_nothing_and_hangs_nowhere() -> None:
    clock = ManualClock()
    share = GcShare(clock)
    before = list(gc.callbacks)
    _collect(clock, 1.0)
    clock.advance(1.0)
    assert share.reading() is None
    assert gc.callbacks == before


def test_it_can_be_taken_away_and_started_again() -> None:
    clock = ManualClock()
    share = GcShare(clock)
    before = list(gc.callbacks)
    share.start()
    share.start()
    assert len(gc.callbacks) == len(before) + 1, "one callback, however often it is started"
    share.stop()
    share.stop()
    assert gc.callbacks == before
    _collect(clock, 5.0)
    assert share.reading() is None
    share.start()
    clock.advance(1.0)
    _collect(clock, 1.0)
    assert share.reading() == pytest.approx(0.5), "what was collected meanwhile does not count"
    share.stop()


def test_two_of_them_do_not_disturb_each_other() -> None:
    clock = ManualClock()
    one, two = GcShare(clock), GcShare(clock)
    one.start()
    two.start()
    one.stop()
    clock.advance(1.0)
    _collect(clock, 1.0)
    assert one.reading() is None
    assert two.reading() == pytest.approx(0.5)
    two.stop()


def test_a_reading_within_a_collection_counts_what_has_passed_of_it() -> None:
    clock = ManualClock()
    share = GcShare(clock)
    readings: list[float | None] = []

    class Reading(Slow):
        def __del__(self) -> None:
            super().__del__()
            readings.append(share.reading())

    share.start()
    clock.advance(1.0)
    Reading(clock, 3.0)
    gc.collect()
    clock.advance(1.0)
    assert readings == [pytest.approx(0.75)]
    assert share.reading() == 0.0, "and no part of it twice"
    share.stop()


def test_started_within_a_collection_it_counts_from_the_next_one_on() -> None:
    clock = ManualClock()
    share = GcShare(clock)

    class Starting(Slow):
        def __del__(self) -> None:
            share.start()
            super().__del__()

    Starting(clock, 1.0)
    gc.collect()
    clock.advance(1.0)
    assert share.reading() == 0.0
    share.stop()


def test_stopped_within_a_collection_it_forgets_that_one() -> None:
    clock = ManualClock()
    share = GcShare(clock)

    class Stopping(Slow):
        def __del__(self) -> None:
            share.stop()

    share.start()
    Stopping(clock, 0.0)
    gc.collect()
    share.start()
    clock.advance(1.0)
    assert share.reading() == 0.0
    share.stop()


def test_an_interpreter_that_tells_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with monkeypatch.context() as patch:
        patch.delattr(gc, "callbacks")
        share = GcShare(clock)
        share.start()
        clock.advance(1.0)
        assert share.reading() is None
        share.stop()
