"""Each warning of `resilient-mw explain`: an application that gets it, one that does not, and what it says to change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import dedent
from typing import NamedTuple

import pytest

from resilient_mw.cli.advice import is_health_path
from tests.cli.conftest import FASTAPI, FLASK, STARLETTE, Explain

POLICY = FASTAPI + "app.add_middleware(ResilienceMiddleware, {})\n@app.get('/x')\nasync def x(): ...\n"
CALLS = """
import httpx
from resilient_mw.calls import BulkheadPolicy, HedgePolicy, ThrottlePolicy, TimeoutPolicy
from resilient_mw_integrations.httpx import ResilientTransport
app = ResilienceMiddleware(app)
client = httpx.Client(transport=ResilientTransport([Dependency("prices", match="http://prices/*", {})]))
"""
# What policies warn of by themselves is not the matter here.
QUIET = "import warnings\nwarnings.simplefilter('ignore')\n"
WSGI = FLASK + "app.wsgi_app = ResilienceMiddleware(app.wsgi_app, limit=10, queue=20)\n"


class Case(NamedTuple):
    """An application, arguments, and what the warning says; None: there is no warning at all."""

    source: str
    arguments: Sequence[str]
    says: str | None


SLOW = ("--service-time", "0.2")

CASES = {
    # 10 slots at 0.2 s are 50 a second, so 50 requests can be served in the second that they wait.
    "queue_too_long": [
        Case(POLICY.format("limit=10, queue=51"), SLOW, r"queue=51 takes 1.02 s .* longer than 1 s \(max_wait=1\): .* Set queue=50"),
        Case(POLICY.format("limit=10, queue=50"), SLOW, None),
        Case(POLICY.format("limit=10, queue=51"), (), None),
        Case(
            POLICY.format("limit=10, queue=50, deadline_default=3"),
            SLOW,
            r"0.75 s \(wait_share=0.25 of the default deadline of 3 s\).* Set queue=37, or raise wait_share or deadline_default",
        ),
    ],
    "limit_below_rate": [
        Case(POLICY.format("limit=10"), (*SLOW, "--rate", "120", "--workers", "2"), r"120 .* the 100 that limit=10 .* in 2 processes.*limit=12"),
        Case(POLICY.format("limit=10"), (*SLOW, "--rate", "100", "--workers", "2"), None),
        Case(POLICY.format("limit=10"), ("--rate", "120"), None),
    ],
    "deadline_too_short": [
        Case(
            FASTAPI + "app.add_middleware(ResilienceMiddleware)\n@app.get('/x')\n@deadline(default=0.1)\nasync def x(): ...",
            SLOW,
            r"'/x' has 0.1 s .* takes 0.2 s: .* Raise the deadline above that \(it comes from: mark\)",
        ),
        Case(
            FASTAPI + "app.add_middleware(ResilienceMiddleware)\n@app.get('/x')\n@deadline(default=0.2)\nasync def x(): ...",
            SLOW,
            None,
        ),
        Case(
            FASTAPI + "app.add_middleware(ResilienceMiddleware)\n@app.get('/x')\n@exempt\n@deadline(default=0.1)\nasync def x(): ...",
            SLOW,
            None,
        ),
        Case(  # once, and not for every route
            POLICY.format("deadline_default=0.5, queue=0") + "@app.get('/y')\nasync def y(): ...",
            ("--service-time", "0.6"),
            r"what has no deadline of its own has 0.5 s .* comes from: deadline_default",
        ),
        Case(POLICY.format("deadline_default=0.5, deadline_minimum=0.6, queue=0"), ("--service-time", "0.6"), None),
    ],
    "rule_without_route": [
        Case(POLICY.format("routes=[RouteRule('/y', cost=2)]"), (), r"RouteRule\('/y'\) matches no route .* correct its path or methods"),
        Case(POLICY.format("routes=[RouteRule('/x', methods=['POST'], cost=2)]"), (), r"RouteRule\('/x', methods=\['POST'\]\) matches no"),
        Case(POLICY.format("routes=[RouteRule('/x', methods=['GET'], cost=2)]"), (), None),
        Case(POLICY.format("routes=[RouteRule('/*', cost=2), RouteRule('/x', cost=3)]"), (), r"'/x'\) never decides: RouteRule\('/\*'\) comes first"),
        Case(POLICY.format("routes=[RouteRule('/x', cost=3), RouteRule('/*', cost=2)]"), (), None),
        Case(POLICY.format("routes=[RouteRule('/*', methods=['PUT', 'GET'], cost=2), RouteRule('/x', methods=['GET'], cost=3)]"), (), "never decides"),
        Case(POLICY.format("routes=[RouteRule('/*', methods=['GET'], cost=2), RouteRule('/x', cost=3)]"), (), None),
    ],
    "mark_without_route": [
        Case(POLICY.format("limit=2") + "@priority('critical')\ndef lost(): ...", (), r"the mark on shop.lost has no effect: no route .* Put the decorator next to"),
        Case(POLICY.format("limit=2") + "@app.get('/found')\n@priority('critical')\nasync def found(): ...", (), None),
    ],
    "health_not_exempt": [
        Case(POLICY.format("limit=2") + "@app.get('/health/')\nasync def health(): ...", (), r"'/health/' looks like .* is normal: .* Add the path to exempt_paths, or mark"),
        Case(POLICY.format("limit=2") + "@app.get('/api/status')\nasync def status(): ...", (), None),
        Case(POLICY.format("limit=2") + "@app.get('/status')\nasync def status(): ...", (), r"'/status' looks like"),
        Case(POLICY.format("limit=2") + "@app.get('/status')\n@exempt\nasync def status(): ...", (), None),
        Case(POLICY.format("limit=2") + "@app.get('/health')\nasync def health(): ...", (), None),
        Case(POLICY.format("limit=2") + "@app.post('/health')\nasync def health(): ...", (), None),
        Case(POLICY.format("limit=2, routes=[RouteRule('/health', priority='normal')]") + "@app.post('/health')\nasync def health(): ...", (), None),
    ],
    # 10 outcomes within 10 x 5 s are one every 5 s.
    "breaker_too_quiet": [
        Case(FASTAPI + CALLS.format(""), ("--rate", "0.19"), r"needs 52.63 s to see the minimum_calls=10 of 'prices', .* Set minimum_calls=9"),
        Case(FASTAPI + CALLS.format(""), ("--rate", "0.2"), None),
        Case(FASTAPI + CALLS.format(""), ("--rate", "0.2", "--workers", "2"), r"needs 100 s .* Set minimum_calls=5"),
        Case(FASTAPI + CALLS.format(""), (), None),
        Case(FASTAPI + CALLS.format("breaker=BreakerPolicy(open_for=20)"), ("--rate", "0.05"), None),
        Case(FASTAPI + CALLS.format(""), ("--rate", "0.01"), r"Set breaker=None and rely on the timeout"),
        Case(FASTAPI + CALLS.format("breaker=None"), ("--rate", "0.01"), None),
    ],
    "threads_below_limit": [
        Case(POLICY.format("limit=41") + "@app.get('/y')\ndef y(): ...", (), r"limit=41 admits 41 requests to sync endpoints such as '/y'.* 40 threads .*default.*Set limit=40"),
        Case(POLICY.format("limit=40") + "@app.get('/y')\ndef y(): ...", (), None),
        Case(POLICY.format("limit=41"), (), None),  # its endpoint is async
        Case(POLICY.format("limit=41") + "@app.get('/y')\ndef y(): ...", ("--threads", "41"), None),
        Case(POLICY.format("limit=20") + "@app.get('/y')\ndef y(): ...", ("--threads", "10"), r"10 threads a process \(--threads\)"),
        Case(POLICY.format("limit=80") + "@app.get('/y')\n@priority('normal', cost=2)\ndef y(): ...", (), None),
        Case(POLICY.format("limit=41") + "@app.get('/y')\n@exempt\ndef y(): ...", (), None),
        Case(
            STARLETTE
            + "class Page(HTTPEndpoint):\n    def get(self, request): ...\n"
            + "app = ResilienceMiddleware(Starlette(routes=[Route('/page', Page)]), limit=50)",
            (),
            r"such as '/page'",
        ),
        Case(
            STARLETTE
            + "class Page(HTTPEndpoint):\n    async def get(self, request): ...\n"
            + "app = ResilienceMiddleware(Starlette(routes=[Route('/page', Page)]), limit=50)",
            (),
            None,
        ),
        Case(WSGI, ("--threads", "33"), r"--threads gives this process 33 worker threads, but limit=10, queue=20 and spare_threads=4 need 34: .* Start 34 threads, or set queue=19"),
        Case(WSGI, ("--threads", "34"), None),
        Case(WSGI, ("--threads", "1"), r"one worker thread: .* nothing to admit"),
        Case(WSGI, (), None),
    ],
    "retries_multiply": [
        Case(FASTAPI + CALLS.format("ownership=None"), (), r"retries of 'prices' multiply .*ownership=None.* x1.331 at worst. Leave ownership"),
        Case(FASTAPI + CALLS.format("ownership=None, retry=RetryPolicy(attempts=3, budget_ratio=None)"), (), r"3 layers .* x27 "),
        Case(FASTAPI + CALLS.format("retry=RetryPolicy(insist=True)"), (), r"insist=True has it retry .* Leave insist out"),
        Case(FASTAPI + CALLS.format("ownership=None, trusted=False"), (), None),
        Case(FASTAPI + CALLS.format("ownership=None, retry=None"), (), None),
        Case(FASTAPI + CALLS.format("retry=RetryPolicy(attempts=1, insist=True)"), (), None),
    ],
    "repeated_without_key": [
        Case(FASTAPI + QUIET + CALLS.format("retry=RetryPolicy(unsafe_methods=['post', 'PATCH'])"), (), r"unsafe_methods has PATCH, POST to 'prices'"),
        Case(FASTAPI + QUIET + CALLS.format("retry=RetryPolicy(unsafe_methods=['POST']), idempotency_key='Key'"), (), None),
    ],
    "hedge_without_budget": [
        Case(FASTAPI + CALLS.format("retry=None, hedge=HedgePolicy(hedges=2)"), (), r"hedges of 'prices': .* grows to x3, .* budget_ratio"),
        Case(FASTAPI + QUIET + CALLS.format("retry=RetryPolicy(budget_ratio=None), hedge=HedgePolicy()"), (), r"grows to x3,"),
        Case(FASTAPI + CALLS.format("hedge=HedgePolicy()"), (), None),
    ],
    "breaker_blind_to_slowness": [
        Case(FASTAPI + QUIET + CALLS.format("timeout=None"), (), r"circuit of 'prices' never opens on slow answers"),
        Case(FASTAPI + QUIET + CALLS.format("timeout=None, breaker=BreakerPolicy(slow_after=1)"), (), None),
        Case(FASTAPI + QUIET + CALLS.format("timeout=None, adaptive_timeout=TimeoutPolicy(cap=1.0)"), (), None),
        Case(FASTAPI + CALLS.format("timeout=None, breaker=None"), (), None),
    ],
    "slow_after_timeout": [
        Case(FASTAPI + CALLS.format("breaker=BreakerPolicy(slow_after=2)"), (), r"slow_after=2 .* cut off after 2 s"),
        Case(FASTAPI + CALLS.format("breaker=BreakerPolicy(slow_after=1), adaptive_timeout=TimeoutPolicy(cap=0.9)"), (), "cut off after 0.9 s"),
        Case(FASTAPI + CALLS.format("breaker=BreakerPolicy(slow_after=1.9)"), (), None),
    ],
    "bulkhead_wait_too_long": [
        Case(FASTAPI + CALLS.format("bulkhead=BulkheadPolicy(limit=2, max_wait=3), total_timeout=3"), (), r"may wait 3 s .* over after 2.99 s"),
        Case(FASTAPI + CALLS.format("bulkhead=BulkheadPolicy(limit=2, max_wait=2.9), total_timeout=3"), (), None),
        Case(FASTAPI + CALLS.format("bulkhead=BulkheadPolicy(limit=2), total_timeout=3"), (), None),
    ],
    "throttle_never": [
        Case(FASTAPI + CALLS.format("throttle=ThrottlePolicy()"), ("--rate", "4", "--workers", "4"), r"makes 1 calls a second .* per_second=1"),
        Case(FASTAPI + CALLS.format("throttle=ThrottlePolicy()"), ("--rate", "4", "--workers", "3"), None),
        Case(FASTAPI + CALLS.format("throttle=ThrottlePolicy()"), (), None),
    ],
    # Each of the two is right alone: the class exists, and the cost fits into the class of the mark.
    "rule_against_mark": [
        Case(
            POLICY.format(
                "limit=10, classes=[PriorityClass('critical', reserved=8), PriorityClass('normal')], "
                "routes=[RouteRule('/y', priority='normal')]"
            )
            + "@app.get('/y')\n@priority('critical', cost=5)\nasync def y(): ...",
            (),
            r"RouteRule\('/y'\) over the mark .* has cost=5, .* at most 2.*Until then such requests pass unguarded",
        ),
        Case(
            POLICY.format(
                "limit=10, classes=[PriorityClass('critical', reserved=8), PriorityClass('normal')], "
                "routes=[RouteRule('/y', priority='normal', cost=2)]"
            )
            + "@app.get('/y')\n@priority('critical', cost=5)\nasync def y(): ...",
            (),
            None,
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "case"),
    [
        pytest.param(code, case, id=f"{code}-{number}")
        for code, cases in CASES.items()
        for number, case in enumerate(cases)
    ],
)
def test_each_warning_and_its_absence(code: str, case: Case, explain: Explain) -> None:
    said = explain(case.source, "--json", "--strict", *case.arguments)
    warnings = said.json()["warnings"]
    assert [each["code"] for each in warnings] == ([] if case.says is None else [code])
    assert said.status == (0 if case.says is None else 1)
    for warning in warnings:
        assert re.search(case.says or "", warning["text"]), warning["text"]


def test_a_run_that_was_observed_counts_as_typical_for_its_route_alone(explain: Explain) -> None:
    source = (
        FLASK
        + """
