"""`resilient-mw explain` on applications of each framework: what is found, and what the numbers mean."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import resilient_mw
from resilient_mw.testing import disabled
from tests.cli.conftest import FASTAPI, FLASK, STARLETTE, Explain

ROOT = Path(resilient_mw.__path__[0]).parent

SHOP = (
    FASTAPI
    + """
from starlette.websockets import WebSocket
app.add_middleware(ResilienceMiddleware, policy=ServerPolicy(
    name="shop", limit=10, queue=10,
    classes=[PriorityClass("critical", weight=6, reserved=4), PriorityClass("normal", weight=2, queue_length=3)],
    routes=[
        RouteRule("/reports/special", priority="critical"),
        RouteRule("/reports/*", methods=["GET"], cost=2, deadline_maximum=5),
    ],
))
@app.get("/health")
def health(): ...
@app.post("/health")
async def set_health(): ...
@app.get("/checkout")
@priority("critical", cost=3)
@deadline(default=2, minimum=1)
async def checkout(): ...
@app.api_route("/reports/{name}", methods=["GET", "DELETE"])
@deadline(default=20)
async def report(name: str): ...
@app.get("/fast")
@exempt
async def fast(): ...
@app.websocket("/ws")
async def ws(socket: WebSocket): ...
"""
)


def test_fastapi_says_how_each_route_is_treated_and_why(explain: Explain) -> None:
    said = explain(SHOP, "--json")
    assert said.status == 0
    rows = said.rows()
    assert list(rows) == [
        ("GET", "/health"),
        ("POST", "/health"),
        ("GET", "/checkout"),
        ("DELETE GET", "/reports/{name}"),
        ("GET", "/reports/{name}"),
        ("DELETE", "/reports/{name}"),
        ("GET", "/fast"),
        ("any", "unmatched"),
    ]

    def shown(methods: str, template: str) -> tuple[object, ...]:
        row = rows[methods, template]
        numbers = (row["deadline_default"], row["deadline_minimum"], row["deadline_maximum"])
        return row["priority"], row["cost"], numbers, row["longest_wait"], tuple(row["sources"].values())

    default = ("default", "default", "default")
    assert shown("GET", "/health") == ("exempt", 1, (10, 0, 60), None, ("exempt path", "default", "default"))
    assert shown("POST", "/health") == ("normal", 1, (10, 0, 60), 1.0, default)
    assert shown("GET", "/checkout") == ("critical", 3, (2, 1, 60), 0.5, ("mark", "mark", "mark"))
    some = rows["DELETE GET", "/reports/{name}"]
    assert (some["where"], some["priority"], some["sources"]["priority"]) == (
        "/reports/special",
        "critical",
        "rule '/reports/special'",
    )
    by_rule = ("default", "rule '/reports/*'", "rule '/reports/*'")
    assert shown("GET", "/reports/{name}") == ("normal", 2, (20, 0, 5), 1.0, by_rule)
    assert shown("DELETE", "/reports/{name}") == (
        "normal",
        1,
        (20, 0, 60),
        1.0,
        ("default", "default", "mark"),
    )
    assert shown("GET", "/fast") == ("exempt", 1, (10, 0, 60), None, ("mark", "default", "default"))
    assert (said.app()["websockets"], said.app()["websocket_limit"]) == (["/ws"], 512)
    assert "  websockets (at most 512 open at once): /ws\n" in explain(SHOP).out


def test_routes_that_stream_are_listed(explain: Explain) -> None:
    source = (
        FASTAPI
        + """
