"""The steps of the lab: what runs, what was published for it, and what this run must show.

A new step is a new value of `Step`.
"""

from __future__ import annotations

import re

from resilient_mw.lab.expectations import Expectation
from resilient_mw.lab.step import CHECKOUT, HEALTH, TEN_WORKERS, App, Dependency, Load, Step
from resilient_mw.lab.steps_calls import CALL_STEPS
from resilient_mw.lab.steps_chain import CHAIN_STEPS
from resilient_mw.lab.steps_load import LOAD_STEPS

BUSY = Load("checkout", "/checkout", 80)
IN_1_S = (("X-Request-Timeout-Ms", "1000"),)

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
    *CALL_STEPS,
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
    Step(
        name="8",
        title="All together: two dependencies, two classes, deadlines of 1 s",
        story=(
            "Checkouts (critical) need prices, 200 ms; reports (sheddable) need an archive that takes 3 s. 80 requests "
            "a second meet ten slots, eight of them reserved for critical work. Every request carries a deadline of 1 s, "
            "and its user leaves then: what cannot be done in time is not begun, and what is begun ends in time."
        ),
        finding=(
            "With everything together {checkout_served} of {checkout_sent} checkouts are served, {reports_explained} of "
            "{reports_sent} reports refused, {health_served} of {health_sent} health checks pass, and 1.2 s after the "
            "last user {app_in_hand} requests and {calls_in_hand} calls are still in hand"
        ),
        app=App(
            {"wsgi": 34, "asgi": 12},
            routes={"/checkout": ("prices",), "/reports": ("archive",)},
            policy={
                "limit": 10,
                "queue": 20,
                "classes": (
                    {"name": "critical", "weight": 8, "reserved": 8},
                    {"name": "normal", "weight": 4},
                    {"name": "sheddable", "weight": 1},
                ),
                "routes": (
                    {"path": "/checkout", "priority": "critical"},
                    {"path": "/reports", "priority": "sheddable"},
                ),
            },
            # Timeouts, retries within the budget and breakers are the defaults.
            calls={"prices": {"bulkhead": 10}, "archive": {"bulkhead": 4}},
        ),
        dependencies=(Dependency("prices", 0.200), Dependency("archive", 3.0)),
        loads=(
            Load("checkout", "/checkout", 40, headers=IN_1_S, give_up=1.0),
            Load("reports", "/reports", 40, headers=IN_1_S, give_up=1.0),
            HEALTH,
        ),
        settle=1.2,
        expectations=(
            Expectation("health_lost", "health checks lost", "<=", 0, "-"),
            Expectation("health_p99", "health checks, p99", "<=", 0.200, "-"),
            Expectation("checkout_served", "checkouts served", ">=", 570, "-", scales=True),
            Expectation("reports_explained", "reports refused, with the reason", ">=", 480, "-", scales=True),
            Expectation("app_in_hand", "requests in hand 1.2 s after the end", "<=", 0, "-"),
            Expectation("calls_in_hand", "calls in hand 1.2 s after the end", "<=", 0, "-"),
            Expectation("calls_late", "calls begun later than that", "<=", 0, "-"),
        ),
    ),
    *LOAD_STEPS,
    *CHAIN_STEPS,
)


def select(names: list[str]) -> tuple[Step, ...]:
    """Return the steps that these names mean, in the order of the table; all of them for no name.

    `7` means every part of step 7, and `priority` every part of that one.

    Raises:
        ValueError: a name that is unknown.
    """
    known = [step.name for step in STEPS]
    wanted: set[str] = set()
    for name in names:
        matches = {each for each in known if name in (each, _whole(each))}
        if not matches:
            raise ValueError(f"there is no step {name!r}; the steps that can run: {', '.join(known)}")
        wanted |= matches
    return tuple(step for step in STEPS if not wanted or step.name in wanted)


def _whole(name: str) -> str:
    """Return what a step is a part of: `7` for `7b`, `priority` for `priority-a`."""
    return re.sub(r"(?:(?<=\d)|-)[a-z]$", "", name)
