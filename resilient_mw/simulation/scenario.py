"""A scenario: plant, traffic and policy, declared as one value, and its run."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.core.checks import require_number
from resilient_mw.core.marks import Mark
from resilient_mw.simulation.chance import generator
from resilient_mw.simulation.client import Traffic, Users
from resilient_mw.simulation.engine import CEILING, Engine
from resilient_mw.simulation.measure import Levels, Measures
from resilient_mw.simulation.request import Request
from resilient_mw.simulation.server import Server
from resilient_mw.simulation.service import PlantKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens in a run.

    Attributes:
        seconds: how long requests are sent. The run goes on until the last one has ended.
        plant: what does the work.
        traffic: the kinds of requests.
        policy: the admission policy; None: nothing protects the plant.
        sample: seconds between two looks at queue and slots.

    Raises:
        ValueError: naming the field, the value and the allowed range; also for a class or a cost that the policy
            cannot have.
    """

    seconds: float
    plant: PlantKind
    traffic: Sequence[Traffic]
    policy: ServerPolicy | None = None
    sample: float = 0.1

    def __post_init__(self) -> None:
        require_number("Scenario.seconds", self.seconds, low=0.001, high=CEILING / 2)
        require_number("Scenario.sample", self.sample, low=0.001)
        names = [each.name for each in self.traffic]
        if not names or len(set(names)) != len(names):
            raise ValueError(
                f"Scenario.traffic={names!r} is not allowed: it must hold at least one kind, each name once"
            )
        policy = self.policy or ServerPolicy()
        for each in self.traffic:
            policy.check_mark(Mark(each.priority, each.cost), f"Traffic({each.name!r})")


class Simulation:
    """One run of a scenario.

    Args:
        scenario: what happens.
        seed: the same seed gives the same run.
        observe: called with each request that has ended.

    Attributes:
        engine: the clock. Whoever wants to look or meddle at some instant schedules an event.
        server: the one server.
        measures: the result, complete after `run`.
    """

    def __init__(
        self, scenario: Scenario, seed: int, *, observe: Callable[[Request], None] | None = None
    ) -> None:
        policy = scenario.policy
        self.engine = Engine()
        controller = None
        if policy is not None:
            controller = AdmissionController(policy, generator(seed, "jitter"))
        plant = scenario.plant.build(self.engine, generator(seed, "plant"))
        self.server = Server(self.engine, plant, controller)
        entries = RouteEntries(policy or ServerPolicy())
        self._users = []
        routes = {}
        for traffic in scenario.traffic:
            route = routes[traffic.name] = entries.get(traffic.name, Mark(traffic.priority, traffic.cost))
            self._users.append(Users(self.engine, self.server, traffic, route, seed=seed, observe=observe))
        self.measures = Measures(
            scenario.seconds,
            classes={name: route.priority for name, route in routes.items()},
            traffic={
                traffic.name: users.figures
                for traffic, users in zip(scenario.traffic, self._users, strict=True)
            },
        )
        self._scenario = scenario

    def run(self) -> Measures:
        """Run to the end and return the measures."""
        for users in self._users:
            users.begin(self._scenario.seconds)
        self._sample()
        self.engine.run()
        self.measures.ended_at = self.engine.now
        self.measures.most_waiting = self.server.most_waiting
        self.measures.most_running = self.server.most_running
        return self.measures

    def _sample(self) -> None:
        _look(self.measures.levels, self.engine.now, self.server)
        if self.engine.now + self._scenario.sample <= self._scenario.seconds:
            self.engine.after(self._scenario.sample, self._sample)


def run_scenario(scenario: Scenario, seed: int) -> Measures:
    """Run a scenario to its end and return its measures."""
    return Simulation(scenario, seed).run()


def _look(levels: Levels, now: float, server: Server) -> None:
    controller = server.controller
    levels.at.append(now)
    levels.backlog.append(server.plant.backlog)
    if controller is None:
        levels.waiting.append(0)
        levels.in_use.append(server.running)
        return
    levels.waiting.append(controller.waiting)
    levels.in_use.append(controller.slots.in_use)
    for state in controller.classes:
        name = state.priority.name
        levels.waiting_of.setdefault(name, array("l")).append(len(state.queue))
        levels.in_use_of.setdefault(name, array("l")).append(state.slots)