app.add_middleware(ResilienceMiddleware, stream_limit=7, routes=[
    RouteRule("/files/*", slot="head", deadline_idle=5),
    RouteRule("/plain", slot="body", deadline_covers="body"),
])
@app.get("/events")
@priority("normal", slot="head")
@deadline(covers="head")
async def events(): ...
@app.get("/files/{name}")
@deadline(covers="head")
async def file(name: str): ...
@app.get("/plain")
@priority("normal", slot="head")
async def plain(): ...
@app.get("/slow")
@deadline(covers="gaps")
async def slow(): ...
"""
    )
    said = explain(source)
    assert (
        "  streams (at most 7 open at once)\n"
        "    GET /events: slot for the head, deadline for the head\n"
        "    GET /files/{name}: slot for the head, deadline for the gaps of 5 s\n"
        "    GET /slow: slot for the body, deadline for the gaps of 30 s\n\n"
    ) in said.out
    rows = explain(source, "--json").rows()
    shown = {path: (row["slot"], row["deadline_covers"], row["idle"]) for (_, path), row in rows.items()}
    assert shown["/files/{name}"] == ("head", "gaps", 5.0)
    assert shown["/plain"] == shown["unmatched"] == ("body", "body", None)
    assert "streams" not in explain(FASTAPI + "app.add_middleware(ResilienceMiddleware)").out


def test_the_numbers_of_a_policy_at_a_given_service_time(explain: Explain) -> None:
    said = explain(SHOP, "--json", "--service-time", "0.2", "--workers", "4")
    app = said.app()
    assert (app["slots"], app["queue"], app["longest_wait"], app["bound_by"]) == (10, 10, 1.0, "max_wait")
    assert (app["service_time"], app["service_time_from"]) == (0.2, "given")
    assert (app["rate"], app["drain"]) == (50.0, 0.2)
    assert (app["slots_of_all"], app["queue_of_all"], app["rate_of_all"]) == (40, 40, 200.0)
    critical, normal = app["classes"]
    assert (critical["reserved_rate"], critical["shared_slots"], critical["most_rate"]) == (20.0, 8.5, 50.0)
    assert (normal["reserved_rate"], normal["shared_slots"], normal["most_slots"]) == (0.0, 1.5, 6)
    assert (critical["queue"], normal["queue"]) == (10, 3)
    text = explain(SHOP, "--service-time", "0.2", "--workers", "4").out
    assert "the limit means 50 requests a second" in text
    assert "4 processes: 40 slots, 200 requests a second" in text


def test_without_a_service_time_the_rates_are_unknown_and_it_says_so(explain: Explain) -> None:
    app = explain(SHOP, "--json").app()
    assert (app["service_time"], app["service_time_from"], app["rate"], app["drain"]) == (None,) * 4
    assert "say --service-time SECONDS" in explain(SHOP).out


def test_the_share_of_the_budget_bounds_the_wait_where_it_is_smaller(explain: Explain) -> None:
    app = explain(
        FASTAPI + "app = ResilienceMiddleware(app, deadline_default=2, wait_share=0.1)", "--json"
    ).app()
    assert (app["longest_wait"], app["bound_by"]) == (0.2, "wait_share")


RUNS = (
    FLASK
    + """
import time
policy = ServerPolicy(limit=4)
app.wsgi_app = ResilienceMiddleware(app.wsgi_app, policy)
@app.get("/items/<int:id>")
def item(id):
    time.sleep(0.02)
    return ""
@app.get("/health")
def health():
    time.sleep(0.3)
    return ""
"""
)


def test_what_ran_in_this_process_is_the_service_time(explain: Explain) -> None:
    ran = (
        RUNS + "for path in ('/items/1', '/items/2', '/health'): app.test_client().get(path, buffered=True)\n"
    )
    said = explain(ran, "--json")
    app = said.app()
    assert app["service_time_from"] == "observed"
    items = said.rows()["GET", "/items/<int:id>"]["observed"]
    assert items >= 0.02
    assert app["service_time"] == items  # the health check, which is exempt, does not count
    assert app["rate"] == pytest.approx(4 / app["service_time"], rel=0.01)
    assert said.rows()["GET", "/health"]["observed"] >= 0.3
    assert explain(ran, "--json", "--service-time", "0.5").app()["service_time"] == 0.5


def test_starlette_with_mounts(explain: Explain) -> None:
    said = explain(
        STARLETTE
        + """
class Orders(HTTPEndpoint):
    async def get(self, request): ...
    @priority("critical")
    async def post(self, request): ...
