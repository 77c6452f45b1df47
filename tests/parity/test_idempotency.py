"""Idempotency keys are the same under both protocols: one table of scenarios, told to each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from resilient_mw.asgi.idempotency import IdempotencyMiddleware as AsgiMiddleware
from resilient_mw.idempotency import IdempotencyPolicy, IdempotencyRoute, IdempotencyRule, StoredAnswer
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.testing import ScriptedASGI, ScriptedWSGI
from resilient_mw.wsgi.idempotency import IdempotencyMiddleware as WsgiMiddleware

KEY = ("Idempotency-Key", '"k-1"')
JSON = ("Content-Type", "application/json")


@dataclass(frozen=True)
class Ask:
    """One request: how it is sent, how the application answers if it runs, and what comes of it."""

    outcome: str
    headers: tuple[tuple[str, str], ...] = (KEY,)
    method: str = "POST"
    path: str = "/payments"
    query: str = ""
    body: bytes = b'{"a": 1}'
    status: int = 201
    fails: bool = False


@dataclass(frozen=True)
class Scenario:
    """What is asked of one application, in order."""

    asks: list[Ask]
    policy: dict[str, Any] = field(default_factory=dict)


def ask(outcome: str, **facts: Any) -> Ask:
    return Ask(outcome, **facts)


def done(_: Any) -> Any:
    return StoredAnswer(200, ((b"Content-Type", b"application/json"),), b"{}")


PUT = IdempotencyRoute("/payments/*", IdempotencyRule(use="required"), methods=["PUT"])
SCENARIOS: dict[str, Scenario] = {
    "replayed": Scenario([ask("run 201"), ask("replayed 201"), ask("replayed 201")]),
    "no key": Scenario([ask("run 201", headers=()), ask("run 201", headers=())]),
    "required": Scenario([ask("400 idempotency_key_missing", headers=())], {"use": "required"}),
    "malformed": Scenario([ask("400 idempotency_key_invalid", headers=(("Idempotency-Key", "a b"),))]),
    "bare or quoted": Scenario([ask("run 201"), ask("replayed 201", headers=(("Idempotency-Key", "k-1"),))]),
    "strict": Scenario(
        [ask("400 idempotency_key_invalid", headers=(("Idempotency-Key", "k-1"),))], {"strict": True}
    ),
    "off": Scenario([ask("run 201"), ask("run 201")], {"use": "off"}),
    "reading": Scenario([ask("run 201", method="GET"), ask("run 201", method="GET")]),
    "put by route": Scenario(
        [
            ask("run 201", method="PUT"),
            ask("replayed 201", method="PUT"),
            ask("run 201", method="DELETE"),
            ask("run 201", method="DELETE"),
        ],
        {"routes": [PUT]},
    ),
    "another payload": Scenario([ask("run 201"), ask("422 idempotency_key_reused", body=b'{"a": 2}')]),
    "another query": Scenario([ask("run 201"), ask("422 idempotency_key_reused", query="dry=1")]),
    "bytes": Scenario([ask("run 201"), ask("422 idempotency_key_reused", body=b'{"a":1}')]),
    "canonical JSON": Scenario(
        [ask("run 201"), ask("replayed 201", body=b'{"a":1}')], {"canonical_json": 1000}
    ),
    "large body": Scenario(
        [
            ask("run 201", body=b"x" * 1000),
            ask("replayed 201", body=b"x" * 1000),
            ask("422 idempotency_key_reused", body=b"x" * 1001),
        ],
        {"buffer_request": 10},
    ),
    "callers": Scenario(
        [
            ask("run 201", headers=(KEY, ("X-User", "alice"))),
            ask("run 201", headers=(KEY, ("X-User", "bob"))),
            ask("replayed 201", headers=(KEY, ("X-User", "alice"))),
            ask("run 201"),
            ask("run 201"),
        ],
        {"caller": "X-User", "single_tenant": False},
    ),
    "nobody": Scenario(
        [ask("400 idempotency_no_caller")], {"caller": "X-User", "single_tenant": False, "use": "required"}
    ),
    "too many": Scenario(
        [
            ask("run 201", headers=(KEY, ("X-User", "alice"))),
            ask("429 idempotency_too_many", headers=(("Idempotency-Key", "k-2"), ("X-User", "alice"))),
        ],
        {"caller": "X-User", "single_tenant": False, "max_records": 1},
    ),
    "body not kept": Scenario([ask("run 201"), ask("409 idempotency_body_not_kept")], {"max_answer": 3}),
    "an exception": Scenario([ask("failed", fails=True), ask("run 201"), ask("replayed 201")]),
    **{
        f"kept {status}": Scenario([ask(f"run {status}", status=status), ask(f"replayed {status}")])
        for status in (200, 201, 204, 301, 400, 409)
    },
    **{
        f"freed {status}": Scenario([ask(f"run {status}", status=status), ask("run 201")])
        for status in (408, 425, 429, 500, 502, 503)
    },
    "unknown": Scenario([ask("run 504", status=504), ask("409 idempotency_unknown")]),
    "unknown, again": Scenario([ask("run 504", status=504), ask("run 201")], {"on_unknown": "retry"}),
    "unknown, settled": Scenario(
        [ask("run 504", status=504), ask("replayed 200"), ask("replayed 200")], {"on_unknown": done}
    ),
    "unknown, not done": Scenario(
        [ask("run 504", status=504), ask("run 201"), ask("replayed 201")],
        {"on_unknown": lambda _: "not_done"},
    ),
}


class Driver:
    """One application under one protocol."""

    def __init__(self, make: Callable[..., Any], policy: dict[str, Any]) -> None:
        self.runs = 0
        self.asked = Ask("")
        facts = {"single_tenant": True, **policy}
        self.middleware = make(self.app, IdempotencyPolicy(**facts), store=MemoryIdempotencyStore())

    def app(self, *_: Any) -> Any:
        raise NotImplementedError

    def serve(self, sent: Ask) -> tuple[int, list[tuple[str, str]], bytes]:
        raise NotImplementedError

    def outcome(self, sent: Ask) -> str:
        """Send a request, and say what came of it."""
        self.asked, before = sent, self.runs
        try:
            status, lines, body = self.serve(sent)
        except LookupError:
            return "failed"
        names = {name.lower(): value for name, value in lines}
        if names.get("idempotency-replayed") == "true":
            assert self.runs == before
            assert "set-cookie" not in names
            return f"replayed {status}"
        if self.runs > before:
            assert ("set-cookie" in names) == (status != 204)
            return f"run {status}"
        reason = body.decode().split('"reason":"')[1].split('"')[0]
        assert names["content-type"] == "application/problem+json"
        return f"{status} {reason}"

    def headers(self) -> list[tuple[str, str]]:
        return [] if self.asked.status == 204 else [JSON, ("Set-Cookie", "a=1")]


class Asgi(Driver):
    def __init__(self, policy: dict[str, Any]) -> None:
        super().__init__(AsgiMiddleware, policy)

    async def app(self, _: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        while (await receive()).get("more_body", False):
            pass
        if self.asked.fails:
            raise LookupError
        lines = [(name.lower().encode(), value.encode()) for name, value in self.headers()]
        await send({"type": "http.response.start", "status": self.asked.status, "headers": lines})
        body = b"" if self.asked.status == 204 else b"done"
        await send({"type": "http.response.body", "body": body})

    def serve(self, sent: Ask) -> tuple[int, list[tuple[str, str]], bytes]:
        async def run() -> ScriptedASGI:
            request = ScriptedASGI(
                self.middleware,
                method=sent.method,
                path=sent.path,
                query=sent.query.encode(),
                headers=sent.headers,
                body=[sent.body],
            )
            return await request.run()

        server = asyncio.run(run())
        lines = [(name.decode(), value.decode()) for name, value in server.messages[0]["headers"]]
        body = b"".join(each["body"] for each in server.messages[1:])
        return server.messages[0]["status"], lines, body


class Wsgi(Driver):
    def __init__(self, policy: dict[str, Any]) -> None:
        super().__init__(WsgiMiddleware, policy)

    def app(self, environ: Any, start_response: Any) -> Any:
        self.runs += 1
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        if self.asked.fails:
            raise LookupError
        start_response(f"{self.asked.status} Whatever", self.headers())
        return [] if self.asked.status == 204 else iter([b"do", b"ne"])

    def serve(self, sent: Ask) -> tuple[int, list[tuple[str, str]], bytes]:
        server = ScriptedWSGI(
            self.middleware, method=sent.method, path=sent.path, query=sent.query, headers=sent.headers, body=sent.body
        ).run()  # fmt: skip
        return int(server.status[:3]), server.headers, server.body


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_b88_both_protocols_do_the_same(scenario: Scenario) -> None:
    expected = [each.outcome for each in scenario.asks]
    counted = []
    for kind in (Asgi, Wsgi):
        driver = kind(scenario.policy)
        assert [driver.outcome(each) for each in scenario.asks] == expected, kind.__name__
        counted.append(driver.middleware.desk.figures.outcomes())
    assert counted[0] == counted[1]
