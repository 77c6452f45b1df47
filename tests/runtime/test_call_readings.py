"""What dependencies and pools tell of overload by themselves: shares between two looks, and nothing while all is quiet."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest

from resilient_mw import Band, OverloadPolicy, ServerPolicy
from resilient_mw.admission.overload_policy import Signal
from resilient_mw.core import ports
from resilient_mw.runtime.call_readings import EVERY, LEAST_ATTEMPTS, LONGEST, CallReadings, call_readings
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.pool_waits import PoolWaits
from resilient_mw.runtime.process_readings import ProcessReadings
from resilient_mw.testing import ManualClock
from tests.runtime.downed import Downed
from tests.runtime.virtual_time import VirtualClock

ERRORS, LATENCY, POOL_WAIT = Signal.DEPENDENCY_ERRORS, Signal.DEPENDENCY_LATENCY, Signal.POOL_WAIT


def of(downed: Downed, readings: Any) -> dict[Signal, float]:
    """The readings of one dependency: other tests have left theirs behind."""
    return {signal: value for signal, value, source in readings if source == downed.dependency.name}


def attempts(downed: Downed, outcomes: str, took: float = 0.0) -> None:
    for letter in outcomes:
        downed.attempt(failed=letter == "F", took=took)


def test_the_share_of_failures_since_the_last_reading() -> None:
    downed = Downed("shares", breaker=None)
    readings = CallReadings(list(Signal))
    attempts(downed, "F" * 50)
    assert of(downed, readings.read(0.0)) == {}  # what was before it looked is not its matter
    attempts(downed, "FFFS" * 5)
    assert of(downed, readings.read(1.0)) == {ERRORS: 0.75}
    attempts(downed, "S" * 20)
    assert of(downed, readings.read(2.0))[ERRORS] == 0.0


def test_a_good_attempt_is_compared_with_the_timeout() -> None:
    downed = Downed("slow", breaker=None, timeout=2.0)
    readings = CallReadings(list(Signal))
    readings.read(0.0)
    attempts(downed, "S" * LEAST_ATTEMPTS, took=1.5)
    assert of(downed, readings.read(1.0)) == {ERRORS: 0.0, LATENCY: pytest.approx(0.75)}
    attempts(downed, "F" * LEAST_ATTEMPTS)
    assert of(downed, readings.read(2.0)) == {ERRORS: 1.0}  # nothing new is known of how long good ones take


def test_without_a_timeout_there_is_no_latency_to_compare() -> None:
    with pytest.warns(match="timeout is None"):
        downed = Downed("endless", timeout=None)
    readings = CallReadings(list(Signal))
    readings.read(0.0)
    attempts(downed, "S" * LEAST_ATTEMPTS, took=1.5)
    assert of(downed, readings.read(1.0)) == {ERRORS: 0.0}


def test_a_few_attempts_say_nothing_until_they_are_enough_or_too_old() -> None:
    downed = Downed("quiet", breaker=None)
    readings = CallReadings(list(Signal))
    readings.read(0.0)
    attempts(downed, "F" * 9)
    assert of(downed, readings.read(1.0)) == {}
    attempts(downed, "S")
    assert of(downed, readings.read(2.0)) == {ERRORS: 0.9}
    attempts(downed, "F" * 9)
    assert of(downed, readings.read(2.0 + LONGEST)) == {}  # forgotten
    attempts(downed, "F")
    assert of(downed, readings.read(3.0 + LONGEST)) == {}


def test_what_says_nothing_about_the_dependency_does_not_count() -> None:
    downed = Downed("cancelled")
    readings = CallReadings(list(Signal))
    readings.read(0.0)
    for _ in range(3 * LEAST_ATTEMPTS):
        downed.owner.cancel(downed.begin())
    assert of(downed, readings.read(1.0)) == {}


def test_only_those_that_are_named_count() -> None:
    one, other = Downed("one-named", breaker=None), Downed("not-named", breaker=None)
    readings = call_readings(
        OverloadPolicy(dependencies=["one-named"], dependency_latency=None, pool_wait=None)
    )
    assert readings is not None
    readings.read(0.0)
    for downed in (one, other):
        attempts(downed, "S" * LEAST_ATTEMPTS, took=0.5)
    assert readings.read(1.0) == ((ERRORS, 0.0, "one-named"),)


def test_nothing_is_read_for_a_policy_that_wants_nothing() -> None:
    assert (
        call_readings(OverloadPolicy(dependency_latency=None, dependency_errors=None, pool_wait=None)) is None
    )
    with pytest.raises(ValueError, match=r"OverloadPolicy.dependencies='a b' is not allowed"):
        OverloadPolicy(dependencies=["a b"])


class Pool:
    """A pool, and what a reader of it alone says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.waits = PoolWaits(self.clock)
        self.readings = CallReadings([POOL_WAIT], ())

    def read(self) -> float | None:
        told = self.readings.read(self.clock.now())
        assert len(told) <= 1
        return told[0][1] if told else None


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    pool = Pool()
    monkeypatch.setattr(ports, "pool_sources", lambda: [pool.waits])
    return pool