async def foreign(scope, receive, send): ...
inner = Starlette(routes=[Route("/x/{id:int}", answer), Route("/health", answer)])
app = Starlette(routes=[
    Route("/orders", Orders),
    Route("/any", answer, methods=None),
    priority("sheddable")(Mount("/inner", inner)),
    Mount("/legacy", foreign),
])
app.add_middleware(ResilienceMiddleware, routes=[RouteRule("/inner/x/*", cost=2), RouteRule("/legacy/old", cost=3)])
""",
        "--json",
    )
    rows = said.rows()
    assert {key: (row["priority"], row["cost"]) for key, row in rows.items()} == {
        ("GET", "/orders"): ("normal", 1),
        ("POST", "/orders"): ("critical", 1),
        ("GET", "/any"): ("normal", 1),
        ("GET", "/inner/x/{id:int}"): ("sheddable", 2),
        ("GET", "/inner/health"): ("sheddable", 1),
        ("any", "/legacy/{path:path}"): ("normal", 1),
        ("any", "unmatched"): ("normal", 1),
    }
    partly = [row for row in said.app()["routes"] if row["where"]]
    assert [(row["template"], row["where"], row["cost"]) for row in partly] == [
        ("/legacy/{path:path}", "/legacy/old", 3)
    ]


def test_the_text_leaves_out_what_the_framework_adds_beside_other_methods(explain: Explain) -> None:
    source = (
        FLASK
        + """
app.wsgi_app = ResilienceMiddleware(app.wsgi_app)
@app.get("/health")
def health(): return ""
@app.route("/options", methods=["OPTIONS"])
def options(): return ""
"""
    )
    assert [key for key, _ in explain(source, "--json").rows()] == ["GET", "OPTIONS", "OPTIONS", "any"]
    shown = [line.split()[:2] for line in explain(source).out.splitlines()[2:6]]
    assert shown == [["methods", "route"], ["GET", "/health"], ["OPTIONS", "/options"], ["any", "everything"]]


def test_flask_with_blueprints_and_other_middlewares_around(explain: Explain) -> None:
    said = explain(
        FLASK
        + """
from flask import Blueprint
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.middleware.dispatcher import DispatcherMiddleware
reports = priority("sheddable")(Blueprint("reports", __name__, url_prefix="/reports"))
@reports.get("/<name>")
def report(name): return ""
app.register_blueprint(reports)
@app.route("/orders", methods=["GET", "POST"])
def orders(): return ""
def old(environ, start_response): ...
app.wsgi_app = ProxyFix(ResilienceMiddleware(
    DispatcherMiddleware(app.wsgi_app, {"/old": old}), routes=[RouteRule("/old/x", cost=2)]
))
""",
        "--json",
    )
    assert said.app()["protocol"] == "wsgi"
    assert {key: row["priority"] for key, row in said.rows().items()} == {
        ("GET", "/reports/<name>"): "sheddable",
        ("GET POST", "/orders"): "normal",
        ("any", "/old/*"): "normal",
        ("any", "unmatched"): "normal",
    }
    assert said.codes() == []


OUTERMOST = {
    "add_middleware": "app.add_middleware(ResilienceMiddleware, name='found')",
    "around": "app = ResilienceMiddleware(app, name='found')",
    "below another one": (
        "from starlette.middleware.gzip import GZipMiddleware\n"
        "app = GZipMiddleware(ResilienceMiddleware(app, name='found'))"
    ),
    "below others of the application": (
        "app.add_middleware(ResilienceMiddleware, name='found')\n"
        "@app.middleware('http')\n"
        "async def outer(request, call_next): return await call_next(request)"
    ),
    "outside one that hides what it wraps": (
        "def hiding(inner):\n"
        "    async def call(scope, receive, send): await inner(scope, receive, send)\n"
        "    return call\n"
        "app.add_middleware(hiding)\n"
        "app.add_middleware(ResilienceMiddleware, name='found')"
    ),
    "around a mounted application": (
        "outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)\n"
        "outer.mount('/', ResilienceMiddleware(app, name='found'))\n"
        "app = outer"
    ),
    "a factory": "inner = app\ndef app(): return ResilienceMiddleware(inner, name='found')",
    "an attribute of an attribute": (
        "class holder: app = ResilienceMiddleware(app, name='found')\nholder.deep = holder"
    ),
}


@pytest.mark.parametrize("way", OUTERMOST)
def test_the_middleware_is_found(way: str, explain: Explain) -> None:
    source = FASTAPI + "@app.get('/x')\nasync def x(): ...\n" + OUTERMOST[way]
    more = ["--factory"] if way == "a factory" else []
    target = "shop:holder.deep.app" if "attribute" in way else "shop:app"
    said = explain(source, "--json", *more, target=target)
    assert said.app()["name"] == "found"
    assert ("GET", "/x") in said.rows()


def test_several_middlewares_are_several_applications_and_a_shared_policy_is_named(explain: Explain) -> None:
    said = explain(
        STARLETTE
        + """
