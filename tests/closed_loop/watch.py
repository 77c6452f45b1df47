"""Looks at the overload level of a run, as the shells do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from resilient_mw.admission.overload import OverloadLevel
from resilient_mw.admission.overload_policy import OverloadPolicy, OverloadState, Signal
from resilient_mw.admission.overload_readings import admission_readings
from resilient_mw.runtime.loop_lag import LoopLag
from resilient_mw.simulation import Simulation

TICK = 0.05


@dataclass
class Watch:
    """Measures the level of a run at every tick, in the event loop where the plant has one.

    Attributes:
        policy: bands and thresholds.
        seconds: how long it looks.
        shed: whether the controller is told of the state, as the guard does.
        levels: what it saw: instant, level, state.
    """

    policy: OverloadPolicy
    seconds: float
    shed: bool = False
    levels: list[tuple[float, float, OverloadState]] = field(default_factory=list)

    def __call__(self, simulation: Simulation) -> None:
        engine, plant, controller = simulation.engine, simulation.server.plant, simulation.server.controller
        assert controller is not None
        self.level = OverloadLevel(self.policy, engine.now)
        lag = LoopLag()

        def look(expected_at: float) -> Callable[[], None]:
            def act() -> None:
                now = engine.now
                lag.sample(expected_at, now)
                self.level.report(now, Signal.LOOP_LAG, lag.reading(now))
                for signal, reading in admission_readings(controller, now).items():
                    self.level.report(now, signal, reading)
                if self.shed:
                    controller.overloaded = self.level.state is OverloadState.OVERLOADED
                self.levels.append((now, self.level.level, self.level.state))
                if now + TICK <= self.seconds:
                    engine.at(now + TICK, lambda: plant.resume(look(now + TICK)))

            return act

        engine.at(0.0, look(0.0))

    def between(self, start: float, end: float) -> list[OverloadState]:
        return [state for at, _, state in self.levels if start <= at < end]

    @property
    def changes(self) -> int:
        return sum(self.level.counts.values())
