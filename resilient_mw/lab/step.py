"""What a step of the lab is made of, as data. Nothing here starts a process or reads a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from resilient_mw.lab.expectations import Expectation, OrderExpectation

Mode = Literal["ok", "error", "reset"]

GIVE_UP = 10.0
"""Seconds after which a user closes the connection, counted from when the request was due."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """One service that the application calls.

    Attributes:
        name: what figures and routes call it.
        delay: seconds it sleeps before it answers.
        mode: `ok`, or how it fails after the delay: `error` (500) or `reset` (connection closed).
    """

    name: str
    delay: float
    mode: Mode = "ok"


@dataclass(frozen=True, slots=True)
class App:
    """How the application under test is set up.

    Attributes:
        threads: worker threads, by stack (`wsgi`, `asgi`).
        routes: path -> names of the dependencies that it calls, one after the other. `/health` is always there and
            calls nothing.
        timeout: seconds for each phase of a call to a dependency; None waits for ever.
        policy: arguments of `resilient_mw.ServerPolicy`, with classes and routes as arguments of theirs; None leaves
            the middleware out.
        calls: dependency -> arguments of `resilient_mw.Dependency`, with retry and breaker as arguments of their
            policies. Dependencies that are not named are called by plain httpx.
        layers: how many applications of this kind stand one behind the other. The load comes to the first; each calls
            the next one under the same path and with the same protections, and only the last calls the dependencies.
    """

    threads: Mapping[str, int]
    routes: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"/checkout": ("prices",)})
    timeout: float | None = None
    policy: Mapping[str, Any] | None = None
    calls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layers: int = 1


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that are due at a fixed rate, whether or not the earlier ones have finished.

    Attributes:
        kind: what figures call it.
        path: what is asked for.
        rate: requests per second; in a step with phases, where a phase does not say another.
        headers: sent with every request.
        give_up: seconds after the due time at which the user closes the connection.
    """

    kind: str
    path: str
    rate: float
    headers: tuple[tuple[str, str], ...] = ()
    give_up: float = GIVE_UP


@dataclass(frozen=True, slots=True)
class Action:
    """Change a dependency while the load runs.

    Attributes:
        at: seconds after the first request was due.
        dependency: its name.
        delay: seconds it sleeps from then on; requests in hand keep the delay they came in with.
        mode: as in `Dependency`.
    """

    at: float
    dependency: str
    delay: float
    mode: Mode = "ok"


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a step's load with rates of its own.

    Attributes:
        name: what figures and charts call it.
        length: seconds, in a run of the step's own length.
        rates: kind of load -> requests per second; a load that is not named keeps its own rate.
        fixed: whether it keeps its length in a shorter run.
    """

    name: str
    length: float
    rates: Mapping[str, float] = field(default_factory=dict)
    fixed: bool = False


class Span(NamedTuple):
    """Where a phase lies in one run: `start` in seconds after the first request was due, and `length` in seconds."""

    phase: Phase
    start: float
    length: float

    @property
    def end(self) -> float:
        """When the next phase begins."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Step:
    """One experiment.

    Attributes:
        name: what `--step` takes.
        title: what is set up, in a few words.
        story: why it is run, in a sentence or two.
        finding: the sentence that a report opens with; `{figure}` stands for what was seen.
        phases: what the load consists of, one after the other; none: each load keeps its rate throughout.
        length: seconds of load, all phases together; bounds hold for this length.
        quick: seconds of load with `--quick`.
        watch: seconds for which the dependencies are watched after the last request was due.
        settle: seconds after the last request was due at which nothing may be in hand any more, in the application
            and at its dependencies; None: that is not looked at.
    """

    name: str
    title: str
    story: str
    finding: str
    app: App
    dependencies: tuple[Dependency, ...]
    loads: tuple[Load, ...]
    expectations: tuple[Expectation, ...]
    texts: tuple[OrderExpectation, ...] = ()
    actions: tuple[Action, ...] = ()
    phases: tuple[Phase, ...] = ()
    length: float = 15.0
    quick: float = 5.0
    watch: float = 0.0
    settle: float | None = None

    def timeline(self, length: float) -> tuple[Span, ...]:
        """Return where the phases lie in a run of `length` seconds: those that are not fixed, in proportion.

        Raises:
            ValueError: the run is not longer than the fixed phases.
        """
        fixed = sum(phase.length for phase in self.phases if phase.fixed)
        if self.phases and length <= fixed:
            raise ValueError(f"a run of step {self.name} must be longer than {fixed:g} s, the fixed phases")
        factor = (length - fixed) / (self.length - fixed)
        spans, start = [], 0.0
        for phase in self.phases:
            spans.append(Span(phase, start, phase.length if phase.fixed else phase.length * factor))
            start = spans[-1].end
        return tuple(spans)

    def stretches(self, load: Load, length: float) -> list[tuple[float, float]]:
        """Return the (seconds, requests per second) that a load consists of in a run of `length` seconds."""
        spans = self.timeline(length)
        return [(each.length, each.phase.rates.get(load.kind, load.rate)) for each in spans] or [
            (length, load.rate)
        ]


# --- what most steps have in common ---

TEN_WORKERS = {"wsgi": 10, "asgi": 10}
HEALTH = Load("health", "/health", 5)
CHECKOUT = Load("checkout", "/checkout", 20)
