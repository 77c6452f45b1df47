"""Both middlewares refuse in the same words: one list of requests, told to each of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.core.marks import Mark
from resilient_mw.core.priority import EXEMPT
from resilient_mw.core.rejection import REFUSAL_RULES, Reason, problem_type
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedASGI, ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware

Headers = Sequence[tuple[str, str]]
SHOP = "https://shop.example"
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")
PREFLIGHT = [("Origin", SHOP), ("Access-Control-Request-Method", "PUT")]
EXPOSED = "Retry-After, X-Refusal-Reason"


@dataclass(frozen=True)
class Answer:
    """What a caller got."""

    status: int
    headers: dict[str, str]
    body: bytes


Ask = Callable[..., Answer]


def ask_asgi(policy: ServerPolicy, headers: Headers = (), method: str = "GET", path: str = "/") -> Answer:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await asyncio.sleep(5)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def run() -> ScriptedASGI:
        return await ScriptedASGI(
            AsgiMiddleware(app, policy), method=method, path=path, headers=headers
        ).run()

    server = asyncio.run(run())
    lines = [(name.decode().lower(), value.decode()) for name, value in server.messages[0]["headers"]]
    assert len(dict(lines)) == len(lines), "no field twice"
    return Answer(
        server.messages[0]["status"], dict(lines), b"".join(each["body"] for each in server.messages[1:])
    )


def ask_wsgi(policy: ServerPolicy, headers: Headers = (), method: str = "GET", path: str = "/") -> Answer:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        if environ["PATH_INFO"] == "/slow":
            while current().remaining() > 0:
                threading.Event().wait(0.005)
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"" if environ["REQUEST_METHOD"] == "HEAD" else b"done"

    server = ScriptedWSGI(WsgiMiddleware(app, policy), method=method, path=path, headers=headers).run()
    lines = [(name.lower(), value) for name, value in server.headers]
    assert len(dict(lines)) == len(lines), "no field twice"
    return Answer(int(server.status[:3]), dict(lines), server.body)


@pytest.fixture(params=[ask_asgi, ask_wsgi], ids=["asgi", "wsgi"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


def full(**fields: Any) -> ServerPolicy:
    """Return a policy that has neither a slot nor a place left."""
    policy = ServerPolicy(limit=1, queue=0, **fields)
    take(policy, Mark())
    return policy


def take(policy: ServerPolicy, mark: Mark) -> None:
    guard = guard_of(policy)
    now = guard.clock.now()
    assert guard.arrive(guard.entries.get("taken", mark), now, now + 3600).admitted


def document(reason: Reason = Reason.QUEUE_FULL, **more: Any) -> dict[str, Any]:
    rule = REFUSAL_RULES[reason]
    return {
        "type": problem_type(reason),
        "title": rule.title,
        "status": rule.status,
        "reason": reason.value,
    } | more


# -- what the body is --------------------------------------------------------------------------------------------------

AS_JSON: list[tuple[Headers, dict[str, Any]]] = [
    ([], {}),
    ([("Accept", "*/*")], {}),
    ([("Accept", "text/plain;q=2")], {}),
    ([("Accept", "text/plain"), ("Accept", "application/json")], {}),
    ([("Origin", SHOP)], {}),
    ([TRACEPARENT], {"instance": f"urn:trace:{TRACE}"}),
    ([("X-Request-Id", "r-1")], {"instance": "r-1"}),
    ([("X-Request-Id", "r-1"), TRACEPARENT], {"instance": f"urn:trace:{TRACE}"}),
    ([("X-Request-Id", "r-1"), ("traceparent", TRACE)], {"instance": "r-1"}),
    ([("X-Request-Id", 'a"b\\</script>')], {"instance": 'a"b\\</script>'}),
    ([("X-Request-Id", "x" * 128)], {"instance": "x" * 128}),
    ([("X-Request-Id", "x" * 129)], {}),
    ([("X-Request-Id", "two words")], {}),
    ([("X-Request-Id", "\xe9")], {}),
    ([("X-Request-Id", "")], {}),
    ([("X-Request-Id", "a"), ("X-Request-Id", "b")], {"instance": "a,b"}),
    ([TRACEPARENT, TRACEPARENT], {}),
]


@pytest.mark.parametrize(("headers", "more"), AS_JSON)
def test_a_problem_document_is_the_usual_answer(ask: Ask, headers: Headers, more: dict[str, Any]) -> None:
    policy = full()
    answer = ask(policy, headers)
    assert answer.status == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["vary"] == "Accept"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-refusal-reason"] == "queue_full"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.body.isascii()
    assert json.loads(answer.body) == document(**more)
    head = ask(policy, headers, "HEAD")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == answer.headers[name]
    assert head.body == b""


@pytest.mark.parametrize(
    "headers",
    [
        [("Accept", "text/plain")],
        [("Accept", "application/json;q=0.1"), ("Accept", "text/*")],
        [("Accept", "text/plain"), TRACEPARENT, ("X-Request-Id", "<b>")],
    ],
)
def test_plain_text_is_for_those_who_would_rather_have_it(ask: Ask, headers: Headers) -> None:
    policy = full()
    answer = ask(policy, headers)
    assert answer.status == 503
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["vary"] == "Accept"
    assert answer.headers["x-refusal-reason"] == "queue_full"
    assert answer.body == b"503 The wait queue is full (queue_full)\n"
    head = ask(policy, headers, "HEAD")
    assert (head.headers["content-length"], head.body) == (answer.headers["content-length"], b"")


@pytest.mark.parametrize(
    ("headers", "kind"),
    [([], "application/problem+json"), ([("Accept", "text/plain")], "text/plain; charset=utf-8")],
)
def test_a_deadline_that_passes_at_work_is_answered_the_same_way(
    ask: Ask, headers: Headers, kind: str
) -> None:
    fields = [*headers, TRACEPARENT, ("Origin", SHOP), ("X-Request-Timeout-Ms", "30")]
    answer = ask(ServerPolicy(cors_origins=[SHOP], debug=True), fields, path="/slow")
    assert (answer.status, answer.headers["content-type"]) == (504, kind)
    assert answer.headers["access-control-allow-origin"] == SHOP
    assert answer.headers["content-length"] == str(len(answer.body))
    if headers:
        assert answer.body.endswith(b"\nremaining_budget_ms: 0\n")
    else:
        found = json.loads(answer.body)
        assert found["instance"] == f"urn:trace:{TRACE}"
        assert (found["class"], found["in_flight"], found["remaining_budget_ms"]) == ("normal", 1, 0)


def test_a_caller_changes_nothing_of_the_next_ones_answer(ask: Ask) -> None:
    policy = full(cors_origins=[SHOP])
    before = ask(policy).body
    for headers in ([TRACEPARENT], [("Accept", "text/plain")], [("Origin", SHOP)]):
        ask(policy, headers)
    after = ask(policy)
    assert after.body == before
    assert "access-control-allow-origin" not in after.headers


# -- CORS --------------------------------------------------------------------------------------------------------------

CORS = (
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-expose-headers",
    "vary",
)


@pytest.mark.parametrize(
    ("fields", "origin", "expected"),
    [
        ({}, SHOP, (None, None, None, "Accept")),
        ({"cors_origins": [SHOP]}, None, (None, None, None, "Accept, Origin")),
        ({"cors_origins": [SHOP]}, SHOP, (SHOP, None, EXPOSED, "Accept, Origin")),
        ({"cors_origins": [SHOP]}, SHOP.upper(), (None, None, None, "Accept, Origin")),
        ({"cors_origins": [SHOP]}, f"{SHOP}.evil.example", (None, None, None, "Accept, Origin")),
        ({"cors_origins": [SHOP]}, "null", (None, None, None, "Accept, Origin")),
        ({"cors_origins": [SHOP]}, "*", (None, None, None, "Accept, Origin")),
        (
            {"cors_origins": [SHOP], "cors_credentials": True},
            SHOP,
            (SHOP, "true", EXPOSED, "Accept, Origin"),
        ),
        (
            {"cors_origins": [SHOP], "cors_credentials": True},
            "https://evil.example",
            (None, None, None, "Accept, Origin"),
        ),
        ({"cors_origins": "*"}, SHOP, ("*", None, EXPOSED, "Accept")),
        ({"cors_origins": ["*"]}, None, ("*", None, EXPOSED, "Accept")),
    ],
)
@pytest.mark.parametrize("accept", ["*/*", "text/plain"])
def test_b08_a_page_of_a_named_origin_may_read_a_refusal(
    ask: Ask, fields: dict[str, Any], origin: str | None, expected: tuple[str | None, ...], accept: str
) -> None:
    headers = [("Accept", accept)] + ([] if origin is None else [("Origin", origin)])
    answer = ask(full(**fields), headers)
    assert tuple(answer.headers.get(name) for name in CORS) == expected


def test_two_origins_are_none(ask: Ask) -> None:
    answer = ask(full(cors_origins=[SHOP]), [("Origin", SHOP), ("Origin", SHOP)])
    assert "access-control-allow-origin" not in answer.headers


# -- preflight ---------------------------------------------------------------------------------------------------------


def test_a_preflight_passes_a_full_server_and_is_counted_as_exempt(ask: Ask) -> None:
    policy = full(routes=[RouteRule("/a", priority="sheddable")])
    for path in ("/a", "/b"):
        assert ask(policy, PREFLIGHT, "OPTIONS", path).status == 200
    seen = [each for each in policy.snapshot().routes if each.arrived and each.route != "taken"]
    assert [(each.route, each.priority, each.admitted) for each in seen] == [("preflight", "exempt", 2)]
    assert policy.snapshot().guard_errors == 0
    assert sum(each.slots for each in policy.snapshot().classes) == 1, "every place came back"


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("OPTIONS", []),
        ("OPTIONS", PREFLIGHT[:1]),
        ("OPTIONS", PREFLIGHT[1:]),
        ("GET", PREFLIGHT),
        ("POST", PREFLIGHT),
    ],
)
def test_what_is_no_preflight_needs_a_slot(ask: Ask, method: str, headers: Headers) -> None:
    assert ask(full(), headers, method).headers["x-refusal-reason"] == "queue_full"


def test_preflights_have_the_bound_of_exempt_requests(ask: Ask) -> None:
    policy = ServerPolicy(exempt_limit=1, debug=True)
    take(policy, Mark(priority=EXEMPT))
    answer = ask(policy, PREFLIGHT, "OPTIONS")
    assert answer.headers["x-refusal-reason"] == "exempt_limit"
    found = json.loads(answer.body)
    assert (found["class"], found["limit"], found["in_flight"]) == ("exempt", 1, 1)


# -- debug mode --------------------------------------------------------------------------------------------------------


def test_debug_mode_says_how_it_stands(ask: Ask) -> None:
    policy = full(debug=True, deadline_default=7.0)
    found = json.loads(ask(policy).body)
    remaining = found.pop("remaining_budget_ms")
    assert 5000 < remaining <= 7000
    assert isinstance(remaining, int)
    assert found == document() | {"class": "normal", "limit": 1, "in_flight": 1, "queue_length": 0}
    answer = ask(policy, [("X-Request-Id", "r-1")])
    assert json.loads(answer.body)["instance"] == "r-1"
    assert answer.headers["content-length"] == str(len(answer.body))


def test_debug_mode_says_it_in_plain_text_as_well(ask: Ask) -> None:
    answer = ask(full(debug=True), [("Accept", "text/plain")])
    first, *lines = answer.body.decode().splitlines()
    assert first == "503 The wait queue is full (queue_full)"
    assert lines[:4] == ["class: normal", "limit: 1", "in_flight: 1", "queue_length: 0"]
    assert answer.headers["content-length"] == str(len(answer.body))


def test_debug_mode_counts_those_who_wait(ask: Ask) -> None:
    policy = ServerPolicy(limit=1, queue=1, debug=True, default_class="sheddable")
    take(policy, Mark())
    guard = guard_of(policy)
    now = guard.clock.now()
    guard.arrive(guard.entries.get("waits", Mark()), now, now + 3600)
    found = json.loads(ask(policy).body)
    assert (found["class"], found["in_flight"], found["queue_length"]) == ("sheddable", 1, 1)
