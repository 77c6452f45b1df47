"""The steps of the lab, as data: what runs, what was published for it, and what this run must show.

Nothing here starts a process or reads a clock. A new step is a new value of `Step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from resilient_mw.lab.expectations import Expectation

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
        routes: path -> name of the dependency that it calls. `/health` is always there and calls nothing.
        timeout: seconds for each phase of a call to a dependency; None waits for ever.
        policy: arguments of `resilient_mw.ServerPolicy`; None leaves the middleware out.
    """

    threads: Mapping[str, int]
    routes: Mapping[str, str] = field(default_factory=lambda: {"/checkout": "prices"})
    timeout: float | None = None
    policy: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that are due at a fixed rate, whether or not the earlier ones have finished.

    Attributes:
        kind: what figures call it.
        path: what is asked for.
        rate: requests per second.
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
class Step:
    """One experiment.

    Attributes:
        name: what `--step` takes.
        title: what is set up, in a few words.
        story: why it is run, in a sentence or two.
        finding: the sentence that a report opens with; `{figure}` stands for what was seen.
        length: seconds of load; bounds hold for this length.
        quick: seconds of load with `--quick`.
        watch: seconds for which the dependencies are watched after the last request was due.
    """

    name: str
    title: str
    story: str
    finding: str
    app: App
    dependencies: tuple[Dependency, ...]
    loads: tuple[Load, ...]
    expectations: tuple[Expectation, ...]
    actions: tuple[Action, ...] = ()
    length: float = 15.0
    quick: float = 5.0
    watch: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step that this release knows and cannot run yet."""

    name: str
    title: str


TEN_WORKERS = {"wsgi": 10, "asgi": 10}
HEALTH = Load("health", "/health", 5)
CHECKOUT = Load("checkout", "/checkout", 20)
BUSY = Load("checkout", "/checkout", 80)

STEPS = (
    Step(
        name="0",
        title="A healthy dependency (50 ms), nothing protected",
        story="20 checkouts a second keep one of ten workers busy (20/s x 50 ms). This is a good day.",
        finding=(
            "With a healthy dependency {checkout_served} of {checkout_sent} checkouts are served "
            "in {checkout_served_p50} (median), and {health_served} of {health_sent} health checks pass"
        ),
        app=App(TEN_WORKERS),
        dependencies=(Dependency("prices", 0.050),),
        loads=(CHECKOUT, HEALTH),
        expectations=(
            Expectation("checkout_served", "checkouts served", ">=", 298, "300 of 300", scales=True),
            Expectation("checkout_served_p50", "median of the served", "<=", 0.080, "54 ms"),
            Expectation("health_lost", "health checks lost", "<=", 0, "0 of 75"),
        ),
    ),
    Step(
        name="1",
        title="The dependency slows to 3 s, no timeout anywhere",
        story=(
            "20 checkouts a second now ask for 60 workers, and there are ten. The queue grows without end; the "
            "health check, which never calls the dependency, waits in the same queue."
        ),
        finding=(
            "One slow dependency leaves {checkout_served} of {checkout_sent} checkouts and {health_served} "
            "of {health_sent} health checks; the service still calls it {prices_after_load} after the last user "
            "came"
        ),
        app=App(TEN_WORKERS),
        dependencies=(Dependency("prices", 3.0),),
        loads=(CHECKOUT, HEALTH),
        watch=40.0,
        expectations=(
            # Neither count grows with the load: what is served is what came before the first user gave up.
            Expectation("checkout_served", "checkouts served", "<=", 45, "30 of 300"),
            Expectation("health_lost", "health checks lost", ">=", 50, "65 of 75", short=10),
            Expectation(
                "prices_after_load",
                "dependency still called, after the last arrival",
                ">=",
                40,
                "> 40 s",
                scales=True,
            ),
        ),
    ),
    Step(
        name="7a",
        title="More load than capacity (80/s for 50/s), unbounded queue",
        story=(
            "Ten workers at 200 ms serve 50 checkouts a second, and 80 arrive. Nothing is refused, so everybody "
            "waits longer and longer, the health check included."
        ),
        finding=(
            "With an unbounded queue the median checkout takes {checkout_p50} for 200 ms of work, "
            "and the median health check {health_p50}"
        ),
        app=App(TEN_WORKERS),
        dependencies=(Dependency("prices", 0.200),),
        loads=(BUSY, HEALTH),
        expectations=(
            Expectation("checkout_served", "checkouts served", ">=", 1000, "1,200 of 1,200", scales=True),
            # The queue grows evenly while the load lasts, so the time in it is proportional to the length.
            Expectation("checkout_p50", "median of all checkouts", ">=", 4.0, "4,974 ms", scales=True),
            Expectation("health_p50", "median of all health checks", ">=", 3.5, "4,728 ms", scales=True),
        ),
    ),
    Step(
        name="7b",
        title="The same load with admission: limit 10, queue of 20",
        story=(
            "The limit of 10 takes the place of the ten workers. Ten requests run, twenty wait, the next is "
            "refused at once with the reason and when to come back. The spare threads only refuse, and answer "
            "health checks."
        ),
        finding=(
            "With admission {checkout_served} checkouts are served in {checkout_served_p50} (median), "
            "{checkout_refused} are refused in {checkout_refused_p50}, and {health_served} of {health_sent} "
            "health checks pass"
        ),
        # waitress: 10 run, 20 wait (a WSGI request waits on its thread), 4 stay free to refuse and for health
        # checks. FastAPI: waiting costs no thread there, so 2 spare ones are enough.
        app=App({"wsgi": 34, "asgi": 12}, policy={"limit": 10, "queue": 20}),
        dependencies=(Dependency("prices", 0.200),),
        loads=(BUSY, HEALTH),
        expectations=(
            Expectation("checkout_served", "checkouts served", ">=", 700, "759 of 1,200", scales=True),
            Expectation("checkout_served_p50", "median of the served", "<=", 0.700, "535 ms"),
            Expectation("checkout_refused_p50", "median time to refuse", "<=", 0.050, "441 refused"),
            Expectation("checkout_unexplained", "503 without Retry-After or reason", "<=", 0, "-"),
            Expectation("health_lost", "health checks lost", "<=", 0, "34 of 75"),
            Expectation("health_p99", "health checks, p99", "<=", 0.200, "-"),
            Expectation("prices_peak", "most calls at once at the dependency", "<=", 10, "-"),
        ),
    ),
)

PLANNED = (
    PlannedStep("2", "Dependency 3 s, timeout of 0.3 s"),
    PlannedStep("3", "Timeout and three extra attempts: the retry storm"),
    PlannedStep("4", "Timeout and retries within a budget of 10 %"),
    PlannedStep("5", "Timeout and circuit breaker, the dependency is repaired at 10 s"),
    PlannedStep("6", "Bulkhead of 4, no timeout"),
    PlannedStep("8", "All together: two dependencies, two classes, deadlines"),
)


def select(names: list[str]) -> tuple[Step, ...]:
    """Return the steps that these names mean, in the order of the table; all of them for no name.

    `7` means every part of step 7.

    Raises:
        ValueError: a name that is unknown, or planned for a later release.
    """
    known = [step.name for step in STEPS]
    planned = [step.name for step in PLANNED]
    wanted: set[str] = set()
    for name in names:
        matches = {each for each in known if each == name or (each[:-1] == name and each[-1].isalpha())}
        if name in planned:
            raise ValueError(
                f"step {name} is not in this release yet; the steps that can run: {', '.join(known)}"
            )
        if not matches:
            raise ValueError(f"there is no step {name!r}; the steps that can run: {', '.join(known)}")
        wanted |= matches
    return tuple(step for step in STEPS if not wanted or step.name in wanted)
