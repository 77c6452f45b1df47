"""What the closed-loop tests share: a service of known capacity, and a run that checks what must hold in every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.simulation import (
    Arrivals,
    Constant,
    Duration,
    Exponential,
    Measures,
    PlantKind,
    Poisson,
    Rate,
    Request,
    Scenario,
    Simulation,
    Traffic,
    Workers,
)

LIMIT = 10
SERVICE = 0.05
CAPACITY = LIMIT / SERVICE
"""Requests per second that ten workers can serve."""


def traffic(
    load: float | Rate,
    service: Duration | None = None,
    *,
    name: str = "page",
    arrivals: Arrivals | None = None,
    priority: str | None = None,
    cost: int | None = None,
    deadline: float = 1.0,
    sends_deadline: bool = True,
    patience: float | None = None,
    returns: int = 0,
    tenant: str | None = None,
) -> Traffic:
    """Return traffic of independent callers at `load` times the capacity (a `Rate` is per second)."""
    rate = load if isinstance(load, Rate) else load * CAPACITY
    return Traffic(
        name=name,
        arrivals=arrivals or Poisson(rate),
        service=service or Exponential(SERVICE),
        priority=priority,
        cost=cost,
        deadline=deadline,
        sends_deadline=sends_deadline,
        patience=None if patience is None else Constant(patience),
        returns=returns,
        tenant=tenant,
    )


def play(
    seconds: float,
    *kinds: Traffic,
    policy: ServerPolicy | None,
    plant: PlantKind | None = None,
    sample: float = 0.1,
    seed: int = 1,
    observe: Callable[[Request], None] | None = None,
    meddle: Callable[[Simulation], None] | None = None,
) -> Measures:
    """Run a scenario, and check that nothing was lost, no bound was passed and every slot came back.

    Args:
        seconds: how long requests are sent.
        kinds: the traffic.
        policy: None for the negative control, a plant that nothing protects.
        plant: ten workers if not given.
        sample: seconds between two looks.
        seed: the same seed gives the same run.
        observe: called with each request that has ended.
        meddle: called before the start, to look at some instants or to break something.
    """
    scenario = Scenario(
        seconds=seconds, plant=plant or Workers(LIMIT), traffic=kinds, policy=policy, sample=sample
    )
    simulation = Simulation(scenario, seed, observe=observe)
    if meddle is not None:
        meddle(simulation)
    measures = simulation.run()
    _nothing_was_lost(measures, kinds)
    if policy is not None:
        _bounds_were_kept(simulation, measures, policy)
    return measures


def _nothing_was_lost(measures: Measures, kinds: Sequence[Traffic]) -> None:
    for kind in kinds:
        figures = measures[kind.name]
        ended = figures.in_time + figures.late + figures.refused + figures.expired + figures.left
        assert figures.offered == ended, kind.name
        assert figures.refused == sum(figures.reasons.values())


def _bounds_were_kept(simulation: Simulation, measures: Measures, policy: ServerPolicy) -> None:
    controller = simulation.server.controller
    assert controller is not None
    assert measures.most_waiting <= policy.queue_length
    assert max(measures.levels.in_use) <= policy.slots
    assert simulation.server.running == 0
    assert (controller.slots.in_use, controller.exempt, controller.waiting) == (0, 0, 0)
    assert [(state.slots, len(state.queue)) for state in controller.classes] == [(0, 0)] * len(policy.classes)
    assert controller.next_wakeup() is None