policy = ServerPolicy(name="shared", limit=2, queue=50)
one = Starlette(routes=[Route("/one", answer)])
two = Starlette(routes=[Route("/two", answer)])
app = Starlette(routes=[
    Mount("/a", ResilienceMiddleware(one, policy)), Mount("/b", ResilienceMiddleware(two, policy)),
    Mount("/c", ResilienceMiddleware(Starlette(), name="own")),
])
""",
        "--json",
        "--service-time",
        "1",
    )
    apps = said.json()["applications"]
    assert [(app["name"], app["shares_state_with"]) for app in apps] == [
        ("shared", None),
        ("shared", 0),
        ("own", None),
    ]
    assert said.codes() == ["queue_too_long"]  # once for the two that share it


def test_an_application_without_a_route_source_shows_the_rules(explain: Explain) -> None:
    source = """
    from resilient_mw import *
    from resilient_mw.asgi import ResilienceMiddleware
    async def raw(scope, receive, send): ...
    app = ResilienceMiddleware(raw, routes=[RouteRule("/reports/*", methods=["GET"], priority="sheddable")])
    """
    said = explain(source, "--json")
    assert said.app()["routes_known"] is False
    assert [(key, row["priority"]) for key, row in said.rows().items()] == [
        (("GET", "/reports/*"), "sheddable"),
        (("any", "unmatched"), "normal"),
    ]
    assert said.codes() == []
    assert "no route source knows the application" in explain(source).out


CALLS = """
import httpx
from resilient_mw_integrations.httpx import ResilientTransport
app = ResilienceMiddleware(app, deadline_maximum=20)
prices = Dependency("prices", match=["http://prices/*", "http://offers/*"], timeout=1.0, bulkhead=10)
stock = Dependency("stock", match="http://stock/*", timeout=1.5, total_timeout=None, breaker=None,
                   retry=RetryPolicy(attempts=3, budget_ratio=None, backoff_base=0.5, max_retry_after=0))
