"""The overload level of a service in a closed loop: quiet when there is room, quick in a storm, and it does not flap."""

from __future__ import annotations

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overload_policy import OverloadPolicy, OverloadState
from resilient_mw.simulation import EventLoop, Exponential, PlantKind, Rate, Traffic
from tests.closed_loop.scenes import CAPACITY, LIMIT, play, traffic
from tests.closed_loop.watch import Watch

NORMAL, ELEVATED, OVERLOADED = OverloadState
DEFAULT = OverloadPolicy()
# The same bands without what keeps the state still.
NERVOUS = OverloadPolicy(rise=0.01, fall=0.01, dwell=0, leave_elevated=0.499, leave_overloaded=0.799)
SERVER = ServerPolicy(limit=LIMIT, queue=LIMIT)


def _watch(
    seconds: float,
    *kinds: Traffic,
    policy: OverloadPolicy = DEFAULT,
    server: ServerPolicy = SERVER,
    plant: PlantKind | None = None,
    seed: int = 1,
) -> Watch:
    watch = Watch(policy, seconds)
    play(seconds, *kinds, policy=server, plant=plant, meddle=watch, seed=seed)
    return watch


def _storm(low: float, high: float, start: float, end: float) -> Rate:
    """Arrivals at `low` times the capacity, but between two instants at `high` times."""
    edge = 0.001
    return Rate(
        (0, low * CAPACITY), (start, low * CAPACITY), (start + edge, high * CAPACITY),
        (end, high * CAPACITY), (end + edge, low * CAPACITY),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("load", [0.1, 0.5])
def test_a_service_with_room_is_normal_throughout(load: float, seed: int) -> None:
    watch = _watch(40, traffic(load), seed=seed)
    assert watch.changes == 0
    assert max(level for _, level, _ in watch.levels) < DEFAULT.enter_elevated


@pytest.mark.parametrize("queue", [0, 10, 100])
def test_a_storm_is_seen_within_three_seconds_and_over_within_ten(queue: int) -> None:
    """Four changes: up and down again, each state once, whether the queue is long, short or none."""
    storm = traffic(_storm(0.5, 3.0, 10, 20))
    watch = _watch(40, storm, server=ServerPolicy(limit=LIMIT, queue=queue))
    assert set(watch.between(0, 10)) == {NORMAL}
    assert set(watch.between(13, 20)) == {OVERLOADED}
    assert set(watch.between(30, 40)) == {NORMAL}
    assert [each.after for each in watch.level.transitions] == [
        "elevated",
        "overloaded",
        "elevated",
        "normal",
    ]


@pytest.mark.parametrize("load", [0.9, 1.0])
def test_around_the_limit_the_state_changes_rarely(load: float) -> None:
    """Where the readings themselves cross the thresholds several times a second."""
    watch, nervous = _watch(40, traffic(load)), _watch(40, traffic(load), policy=NERVOUS)
    assert watch.changes <= 4
    assert nervous.changes > 40 * watch.changes


def test_a_steady_overload_changes_the_state_twice_and_then_never() -> None:
    watch = _watch(40, traffic(2.0))
    assert [each.after for each in watch.level.transitions] == ["elevated", "overloaded"]
    assert set(watch.between(3, 40)) == {OVERLOADED}


def test_a_short_queue_in_front_of_quick_work_is_seen_by_its_fullness_alone() -> None:
    """Its waiters never become old, and full slots alone are no overload."""
    storm = traffic(5.0)
    assert OVERLOADED in _watch(10, storm).between(3, 10)
    assert set(_watch(10, storm, policy=OverloadPolicy(queue=None)).between(3, 10)) == {ELEVATED}


def test_a_long_queue_is_seen_by_the_age_of_its_waiters() -> None:
    server = ServerPolicy(limit=LIMIT, queue=2000)
    watch = _watch(20, traffic(1.5), server=server, policy=OverloadPolicy(queue=None))
    assert set(watch.between(5, 20)) == {OVERLOADED}


def test_an_event_loop_that_cannot_keep_up_is_seen_by_its_lag() -> None:
    """5 ms of CPU each: 190 requests a second are all that it can do, whatever the limit says."""
    loop, server = EventLoop(), ServerPolicy(limit=400, queue=400)
    policy = OverloadPolicy(slots=None, queue=None, queue_age=None)

    def watch(rate: float) -> Watch:
        pages = traffic(rate / CAPACITY, Exponential(0.005), deadline=2.0)
        return _watch(20, pages, server=server, policy=policy, plant=loop)

    assert set(watch(80).between(0, 20)) == {NORMAL}
    assert set(watch(300).between(5, 20)) == {OVERLOADED}