def test_a_pool_that_nobody_came_to_says_nothing(pool: Pool) -> None:
    assert pool.read() is None
    pool.waits.passed()
    assert pool.read() == 0.0


def test_the_wait_for_a_connection_is_that_of_all_who_came(pool: Pool) -> None:
    waits = [pool.waits.begin() for _ in range(2)]
    pool.clock.advance(0.5)
    for wait in waits:
        pool.waits.end(wait)
    for _ in range(3):
        pool.waits.passed()
    assert pool.read() == pytest.approx(0.2)
    assert pool.read() == 0.0  # nobody waits any more


def test_those_who_still_wait_count_before_they_have_got_anything(pool: Pool) -> None:
    pool.waits.begin()
    wait = pool.waits.begin()
    pool.clock.advance(1.0)
    assert pool.read() == pytest.approx(1.0)
    pool.clock.advance(1.0)
    assert pool.read() == pytest.approx(1.0)
    pool.waits.end(wait)
    pool.waits.end(wait)  # twice is once
    assert pool.waits.waits()[:2] == (1, 1)


def test_a_pool_counts_as_long_as_it_is_alive() -> None:
    waits = PoolWaits()
    assert waits in ports.pool_sources()
    count = len(ports.pool_sources())
    del waits
    gc.collect()
    assert len(ports.pool_sources()) < count


class Service:
    """A guard on a clock that moves by hand, which listens to the calls of this process."""

    def __init__(self, **fields: Any) -> None:
        self.clock = VirtualClock()
        quick: dict[str, Any] = {
            "rise": 0.1,
            "fall": 0.1,
            "dwell": 0.0,
            "memory": None,
            "memory_pressure": None,
            "gc": None,
        }
        self.policy = OverloadPolicy(**(quick | fields))
        self.guard = Guard(
            ServerPolicy(overload=self.policy), self.clock, process=ProcessReadings(self.clock)
        )

    def look(self, seconds: float) -> None:
        self.clock.move_to(self.clock.now() + seconds)
        self.guard.look()

    def signals(self) -> dict[str, float]:
        overload = self.guard.overload.snapshot()
        assert overload is not None
        return dict(overload.signals)


def test_a_dependency_that_fails_elevates_the_service_that_calls_it() -> None:
    downed = Downed("elevates", breaker=None)
    service = Service(dependencies=["elevates"])
    service.look(0.0)
    attempts(downed, "F" * 20)
    service.look(EVERY)
    service.look(EVERY)
    assert service.guard.overload.state.value == "elevated"
    assert service.signals()["dependency_errors"] == pytest.approx(0.6)
    assert service.guard.overload.level == pytest.approx(0.6, abs=0.01)


def test_it_is_read_once_a_second_however_often_somebody_looks() -> None:
    downed = Downed("seldom", breaker=None)
    service = Service(dependencies=["seldom"])
    service.look(0.0)
    attempts(downed, "F" * 20)
    service.look(EVERY / 2)
    assert "dependency_errors" not in service.signals()
    service.look(EVERY / 2)
    assert service.signals()["dependency_errors"] == pytest.approx(0.6)


def test_what_is_reported_by_hand_counts_beside_it() -> None:
    downed = Downed("beside", breaker=None)
    service = Service(dependencies=["beside"], dependency_errors=Band(0.1, 0.5))
    service.look(0.0)
    attempts(downed, "S" * 20)
    service.guard.report(ERRORS, 0.5, "another")
    service.look(EVERY)
    assert service.signals()["dependency_errors"] == 1.0


def test_if_the_readings_break_the_rest_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Any:
        raise LookupError("no figures")

    service = Service(memory=Band(0.1, 0.2))
    monkeypatch.setattr(ports, "dependency_sources", broken)
    monkeypatch.setattr(ProcessReadings, "read", broken)
    service.guard.report(Signal.POOL_WAIT, 10.0, "database")
    with caplog.at_level(logging.ERROR, "resilient_mw"):
        for _ in range(61):
            service.look(EVERY)
            service.guard.report(Signal.POOL_WAIT, 10.0, "database")
    assert service.guard.overload.state.value == "overloaded"
    assert service.guard.listeners.errors == 122
    told = [record.getMessage().partition(" failed")[0] for record in caplog.records]
    assert (
        sorted(told) == ["reading of dependencies"] * 2 + ["reading of the process"] * 2
    )  # once a minute each