mail = Dependency("mail", match="http://mail/*", timeout=None, retry=None, breaker=None)
unused = Dependency("unused", match="http://unused/*")
client = httpx.Client(transport=ResilientTransport([prices, stock, mail]))
"""


def test_dependencies_of_this_process(explain: Explain) -> None:
    said = explain(FASTAPI + CALLS, "--json", "--workers", "2")
    mail, prices, stock = said.json()["dependencies"]
    assert [each["name"] for each in (mail, prices, stock)] == ["mail", "prices", "stock"]
    assert prices["match"] == ["http://prices/*", "http://offers/*"]
    assert (prices["attempts"], prices["amplification"], prices["budget_per_second"]) == (2, 1.1, 1.0)
    # 2 attempts of 1 s, and between them at most a Retry-After of 5 s, 40 % longer at most.
    assert (prices["longest_call"], prices["longest_in_request"]) == (9.0, 9.0)
    assert (prices["bulkhead"], prices["bulkhead_of_all"], prices["minimum_calls"]) == (10, 20, 10)
    assert (stock["amplification"], stock["budget_ratio"], stock["minimum_calls"]) == (3.0, None, None)
    assert stock["longest_call"] == 6.0  # 3 x 1.5 s and back-offs of 0.5 s and 1 s
    assert (mail["attempts"], mail["amplification"]) == (1, 1.0)
    assert (mail["longest_call"], mail["longest_in_request"]) == (
        9.99,
        19.99,
    )  # total_timeout, deadline: less the reserve
    text = explain(FASTAPI + CALLS).out
    assert "3 attempts, at worst x3: no retry budget" in text
    assert "worst amplification: x3 (stock)" in text


EVERYTHING = """
import warnings
import httpx
from resilient_mw.calls import AdaptivePolicy, BulkheadPolicy, Fallback, IdempotencyKeys, ThrottlePolicy, TimeoutPolicy
from resilient_mw_integrations.httpx import ResilientTransport
app = ResilienceMiddleware(app, deadline_maximum=20)
warnings.simplefilter("ignore")  # of repeated POST requests
def by_tenant(method, target): return "t"
prices = Dependency(
    "prices", match="http://prices/*", timeout=1.0,
    retry=RetryPolicy(attempts=3, budget_ratio=None, max_retry_after=0, backoff_base=0.5, unsafe_methods=["POST"]),
    breaker=BreakerPolicy(window_seconds=30, slow_after=0.5, consecutive_failures=5, open_factor=2, open_cap=40, ramp=10, shadow=True),
    bulkhead=BulkheadPolicy(limit=10, max_wait=0.2, queue=5), adaptive=AdaptivePolicy(floor=2), throttle=ThrottlePolicy(),
    idempotency_key=IdempotencyKeys(methods=["POST"]), adaptive_timeout=TimeoutPolicy(false_timeouts=0.01, cap=0.8),
    groups={"search": "GET /search/*"}, group_key=by_tenant,
    fallback=Fallback(stale_for=60, value="none", max_bytes=2**20),
)
plain = Dependency("plain", match="http://plain/*", retry=None, breaker=None)
client = httpx.Client(transport=ResilientTransport([prices, plain]))
"""


def test_every_policy_of_a_dependency_is_shown_with_what_it_means(explain: Explain) -> None:
    arguments = ("--rate", "100", "--workers", "2")
    said = explain(FASTAPI + EVERYTHING, "--json", *arguments)
    plain, prices = said.json()["dependencies"]
    assert said.codes() == []
    assert (prices["owned"], prices["layered"], prices["trusted"]) == (True, 3.0, True)
    # 3 x (0.2 s in the bulkhead and 0.8 s), and back-offs of 0.5 s and 1 s.
    assert prices["longest_call"] == 4.5
    assert prices["policies"] == {
        "attempt": 0.8,
        "breaker": {
            "window": None,
            "window_seconds": 30,
            "failure_ratio": 0.5,
            "slow_after": 0.5,
            "slow_ratio": 0.5,
            "consecutive_failures": 5,
            "longest_open": 44.0,
            "ramp": 10,
            "shadow": True,
        },
        "measured": {"floor": 0.05, "cap": 0.8, "false_timeouts": 0.01, "samples": 200, "acts_after": 4.0},
        "bulkhead_wait": 0.2,
        "bulkhead_queue": 5,
        "adaptive_floor": 2,
        "most_throttled": 0.9,
        "throttled_from": 1.0,
        "groups": ["search"],
        "group_key": "by_tenant",
        "states": 1002,
        "key_header": "Idempotency-Key",
        "key_methods": ["POST"],
        "unsafe_methods": ["POST"],
        "insists": False,
        "fallback": {"kinds": ["stale", "value"], "stale_for": 60, "max_bytes": 1048576},
        "hedge": None,
    }
    assert {name: value for name, value in plain["policies"].items() if value} == {
        "attempt": 2.0,
        "states": 1,
    }
    text = explain(FASTAPI + EVERYTHING, *arguments).out
    for line in (
        "retry owner    the dependency is told not to retry: 3 layers like this load the last one x3 at worst",
        "key            Idempotency-Key for POST: one for all attempts of a call",
        "repeated       POST too, although the dependency may have acted",
        "measured       an attempt gets 0.05..0.8 s, cutting off 1 % in vain; after 200 attempts, that is 4 s at this rate",
        "waits          5 more at once, each attempt 0.2 s at most",
        "adaptive       down to 2 at once, as measured",
        "throttle       refuses up to 90 % here, from 1 call a second of one process",
        "opens          when 50 % of the last 30 s failed, or 50 % took 0.5 s, or 5 failed in a row (shadow: only counted)",
        "stays open     44 s at most before it is tried, then back by degrees in 10 s",
        "groups         search, one for each by_tenant: at most 1002 states in each process",
        "fallback       the last good answer, up to 60 s old (1 MiB in each process), then a value; never for writes",
    ):
        assert f"    {line}\n" in text


def test_what_retries_do_to_the_last_of_three_layers_without_an_owner(explain: Explain) -> None:
    source = FASTAPI + CALLS.replace("max_retry_after=0)", "max_retry_after=0), ownership=None")
    said = explain(source, "--json")
    assert said.json()["dependencies"][2]["layered"] == 27.0
    assert said.codes() == ["retries_multiply"]
    assert (
        "the dependency is not told: 3 layers like this load the last one x27 at worst" in explain(source).out
    )


@pytest.mark.parametrize(
    ("fields", "amplification", "longest", "line"),
    [
        (
            "retry=None, hedge=HedgePolicy(hedges=2, delay=0.25)",
            3.0,
            1.5,
            "2 at most beside the attempts of a call, each after 0.25 s; no budget bounds them",
        ),
        (
            "retry=RetryPolicy(max_retry_after=0, backoff_base=0.5), hedge=HedgePolicy()",
            1.1,
            3.5,
            "1 at most beside the attempts of a call, each after the time in which 95 % answer; from 40 answers on",
        ),
    ],
)
def test_hedges_are_shown_with_what_they_add(
    explain: Explain, fields: str, amplification: float, longest: float, line: str
) -> None:
    source = (
        FASTAPI
        + """
