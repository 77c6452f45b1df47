"""Steps 2 to 6: one protection of the calls after the other, without the server half.

What a step does not name is turned off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilient_mw.lab.expectations import Expectation, OrderExpectation
from resilient_mw.lab.step import CHECKOUT, HEALTH, TEN_WORKERS, Action, App, Dependency, Step

SLOW = (Dependency("prices", 3.0),)

BARE: Mapping[str, Any] = {
    "timeout": None,
    "connect_timeout": None,
    "total_timeout": None,
    "retry": None,
    "breaker": None,
    "bulkhead": None,
    "reserve": 0.0,
    "smallest_budget": 0.0,
    "deadline_header": None,
    "trusted": False,
    "exceptions": None,
    "throttle": None,
    "adaptive": None,
    "idempotency_key": None,
    "ownership": None,
    "adaptive_timeout": None,
    "groups": None,
    "group_key": None,
    "fallback": None,
    "hedge": None,
}
"""A dependency with every protection turned off."""

THREE_MORE = {"attempts": 4, "backoff_base": 0.0, "backoff_cap": 0.0, "budget_ratio": None}
WITHIN_BUDGET = {**THREE_MORE, "budget_ratio": 0.1, "budget_per_second": 0.0}
BREAKER = {
    "window": 10,
    "failure_ratio": 0.5,
    "minimum_calls": 10,
    "open_for": 5.0,
    "open_jitter": 0.0,
    "trials": 3,
}


def _app(**protections: Any) -> App:
    """Return the usual application with these arguments of its one dependency."""
    return App(TEN_WORKERS, calls={"prices": {**BARE, **protections}})


CALL_STEPS = (
    Step(
        name="2",
        title="Dependency 3 s, timeout of 0.3 s",
        story=(
            "Every call ends after 0.3 s, so 20 checkouts a second keep six of ten workers busy. Nobody gets a price, "
            "but everybody gets an answer, and the service stays alive for everything else."
        ),
        finding=(
            "With a timeout {checkout_refused} of {checkout_sent} checkouts fail in {checkout_p50} (median) and "
            "{health_served} of {health_sent} health checks pass"
        ),
        app=_app(timeout=0.3),
        dependencies=SLOW,
        loads=(CHECKOUT, HEALTH),
        expectations=(
            Expectation(
                "checkout_refused", "checkouts answered with 503", ">=", 295, "300 of 300", scales=True
            ),
            Expectation("checkout_p50", "median of all checkouts", "<=", 0.400, "303 ms"),
            Expectation("health_lost", "health checks lost", "<=", 0, "0 of 75"),
        ),
    ),
    Step(
        name="3",
        title="Timeout and three extra attempts, no back-off, no budget",
        story=(
            "Each checkout asks up to four times, 1.2 s in all. That needs 24 workers, and there are ten: the retries "
            "bring back the outage that the timeout had removed, and hit the dependency when it is down."
        ),
        finding=(
            "Retries without a bound send {prices_received} calls for {checkout_sent} checkouts to a dependency that is "
            "down, and lose {health_lost} of {health_sent} health checks"
        ),
        app=_app(timeout=0.3, retry=THREE_MORE),
        dependencies=SLOW,
        loads=(CHECKOUT, HEALTH),
        quick=10.0,
        expectations=(
            Expectation("prices_received", "calls the dependency received", ">=", 700, "886", scales=True),
            # Users give up after 10 s, and the wait grows with the load: a shorter load loses hardly any.
            Expectation("health_lost", "health checks lost", ">=", 20, "37 of 75", short=5),
        ),
    ),
    Step(
        name="4",
        title="The same retries within a budget of 10 %",
        story=(
            "At most one retry for ten calls. When everything fails, that is next to nothing, and the dependency is "
            "left alone; when one call in a hundred fails, it is all of them."
        ),
        finding=(
            "A retry budget lets {prices_received} calls through for {checkout_sent} checkouts, and {health_served} "
            "of {health_sent} health checks pass"
        ),
        app=_app(timeout=0.3, retry=WITHIN_BUDGET),
        dependencies=SLOW,
        loads=(CHECKOUT, HEALTH),
        expectations=(
            Expectation("prices_received", "calls the dependency received", ">=", 315, "330", scales=True),
            Expectation("prices_received", "calls the dependency received", "<=", 355, "330", scales=True),
            Expectation("health_lost", "health checks lost", "<=", 0, "0 of 75"),
        ),
    ),
    Step(
        name="5",
        title="Timeout and circuit breaker, the dependency is repaired at 10 s",
        story=(
            "The circuit opens when half of the last ten calls failed, asks nothing for 5 s, and then tries three "
            "calls. The dependency gets quiet to recover in, and users get their answer at once in place of a timeout."
        ),
        finding=(
            "A breaker asks {prices_received} times for {checkout_sent} checkouts, and serves {checkout_served} once the "
            "dependency is repaired: {prices_breaker_log}"
        ),
        app=_app(timeout=0.3, breaker=BREAKER),
        dependencies=SLOW,
        loads=(CHECKOUT, HEALTH),
        actions=(Action(10.0, "prices", 0.050),),
        length=20.0,
        quick=20.0,  # its open time does not get shorter
        expectations=(
            Expectation("prices_received", "calls the dependency received", ">=", 150, "187 of 400"),
            Expectation("prices_received", "calls the dependency received", "<=", 215, "187 of 400"),
            Expectation("checkout_served", "checkouts served", ">=", 150, "168"),
            Expectation("health_lost", "health checks lost", "<=", 0, "0 of 100"),
            Expectation("checkout_refused_at_rest", "refused after the last change", "<=", 0, "-"),
        ),
        texts=(
            OrderExpectation(
                "prices_breaker", "the circuit", "closed, open, half-open, open, half-open, closed", "-"
            ),
        ),
    ),
    Step(
        name="6",
        title="Bulkhead of 4, no timeout",
        story=(
            "At most four checkouts ask the slow dependency at once; the fifth is refused before it holds a worker. "
            "Six workers stay free for everything else."
        ),
        finding=(
            "With a bulkhead {checkout_served} checkouts are served, {checkout_refused} refused in "
            "{checkout_refused_p50} (median), and {health_served} of {health_sent} health checks pass"
        ),
        app=_app(bulkhead=4),
        dependencies=SLOW,
        loads=(CHECKOUT, HEALTH),
        expectations=(
            Expectation("checkout_served", "checkouts served", ">=", 18, "20", scales=True),
            Expectation("checkout_served", "checkouts served", "<=", 22, "20", scales=True),
            Expectation("checkout_neither", "neither served nor refused", "<=", 0, "0"),
            Expectation("checkout_refused_p99", "time to refuse, p99", "<=", 0.050, "at once"),
            Expectation("health_lost", "health checks lost", "<=", 0, "0 of 75"),
            Expectation("prices_peak", "most calls at once at the dependency", "<=", 4, "-"),
        ),
    ),
)
