"""The figures of a dependency at one instant, as plain values, read by exporters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from resilient_mw.core.call_snapshot import GroupSnapshot, HedgeSnapshot, KeyedSnapshot
from resilient_mw.core.circuit_snapshot import CircuitFigures
from resilient_mw.core.snapshot import Histogram, Transition


@dataclass(frozen=True, slots=True)
class DependencySnapshot:
    """The figures of one dependency since the start. Counts only grow.

    Attributes:
        dependency, calls: its name, and logical calls.
        attempts: ended attempts by outcome: `2xx` to `5xx`, `error`, `timeout`, `body` (cut off in the body),
            `cancelled`, `lost` (another attempt of its call was faster).
        retries: attempts after the first one of a call, hedges excepted.
        refused, retries_refused: attempts that were refused here, and retries that were not made, by reason.
        expired: calls whose deadline passed, by phase.
        in_use, bulkhead: attempts under way, bodies included; the most of them at once, None: no bound.
        breaker: the state of the circuit; None: there is none.
        transitions, recent_transitions: changes of the circuit's state, by (before, after), and the last 32, oldest first.
        throttle: the share of the attempts of this instant that the throttle refuses; None: there is none.
        seconds, budgets: how long attempts took that say how long one usually takes; what callers had left at their start.
        groups, keyed: the route groups by name, and all keyed ones together; None: there are none.
        circuit: more of the circuit; None: there is none.
        fallbacks: what was answered instead of an error: `stale`, `function`, `value`; `failed`: a function that broke.
        watch_errors: errors of those who watch calls, such as a tracer.
        hedges: second attempts beside slow ones; None: there are none.
    """

    dependency: str
    calls: int
    attempts: Mapping[str, int]
    retries: int
    refused: Mapping[str, int]
    retries_refused: Mapping[str, int]
    expired: Mapping[str, int]
    in_use: int
    bulkhead: int | None
    breaker: str | None
    transitions: Mapping[tuple[str, str], int]
    recent_transitions: tuple[Transition, ...]
    seconds: Histogram
    budgets: Histogram
    throttle: float | None = None
    groups: Mapping[str, GroupSnapshot] = field(default_factory=dict)
    keyed: KeyedSnapshot | None = None
    circuit: CircuitFigures | None = None
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    watch_errors: int = 0
    hedges: HedgeSnapshot | None = None