import httpx
from resilient_mw.calls import HedgePolicy
from resilient_mw_integrations.httpx import ResilientTransport
app = ResilienceMiddleware(app)
"""
        + f"""
prices = Dependency("prices", match="http://prices/*", timeout=1.0, {fields})
client = httpx.Client(transport=ResilientTransport([prices]))
"""
    )
    (prices,) = explain(source, "--json").json()["dependencies"]
    assert (prices["amplification"], prices["longest_call"]) == (amplification, longest)
    assert f"    hedge          {line}\n" in explain(source).out


def test_a_dependency_of_functions_alone_is_explained(explain: Explain) -> None:
    source = (
        FASTAPI + "app = ResilienceMiddleware(app)\nsql = Dependency('sql')\nquery = sql.guard(lambda: 1)\n"
    )
    (sql,) = explain(source, "--json").json()["dependencies"]
    assert (sql["name"], sql["match"]) == ("sql", [])
    assert "  sql: guarded functions\n" in explain(source).out


def test_the_retries_that_are_always_allowed_count_where_the_rate_is_known(explain: Explain) -> None:
    def amplification(*arguments: str) -> float:
        report = explain(FASTAPI + CALLS, "--json", *arguments).json()
        value: float = report["dependencies"][1]["amplification"]
        return value

    assert amplification("--rate", "100") == 1.11
    assert amplification("--rate", "100", "--workers", "10") == 1.2  # each process has a budget of its own
    assert amplification("--rate", "0.1") == 2.0  # never more than the attempts


def test_json_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    said = set()
    for seed in ("1", "2", "3"):
        finished = subprocess.run(
            [
                sys.executable,
                "-m",
                "resilient_mw.cli",
                "explain",
                "shop:app",
                "--json",
                "--service-time",
                "0.3",
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'integrations'}",
                "PYTHONHASHSEED": seed,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        said.add(finished.stdout)
    assert len(said) == 1
    assert '"format": 1,' in said.pop()


def test_the_form_of_the_json_changes_only_on_purpose(explain: Explain) -> None:
    report = explain(FASTAPI + CALLS + "@priority('normal')\ndef lost(): ...\n", "--json").json()
    assert list(report) == [
        "format",
        "target",
        "workers",
        "rate",
        "applications",
        "dependencies",
        "disabled",
        "keys",
        "warnings",
    ]
    (app,) = report["applications"]
    assert list(app) == [
        "name", "protocol", "shares_state_with", "slots", "queue", "queue_asked", "max_wait", "wait_share", "exempt_limit", "exempt_paths",
        "deadline_default", "deadline_minimum", "deadline_maximum", "smallest_budget", "longest_wait", "bound_by",
        "service_time", "service_time_from", "rate", "drain", "slots_of_all", "queue_of_all", "rate_of_all", "classes",
        "routes", "routes_known", "tenant", "quotas", "quota_store", "quota_store_away", "websockets", "websocket_limit",
        "stream_limit", "shadow", "settings",
    ]  # fmt: skip
    assert list(app["routes"][0]) == [
        "template", "methods", "where", "priority", "cost", "cost_function", "deadline_default", "deadline_minimum",
        "deadline_maximum", "budget", "longest_wait", "observed", "threaded", "sources", "problem", "slot",
        "deadline_covers", "idle", "needs",
    ]  # fmt: skip
    assert list(app["classes"][0]) == [
        "name", "weight", "reserved", "shared_slots", "most_slots", "queue", "reserved_rate", "shared_rate", "most_rate",
    ]  # fmt: skip
    assert list(report["dependencies"][0]) == [
        "name", "match", "timeout", "connect_timeout", "total_timeout", "attempts", "budget_ratio", "budget_per_second",
        "amplification", "longest_call", "longest_in_request", "bulkhead", "bulkhead_of_all", "minimum_calls", "open_for",
        "judges_after", "observed", "trusted", "owned", "layered", "policies",
    ]  # fmt: skip
    assert list(report["warnings"][0]) == ["code", "application", "subject", "text"]


def test_what_is_in_shadow_mode_and_what_a_route_needs_is_said(explain: Explain) -> None:
    app = FASTAPI + "app.add_middleware(ResilienceMiddleware, shadow=['quotas', 'admission'], limit=2)\n"
    app += "@app.get('/quotes')\n@priority('normal', needs='prices')\ndef quotes(): ...\n"
    said = explain(app, "--json").app()
    assert said["shadow"] == ["admission", "quotas"]
    assert {row["template"]: row["needs"] for row in said["routes"]} == {
        "/quotes": "prices",
        "unmatched": None,
    }
    text = explain(app).out
    assert "  shadow         admission, quotas: counted and told, not enforced\n" in text
    assert "/quotes (needs prices)" in text
    assert "shadow" not in explain(FASTAPI + "app.add_middleware(ResilienceMiddleware, limit=2)").out


def test_tenants_and_functions_of_costs_are_shown(explain: Explain) -> None:
    source = (
        FASTAPI
        + """
