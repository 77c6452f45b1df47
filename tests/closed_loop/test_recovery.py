"""When the cause has gone, so has the overload: at once, and without a restart."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.simulation import (
    Changing,
    Constant,
    Even,
    Exponential,
    Figures,
    Outcome,
    Poisson,
    Rate,
    Request,
    Script,
    Traffic,
    Workers,
)
from tests.closed_loop.scenes import CAPACITY, LIMIT, SERVICE, play, traffic

POLICY = ServerPolicy(limit=LIMIT)


def is_back(page: Figures, normal: tuple[float, float], after: tuple[float, float]) -> bool:
    """Whether callers see no difference between the two spans of time."""
    return (
        page.percentile(0.99, *after) <= 1.25 * page.percentile(0.99, *normal)
        and page.refusal_share(*after) <= page.refusal_share(*normal) + 0.01
        and page.goodput(*after) >= 0.9 * page.goodput(*normal)
    )


OVERLOAD = Rate.steps((0, CAPACITY / 2), (10, 5 * CAPACITY), (25, CAPACITY / 2))


def test_a_second_after_an_overload_everything_is_as_before() -> None:
    page = play(36, traffic(OVERLOAD), policy=POLICY).total
    assert page.refusal_share(11, 25) > 0.7
    assert is_back(page, (1, 10), (26, 36))


def test_without_admission_it_is_not() -> None:
    page = play(36, traffic(OVERLOAD), policy=None).total
    assert not is_back(page, (1, 10), (26, 36))
    assert page.goodput(26, 36) == 0


SLOW, REPAIRED = 10.0, 31.5
DEPENDENCY = Changing(((0.0, Exponential(SERVICE)), (SLOW, Constant(3.0)), (REPAIRED, Exponential(SERVICE))))


@pytest.mark.parametrize(
    ("stoppable", "deadline", "stuck"),
    [(True, 1.0, 1.0), (False, 1.0, 3.0), (True, 10.0, 3.0)],
    ids=["cancelled", "threads", "patient"],
)
def test_a_dependency_that_slows_down_and_is_repaired(stoppable: bool, deadline: float, stuck: float) -> None:
    """50 ms, then 3 s, then 50 ms. `stuck`: how long calls that began before the repair hold their slots."""
    plant = Workers(LIMIT, stoppable=stoppable)
    page = play(46, traffic(0.5, DEPENDENCY, deadline=deadline), policy=POLICY, plant=plant).total
    assert page.refusal_share(SLOW + 2, REPAIRED) > 0.5
    back = REPAIRED + stuck + 1
    assert is_back(page, (1, SLOW), (back, back + 10))


def test_the_same_dependency_without_admission_is_still_felt_long_after() -> None:
    page = play(46, traffic(0.5, DEPENDENCY), policy=None, plant=Workers(LIMIT, stoppable=False)).total
    assert page.goodput(REPAIRED + 4, REPAIRED + 14) == 0


def test_slow_work_is_not_held_against_the_quick_work_after_it_for_ever() -> None:
    """Slow work taught the forecast that a backlog drains slowly. Callers with short deadlines must still queue."""
    slow = Traffic(
        name="slow",
        arrivals=Poisson(Rate.steps((0, 0), (10, 30), (40, 0))),
        service=Constant(3.0),
        deadline=10,
    )
    quick = traffic(
        Rate.steps((0, 0.9 * CAPACITY), (10, 0), (45, 0.9 * CAPACITY)), name="quick", deadline=0.2
    )
    page = play(80, slow, quick, policy=POLICY, plant=Workers(LIMIT, stoppable=False))["quick"]
    assert page.refusal_share(60, 80) <= page.refusal_share(0, 10) + 0.03


@dataclass(frozen=True)
class Blocked:
    """A handler that is stuck until an instant, and quick from then on."""

    until: float

    def draw(self, _random: Random, now: float, /) -> float:
        return max(self.until - now, 0.0) + 0.01


def test_b29_after_a_stall_nobody_is_served_who_has_given_up() -> None:
    """The backlog of a stall is refused while it lasts, and the first fresh request after it is served at once."""
    ended: list[Request] = []
    blocked = Blocked(6.0)
    measures = play(
        8,
        Traffic(name="first", arrivals=Script((1.0,)), service=blocked, deadline=30),
        Traffic(
            name="patient",
            arrivals=Even(Rate.steps((0, 0), (1.1, 10), (5.9, 0))),
            service=blocked,
            deadline=30,
        ),
        Traffic(
            name="gone",
            arrivals=Even(Rate.steps((0, 0), (1.1, 10), (5.9, 0))),
            service=blocked,
            deadline=30,
            patience=Constant(0.5),
        ),
        Traffic(
            name="short", arrivals=Even(Rate.steps((0, 0), (1.1, 7), (5.5, 0))), service=blocked, deadline=0.5
        ),
        Traffic(name="fresh", arrivals=Script((6.05,)), service=blocked, deadline=30),
        policy=ServerPolicy(limit=1, queue=100, wait_share=1, deadline_default=30),
        plant=Workers(1, stoppable=False),
        observe=ended.append,
    )
    assert measures.total.dead_starts == 0
    assert measures["gone"].left >= 40
    assert measures["short"].refused >= 30
    assert all(
        request.ended_at - request.sent_at <= 1.0 + 1e-9
        for request in ended
        if request.outcome is Outcome.REFUSED
    )
    assert max(measures["patient"].waited, default=0.0) <= 1.0 + 1e-9
    assert measures["fresh"].percentile(0.5) < 0.1


def test_b38_a_dependency_that_never_answers_does_not_fill_the_memory() -> None:
    hung = Changing(((0.0, Constant(0.05)), (2.0, Constant(1000.0)), (20.0, Constant(0.05))))
    measures = play(
        24, traffic(1, hung, deadline=1.0), policy=ServerPolicy(limit=20, queue=40), plant=Workers(20)
    )
    assert measures.most_waiting <= 40
    assert measures.most_running <= 20
    page = measures.total
    assert page.percentile(0.99, 21.5, 24) <= 0.11
    assert page.refusal_share(21.5, 24) == 0
