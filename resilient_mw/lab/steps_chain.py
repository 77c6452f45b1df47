"""Steps "amplification" and "six-dependencies": retries through many layers, and one slow dependency among many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilient_mw.lab.expectations import Expectation
from resilient_mw.lab.step import HEALTH, Action, App, Dependency, Load, Phase, Step
from resilient_mw.lab.steps_calls import BARE

# --- amplification ---

LAYERS = 5
THREE_ATTEMPTS: Mapping[str, Any] = {
    "attempts": 3,
    "backoff_base": 0.0,
    "backoff_cap": 0.0,
    "budget_ratio": None,
}
DOWN = (Dependency("prices", 0.0, "error"),)

# --- six dependencies ---

SIX = ("prices", "reviews", "stock", "images", "offers", "delivery")
PAGES = {"/product": SIX[:2], "/listing": SIX[2:4], "/basket": SIX[4:]}
OTHERS = tuple(name for name in SIX if name != "reviews")
USUAL, SLOW = 0.120, 8.0
FORTY = {"wsgi": 40, "asgi": 40}
PAGE_LOADS = (
    Load("product", "/product", 20),
    Load("listing", "/listing", 10),
    Load("basket", "/basket", 10),
    HEALTH,
)
THREE_PHASES = (Phase("before", 30), Phase("slow", 60), Phase("after", 30))
SLOWS_AND_RECOVERS = (Action(30.0, "reviews", SLOW), Action(90.0, "reviews", USUAL))

CHAIN_STEPS = (
    Step(
        name="amplification-a",
        title="Five services in a row, each makes three attempts; the last one's dependency is down",
        story=(
            "Each service tries its next one three times, at once and without a bound, as client libraries do when they are "
            "told to retry. Three times three times three: attempts multiply."
        ),
        finding=(
            "With three attempts in each of five layers {checkout_sent} requests send {prices_received} to a dependency that "
            "is down"
        ),
        app=App({"wsgi": 10, "asgi": 10}, calls={"prices": {**BARE, "retry": THREE_ATTEMPTS}}, layers=LAYERS),
        dependencies=DOWN,
        loads=(Load("checkout", "/checkout", 1),),
        quick=3.0,
        expectations=(
            Expectation(
                "prices_received",
                "requests at the dependency: 3 x 3 x 3 x 3 x 3 of each one",
                ">=",
                240.0,
                "243 times",
                of="checkout_sent",
            ),
        ),
    ),
    Step(
        name="amplification-b",
        title="The same with one retry owner and a retry budget",
        story=(
            "The first service says that it may retry, so nobody behind it does; and it retries at most one call in ten, plus "
            "one a second. The breaker is off, or the dependency would get next to nothing."
        ),
        finding=(
            "With one retry owner and its budget {checkout_sent} requests send {prices_received} to the dependency that is "
            "down"
        ),
        app=App(
            {"wsgi": 34, "asgi": 12},  # for the middleware: it hears who owns the retries
            policy={"limit": 10, "queue": 20},
            calls={"prices": {"breaker": None, "retry": {"attempts": 3, "backoff_base": 0.01}}},
            layers=LAYERS,
        ),
        dependencies=DOWN,
        loads=(Load("checkout", "/checkout", 20),),
        expectations=(
            Expectation(
                "prices_received", "requests at the dependency", "<=", 1.3, "1.1 times", of="checkout_sent"
            ),
            Expectation("prices_received", "and there are retries", ">=", 1.02, "-", of="checkout_sent"),
            Expectation(
                "checkout_refused_share", "checkouts answered with 503: it is down", ">=", 1.0, "100 %"
            ),
        ),
    ),
    Step(
        name="six-dependencies-a",
        title="One of six dependencies slows from 120 ms to 8 s, nothing protected",
        story=(
            "Three pages call two dependencies each, 240 ms in all. Then the reviews, which half of the requests need, take "
            "8 s: they ask for 160 workers, and there are forty. The two pages that never call them go down as well."
        ),
        finding=(
            "While one of six dependencies is slow, the p95 of all pages rises from {all_before_p95} to {all_slow_p95}, and "
            "{listing_slow_served} of {listing_slow_sent} listings are served, which do not need it"
        ),
        app=App(FORTY, routes=PAGES),
        dependencies=tuple(Dependency(name, USUAL) for name in SIX),
        loads=PAGE_LOADS,
        actions=SLOWS_AND_RECOVERS,
        phases=THREE_PHASES,
        length=120.0,
        quick=24.0,
        expectations=(
            Expectation("all_before_p95", "all pages, before, p95", "<=", 0.350, "240 ms"),
            Expectation("all_slow_p95", "all pages, while it is slow, p95", ">=", 4.0, "7.4 s"),
            Expectation("listing_slow_served_share", "listings served, while it is slow", "<=", 0.7, "-"),
        ),
    ),
    Step(
        name="six-dependencies-b",
        title="The same with a timeout of 1 s, a breaker and a bulkhead of 10 for each of them",
        story=(
            "At most ten workers wait for the reviews, for a second at most; then their circuit opens, and a product page "
            "learns at once that there are none. Everybody else does not notice."
        ),
        finding=(
            "With breakers the p95 of all pages goes from {all_before_p95} to {all_slow_p95} while one of six dependencies is "
            "slow; {listing_slow_served} of {listing_slow_sent} listings are served, and {app_busy_share} of the workers were "
            "busy at most"
        ),
        app=App(FORTY, routes=PAGES, calls={name: {"timeout": 1.0, "bulkhead": 10} for name in SIX}),
        dependencies=tuple(Dependency(name, USUAL) for name in SIX),
        loads=PAGE_LOADS,
        actions=SLOWS_AND_RECOVERS,
        phases=THREE_PHASES,
        length=120.0,
        quick=24.0,
        expectations=(
            Expectation("all_before_p95", "all pages, before, p95", "<=", 0.350, "240 ms"),
            Expectation(
                "all_slow_p95",
                "all pages, while it is slow, p95: at most 1.6 times as before",
                "<=",
                1.6,
                "380 ms",
                of="all_before_p95",
            ),
            Expectation(
                "product_slow_refused_share", "product pages refused, while it is slow", ">=", 0.9, "100 %"
            ),
            Expectation("product_slow_refused_p50", "median time to refuse", "<=", 0.2, "-"),
            Expectation("listing_served_share", "listings served", ">=", 1.0, "-"),
            Expectation("basket_served_share", "baskets served", ">=", 1.0, "-"),
            *(Expectation(f"{name}_errors", f"{name}: errors", "<=", 0, "0") for name in OTHERS),
            *(Expectation(f"{name}_refused", f"{name}: refusals", "<=", 0, "0") for name in OTHERS),
            Expectation("app_busy_share", "most worker threads in use at once", "<=", 0.6, "< 60 %"),
            Expectation("product_after_served_share", "product pages served, after", ">=", 0.7, "-"),
            Expectation("health_lost", "health checks lost", "<=", 0, "0"),
        ),
    ),
)