from resilient_mw.admission.head_rule import tenant_from_scope
def by_size(head): return 3
policy = ServerPolicy(tenant=TENANT, routes=[RouteRule("/up", cost=by_size)])
app.add_middleware(ResilienceMiddleware, policy=policy)
@app.post("/up")
def up(): ...
"""
    )
    found = {}
    for tenant in ("None", "'X-Tenant'", "by_size", "tenant_from_scope('user', 'id')"):
        said = explain(source.replace("TENANT", tenant), "--json")
        found[tenant] = said.app()["tenant"]
        row = said.rows()["POST", "/up"]
        assert (row["cost"], row["cost_function"]) == (1, "by_size")
    assert found == {
        "None": None,
        "'X-Tenant'": "header X-Tenant",
        "by_size": "by_size",
        "tenant_from_scope('user', 'id')": "tenant_from_scope('user', 'id')",
    }
    text = explain(source.replace("TENANT", "'X-Tenant'")).out
    assert "  tenants        by header X-Tenant, in turns\n" in text
    assert "normal  by_size  10 s" in text
    assert "tenants" not in explain(source.replace("TENANT", "None")).out


def test_quotas_are_shown_with_what_counts_them(explain: Explain) -> None:
    source = (
        FASTAPI
        + """
from resilient_mw.core.quotas import Quota
from resilient_mw_integrations.limits import MemoryQuotas, RedisQuotas
QUOTAS = [Quota("100/minute", name="burst"), Quota("5 per second", name="up", path="/up/*", by_cost=True)]
policy = ServerPolicy(tenant="X-Tenant", quotas=QUOTAS, quota_store=STORE)
app.add_middleware(ResilienceMiddleware, policy=policy)
"""
    )
    app = explain(source.replace("STORE", "RedisQuotas('redis://127.0.0.1:1')"), "--json").app()
    assert app["quotas"] == ["burst: 100/minute", "up: 5 per second by cost of /up/*"]
    assert (app["quota_store"], app["quota_store_away"]) == ("RedisQuotas", "local")
    app = explain(source.replace("STORE", "MemoryQuotas()"), "--json").app()
    assert (app["quota_store"], app["quota_store_away"]) == ("MemoryQuotas", None)
    text = explain(source.replace("STORE", "RedisQuotas('redis://127.0.0.1:1')")).out
    assert "(each tenant; counted in RedisQuotas, while it is away: local)\n" in text


def test_each_value_says_where_it_comes_from(
    explain: Explain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("queue = 7\n[[routes]]\npath = '/reports/*'\ncost = 2\n", encoding="utf-8")
    monkeypatch.setenv("RESILIENT_MW_CONFIG", str(file))
    monkeypatch.setenv("RESILIENT_MW_LIMIT", "20")
    app = FASTAPI + (
        "from resilient_mw.runtime.configuration import load_policy\n"
        "app.add_middleware(ResilienceMiddleware, policy=load_policy(limit=5, name='shop', ramp=3.0), max_wait=2)\n"
    )
    told = explain(app, "--json").app()["settings"]
    assert {
        each["field"]: (each["value"], each["source"]) for each in told if each["source"] != "default"
    } == {
        "limit": ("20", "RESILIENT_MW_LIMIT"),
        "queue": ("7", "shop.toml"),
        "max_wait": ("2", "keyword of the middleware"),
        "routes": ("/reports/*", "shop.toml"),
        "name": ("shop", "code"),
        "ramp": ("3.0", "code"),
    }
    assert {"field": "wait_share", "value": "0.25", "source": "default"} in told
    text = explain(app).out
    assert (
        "  setting   value       from\n  limit     20          RESILIENT_MW_LIMIT\n  queue     7           shop.toml\n"
        in text
    )
    monkeypatch.setenv("RESILIENT_MW_LIMIT", "x")
    wrong = explain(app)
    assert wrong.status == 2
    assert "RESILIENT_MW_LIMIT: limit='x' is not allowed" in wrong.err


def test_a_service_that_is_switched_off_says_so(explain: Explain) -> None:
    app = FASTAPI + "app.add_middleware(ResilienceMiddleware, limit=20)\n"
    assert explain(app, "--json").json()["disabled"] is False
    with disabled():
        assert explain(app, "--json").json()["disabled"] is True
        assert explain(app).out.startswith("RESILIENT_MW_DISABLED: every request passes unguarded")


def test_the_extensions_of_flask_and_quart_are_explained(explain: Explain) -> None:
    for framework, protocol in (("flask", "wsgi"), ("quart", "asgi")):
        app = f"from {framework} import {framework.title()}, Blueprint\nfrom resilient_mw import *\n"
        app += f"from resilient_mw_integrations.{framework} import Resilience\n"
        app += f"app = {framework.title()}(__name__, static_folder=None)\nreports = priority('sheddable')(Blueprint('r', __name__))\n"
        app += "app.config['RESILIENCE_LIMIT'] = 7\n"
        app += "@reports.get('/reports/<int:number>')\ndef report(number): ...\n"
        app += "app.register_blueprint(reports)\nResilience(app)\n"
        said = explain(app, "--json")
        assert (said.app()["protocol"], said.app()["slots"]) == (protocol, 7)
        assert said.rows()["GET", "/reports/<int:number>"]["priority"] == "sheddable"
        assert {"field": "limit", "value": "7", "source": "app.config['RESILIENCE_LIMIT']"} in said.app()[
            "settings"
        ]
