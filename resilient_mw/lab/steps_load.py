"""Steps "priority" and "recovery": what happens while the load changes.

The service is the same in all of them: ten slots at 200 ms, so its capacity is 50 requests a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilient_mw.lab.expectations import Expectation
from resilient_mw.lab.step import HEALTH, App, Dependency, Load, Phase, Step

DEPENDENCIES = (Dependency("prices", 0.200),)

# --- priority ---

# waitress: 10 run, 20 wait on their threads, 4 stay free to refuse and for health checks.
THREADS = {"wsgi": 34, "asgi": 12}
ADMISSION: Mapping[str, Any] = {"limit": 10, "queue": 20}
ROUTES = {"/checkout": ("prices",), "/pages": ("prices",), "/reports": ("prices",)}
# The classes are the default ones, which reserve nothing and take turns by weight, 8 : 4 : 1.
BY_CLASS: Mapping[str, Any] = {
    **ADMISSION,
    "routes": (
        {"path": "/checkout", "priority": "critical"},
        {"path": "/pages", "priority": "normal"},
        {"path": "/reports", "priority": "sheddable"},
    ),
}
WITH_RESERVE = (
    {"name": "critical", "weight": 8},
    {"name": "normal", "weight": 4, "reserved": 1},
    {"name": "sheddable", "weight": 1, "reserved": 1},
)
CRITICAL = Load("critical", "/checkout", 25)
NORMAL = Load("normal", "/pages", 12.5)
SHEDDABLE = Load("sheddable", "/reports", 12.5)
MANY_HEALTH = Load("health", "/health", 10)

# In all: once, twice, five and ten times the capacity. At twice, normal still fits into what critical leaves; from then
# on normal and sheddable ask for equally much.
GROWTH = (
    Phase("1x", 5),
    Phase("2x", 10, {"normal": 12.5, "sheddable": 62.5}),
    Phase("5x", 10, {"normal": 112.5, "sheddable": 112.5}),
    Phase("10x", 10, {"normal": 237.5, "sheddable": 237.5}),
)

LEFT = 25.0
"""Requests per second of the capacity that critical leaves to the others."""
SHEDDABLE_SHARE = 1 / (4 + 1) * LEFT
"""What sheddable's weight means of that beside normal's."""

ALONE = (
    Phase("alone", 8, {"normal": 0, "sheddable": 0}),
    Phase("beside", 8, {"normal": 8, "sheddable": 4}),
)


def _refused_first(phase: str) -> tuple[Expectation, ...]:
    """Return what a phase shows in which normal and sheddable ask for equally much, and for too much."""
    return (
        Expectation(f"critical_{phase}_served_share", f"critical served, {phase}", ">=", 0.99, "-"),
        Expectation(
            f"sheddable_{phase}_refused_share",
            f"sheddable refused, {phase}: more of it than of normal",
            ">=",
            1.01,
            "-",
            of=f"normal_{phase}_refused_share",
        ),
        _half_of_its_share(phase),
        Expectation(f"health_{phase}_p99", f"health checks, {phase}, p99", "<=", 0.200, "-"),
    )


def _half_of_its_share(phase: str) -> Expectation:
    return Expectation(
        f"sheddable_{phase}_served",
        f"sheddable served, {phase}: half its share of what critical leaves",
        ">=",
        SHEDDABLE_SHARE / 2 * 10,
        "-",
        scales=True,
    )


# --- recovery ---

BEFORE_AND_AFTER = (
    Phase("before", 5),
    Phase("overload", 15, {"checkout": 100}),
    Phase("return", 1, fixed=True),
    Phase("after", 7),
)
USUAL = Load("checkout", "/checkout", 25)

LOAD_STEPS = (
    Step(
        name="priority-a",
        title="Three classes: critical at half the capacity, all together at up to ten times",
        story=(
            "Ten slots serve 50 requests a second. Critical asks for 25 of them throughout; normal and sheddable grow until "
            "all together ask for 500. No slot is reserved: while several classes wait they take turns by weight, 8, 4 and 1, "
            "and in a full queue the lowest one makes room."
        ),
        finding=(
            "At ten times the capacity {critical_10x_served} of {critical_10x_sent} critical requests and "
            "{health_10x_served} of {health_10x_sent} health checks are served; of {sheddable_10x_sent} sheddable ones "
            "{sheddable_10x_served}, and of {normal_10x_sent} normal ones {normal_10x_served}"
        ),
        app=App(THREADS, routes=ROUTES, policy=BY_CLASS),
        dependencies=DEPENDENCIES,
        loads=(CRITICAL, NORMAL, SHEDDABLE, MANY_HEALTH),
        phases=GROWTH,
        length=35.0,
        quick=14.0,
        expectations=(
            Expectation("health_lost", "health checks lost", "<=", 0, "-"),
            Expectation("health_p99", "health checks, p99", "<=", 0.200, "-"),
            Expectation("critical_served_share", "critical served", ">=", 0.99, "-"),
            Expectation("critical_2x_served_share", "critical served, 2x", ">=", 0.99, "-"),
            Expectation(
                "normal_2x_served_share", "normal served, 2x: only sheddable is refused", ">=", 0.99, "-"
            ),
            Expectation("sheddable_2x_refused_share", "sheddable refused, 2x", ">=", 0.5, "-"),
            _half_of_its_share("2x"),
            Expectation("health_2x_p99", "health checks, 2x, p99", "<=", 0.200, "-"),
            *_refused_first("5x"),
            *_refused_first("10x"),
            Expectation("normal_unexplained", "normal, 503 without Retry-After or reason", "<=", 0, "-"),
            Expectation(
                "sheddable_unexplained", "sheddable, 503 without Retry-After or reason", "<=", 0, "-"
            ),
            Expectation("prices_peak", "most calls at once at the dependency", "<=", 10, "-"),
        ),
    ),
    Step(
        name="priority-b",
        title="A slot reserved for each lower class: critical alone at twice the capacity, then beside small others",
        story=(
            "Critical asks for 100 requests a second. Alone it gets all slots but the two that are reserved for the others, "
            "who could come at any moment. Then they come, with 12 requests a second, less than what is guaranteed to them: "
            "they get all of that, and critical the rest."
        ),
        finding=(
            "Alone at twice the capacity critical gets {critical_alone_served} requests served; beside small others it gets "
            "{critical_beside_served}, while normal has {normal_beside_served} of {normal_beside_sent} and sheddable "
            "{sheddable_beside_served} of {sheddable_beside_sent}"
        ),
        app=App(THREADS, routes=ROUTES, policy={**BY_CLASS, "classes": WITH_RESERVE}),
        dependencies=DEPENDENCIES,
        loads=(Load("critical", "/checkout", 100), NORMAL, SHEDDABLE, MANY_HEALTH),
        phases=ALONE,
        length=16.0,
        quick=6.0,
        expectations=(
            # Eight slots are 40 a second. On top comes what runs and waits when the phase ends: 28 at most.
            Expectation(
                "critical_alone_served", "critical served, alone: eight slots", ">=", 296, "-", scales=True
            ),
            Expectation("critical_alone_served", "and not the two of the others", "<=", 348, "-", short=148),
            # 50 a second less the 12 of the others; the phase begins with a backlog from the one before.
            Expectation(
                "critical_beside_served", "critical served, beside others", ">=", 256, "-", scales=True
            ),
            Expectation("normal_beside_served_share", "normal served, beside critical", ">=", 0.99, "-"),
            Expectation(
                "sheddable_beside_served_share", "sheddable served, beside critical", ">=", 0.99, "-"
            ),
            Expectation("health_lost", "health checks lost", "<=", 0, "-"),
            Expectation("health_p99", "health checks, p99", "<=", 0.200, "-"),
        ),
    ),
    Step(
        name="recovery-a",
        title="15 s of twice the capacity, then half of it, with an unbounded queue",
        story=(
            "Ten workers serve 50 requests a second. 25 arrive, then 100 for 15 s, then 25 again. What has queued up by then "
            "goes before whoever comes now: the overload is over, and the outage is not."
        ),
        finding=(
            "From a second after the overload on {checkout_after_served} of {checkout_after_sent} checkouts are served, and "
            "the median one takes {checkout_after_p50}; before it took {checkout_before_p50}"
        ),
        app=App({"wsgi": 10, "asgi": 10}),
        dependencies=DEPENDENCIES,
        loads=(USUAL, HEALTH),
        phases=BEFORE_AND_AFTER,
        length=28.0,
        quick=12.0,
        expectations=(
            Expectation("checkout_before_served_share", "checkouts served, before", ">=", 0.99, "-"),
            # The queue is 750 long when the overload ends, 15 s, and users leave after 10 s.
            Expectation(
                "checkout_after_p99",
                "all checkouts from 1 s after the overload on, p99",
                ">=",
                8.0,
                "-",
                short=2.0,
            ),
        ),
    ),
    Step(
        name="recovery-b",
        title="The same load with admission: limit 10, queue of 20",
        story=(
            "The queue is never longer than what ten slots do in 0.4 s, so there is nothing to work off when the overload ends."
        ),
        finding=(
            "From a second after the overload on {checkout_after_served} of {checkout_after_sent} checkouts are served, in "
            "{checkout_after_p99} (p99); before it was {checkout_before_p99}"
        ),
        app=App(THREADS, policy=ADMISSION),
        dependencies=DEPENDENCIES,
        loads=(USUAL, HEALTH),
        phases=BEFORE_AND_AFTER,
        length=28.0,
        quick=12.0,
        expectations=(
            Expectation("checkout_before_served_share", "checkouts served, before", ">=", 0.99, "-"),
            Expectation(
                "checkout_overload_refused_share", "checkouts refused, in the overload", ">=", 0.4, "-"
            ),
            Expectation(
                "checkout_overload_served_share", "checkouts served, in the overload", ">=", 0.45, "-"
            ),
            Expectation(
                "checkout_after_served_share", "checkouts served, from 1 s after it on", ">=", 1.0, "-"
            ),
            Expectation(
                "checkout_after_p99",
                "all checkouts from 1 s after it on, p99: as before it",
                "<=",
                1.5,
                "-",
                of="checkout_before_p99",
            ),
            Expectation("checkout_unexplained", "503 without Retry-After or reason", "<=", 0, "-"),
            Expectation("health_lost", "health checks lost", "<=", 0, "-"),
            Expectation("health_p99", "health checks, p99", "<=", 0.200, "-"),
        ),
    ),
)