import time
from resilient_mw.testing import disabled
app.wsgi_app = ResilienceMiddleware(app.wsgi_app, routes=[RouteRule("/slow", deadline_default=0.01, deadline_maximum=60)],
                                    trusted_peers=["127.0.0.0/8"])
@app.get("/slow")
def slow():
    time.sleep(0.05)
    return ""
@app.get("/fast")
def fast(): return ""
client = app.test_client()
client.get("/slow", buffered=True, headers={"X-Request-Timeout-Ms": "5000"})
client.get("/fast", buffered=True)
"""
    )
    said = explain(source, "--json")
    (warning,) = said.json()["warnings"]
    assert (warning["code"], warning["subject"]) == ("deadline_too_short", "/slow")
    assert "it comes from: rule '/slow'" in warning["text"]
    assert explain(source.replace("default=0.01", "default=5"), "--json").codes() == []


def test_warnings_are_printed_and_change_the_status_only_where_that_was_asked_for(explain: Explain) -> None:
    source = POLICY.format("routes=[RouteRule('/nowhere', cost=2)]")
    said = explain(source)
    assert (said.status, said.out.splitlines()[-2]) == (0, "1 warning")
    assert said.out.splitlines()[-1].startswith(
        "  rule_without_route: RouteRule('/nowhere') matches no route"
    )
    assert explain(source, "--strict").status == 1
    assert explain(POLICY.format(""), "--strict").out.splitlines()[-1] == "no warnings"


@pytest.mark.parametrize(
    ("path", "health"),
    [
        ("/health", True),
        ("/api/v1/health", True),
        ("/Healthz/", True),
        ("/health/live", True),
        ("/ping", True),
        ("/status", True),
        ("/orders/status", False),
        ("/orders/{id}/health", False),
        ("/health/records", False),
        ("/healthy-food", False),
        ("/", False),
        ("unmatched", False),
    ],
)
def test_what_looks_like_a_health_check(path: str, health: bool) -> None:
    assert is_health_path(path) is health


def test_a_rule_for_websockets_has_a_route(explain: Explain) -> None:
    app = """
    @app.websocket("/ws")
    async def ws(socket): ...
    app.add_middleware(ResilienceMiddleware, routes=[
        RouteRule("/ws", methods=["websocket"]), RouteRule("/ws", methods=["GET"]), RouteRule("/other", methods=["websocket"]),
    ])
    """
    warnings = explain(FASTAPI + dedent(app), "--json").json()["warnings"]
    subjects = [each["subject"] for each in warnings if each["code"] == "rule_without_route"]
    assert subjects == ["RouteRule('/ws', methods=['GET'])", "RouteRule('/other', methods=['WEBSOCKET'])"]
