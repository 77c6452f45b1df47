"""Durations, stations and plants."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from resilient_mw.simulation import (
    Bimodal,
    Changing,
    Constant,
    Duration,
    Engine,
    EventLoop,
    Exponential,
    PlantKind,
    Station,
    Workers,
)


def mean(duration: Duration, now: float = 0.0) -> float:
    random = Random(1)
    return sum(duration.draw(random, now) for _ in range(50_000)) / 50_000


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (Constant(0.2), 0.2),
        (Exponential(0.2), 0.2),
        (Bimodal(usual=Constant(0.1), rare=Exponential(2.0), share=0.05), 0.195),
    ],
    ids=["constant", "exponential", "bimodal"],
)
def test_durations_have_their_means(duration: Duration, expected: float) -> None:
    assert mean(duration) == pytest.approx(expected, rel=0.03)


def test_a_duration_changes_at_its_instants() -> None:
    duration = Changing(((0.0, Constant(1.0)), (10.0, Constant(3.0)), (20.0, Constant(1.0))))
    random = Random(1)
    assert [duration.draw(random, now) for now in (0.0, 9.99, 10.0, 19.99, 20.0)] == [1, 1, 3, 3, 1]


def test_wrong_durations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Constant\.seconds=-1"):
        Constant(-1)
    with pytest.raises(ValueError, match=r"Exponential\.mean=0"):
        Exponential(0)
    with pytest.raises(ValueError, match=r"Bimodal\.share=2"):
        Bimodal(usual=Constant(1), rare=Constant(2), share=2)
    with pytest.raises(ValueError, match=r"Changing\.phases"):
        Changing(((1.0, Constant(1)),))


class Bench:
    """Jobs with names, and a log of who stopped when."""

    def __init__(self, servers: int) -> None:
        self.engine = Engine()
        self.station = Station(self.engine, servers)
        self.log: list[tuple[str, float]] = []

    def begins(self, name: str, seconds: float) -> float:
        self.log.append((f"{name} begins", self.engine.now))
        return seconds

    def stopped(self, name: str) -> None:
        self.log.append((name, self.engine.now))


def test_a_station_serves_first_come_first_served_with_all_its_servers() -> None:
    bench = Bench(2)
    for name, seconds in (("a", 3.0), ("b", 1.0), ("c", 1.0), ("d", 0.0)):
        bench.station.serve(partial(bench.begins, name, seconds), partial(bench.stopped, name))
    assert bench.station.backlog == 2
    bench.engine.run()
    assert bench.log == [
        ("a begins", 0.0), ("b begins", 0.0), ("c begins", 1.0), ("b", 1.0), ("d begins", 2.0), ("c", 2.0), ("d", 2.0),
        ("a", 3.0),
    ]  # fmt: skip
    assert bench.station.backlog == 0


def test_a_job_in_the_queue_can_be_withdrawn_and_one_that_has_begun_be_interrupted() -> None:
    bench = Bench(1)
    jobs = [
        bench.station.serve(partial(bench.begins, name, 2.0), partial(bench.stopped, name)) for name in "abc"
    ]
    assert not bench.station.interrupt(jobs[1])
    assert bench.station.withdraw(jobs[1])
    assert not bench.station.withdraw(jobs[1])
    assert bench.station.backlog == 1
    assert not bench.station.withdraw(jobs[0])
    bench.engine.at(0.5, lambda: bench.log.append(("interrupted", float(bench.station.interrupt(jobs[0])))))
    bench.engine.run()
    assert bench.log == [("a begins", 0.0), ("c begins", 0.5), ("interrupted", 1.0), ("c", 2.5)]
    assert not bench.station.interrupt(jobs[2])
    # Nothing is lost: the one server is free, and only one.
    for name in "de":
        bench.station.serve(partial(bench.begins, name, 1.0), partial(bench.stopped, name))
    assert bench.station.backlog == 1


def test_one_server_at_half_its_load_answers_as_queueing_theory_says() -> None:
    """M/M/1: the mean time in the system is 1 / (service rate - arrival rate)."""
    engine, random = Engine(), Random(5)
    station = Station(engine, 1)
    times: list[float] = []

    def arrive() -> None:
        start = engine.now
        station.serve(partial(random.expovariate, 10.0), lambda: times.append(engine.now - start))
        if engine.now < 10_000:
            engine.after(random.expovariate(5.0), arrive)

    arrive()
    engine.run()
    assert sum(times) / len(times) == pytest.approx(0.2, rel=0.05)


class Desk:
    """One plant, and a log of what it reported."""

    def __init__(self, kind: PlantKind) -> None:
        self.engine = Engine()
        self.plant = kind.build(self.engine, Random(1))
        self.log: list[tuple[str, float]] = []

    def note(self, what: str) -> None:
        self.log.append((what, self.engine.now))


def test_workers_that_can_be_stopped_are_free_at_once() -> None:
    desk = Desk(Workers(1))
    first = desk.plant.work(lambda: 5.0, partial(desk.note, "first"))
    desk.plant.work(lambda: 5.0, partial(desk.note, "second"))
    third = desk.plant.work(lambda: 5.0, partial(desk.note, "third"))
    assert desk.plant.backlog == 2
    desk.engine.at(1.0, first.stop)
    desk.engine.at(1.5, third.stop)
    desk.engine.run()
    assert desk.log == [("first", 1.0), ("third", 1.5), ("second", 6.0)]


def test_threads_go_on_to_their_end_unless_they_have_not_begun() -> None:
    desk = Desk(Workers(1, stoppable=False))
    first = desk.plant.work(lambda: 5.0, partial(desk.note, "first"))
    second = desk.plant.work(lambda: 5.0, partial(desk.note, "second"))
    desk.engine.at(1.0, first.stop)
    desk.engine.at(1.5, second.stop)
    desk.engine.run()
    assert desk.log == [("second", 1.5), ("first", 5.0)]


def test_on_an_event_loop_everything_needs_the_one_cpu() -> None:
    desk = Desk(EventLoop(accept=1.0, refuse=2.0, io=Constant(10.0)))
    desk.plant.work(lambda: 8.0, partial(desk.note, "work"))
    desk.plant.accept(partial(desk.note, "accepted"))
    desk.plant.refuse(partial(desk.note, "refused"))
    desk.plant.resume(partial(desk.note, "resumed"))
    desk.engine.run()
    # 4 s of CPU, the others, then 10 s without the CPU from 4 s on, and the other 4 s.
    assert desk.log == [("accepted", 5.0), ("refused", 7.0), ("resumed", 7.0), ("work", 18.0)]


@pytest.mark.parametrize(
    ("at", "stopped_at"),
    [(0.5, 0.5), (2.0, 5.0), (8.0, 8.0), (16.0, 19.0)],
    ids=["before it begins", "on the CPU", "in between", "on the CPU again"],
)
def test_work_on_an_event_loop_stops_where_it_can(at: float, stopped_at: float) -> None:
    desk = Desk(EventLoop(io=Constant(10.0)))
    desk.plant.work(lambda: 2.0, partial(desk.note, "other"))
    work = desk.plant.work(lambda: 8.0, partial(desk.note, "work"))
    desk.engine.at(at, work.stop)
    desk.engine.run()
    assert ("work", stopped_at) in desk.log
    assert len(desk.log) == 2


def test_wrong_plants_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Workers\.count=0"):
        Workers(0)
    with pytest.raises(ValueError, match=r"EventLoop\.refuse=-1"):
        EventLoop(refuse=-1)
