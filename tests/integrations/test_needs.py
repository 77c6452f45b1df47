"""A dependency that a route cannot do without, through both middlewares and the marks of their frameworks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.testclient import TestClient

from resilient_mw import ResilienceWarning, RouteRule, ServerPolicy, current, degradable, exempt, priority
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.core import ports
from resilient_mw.runtime.guard import guard_of
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from tests.runtime.downed import OPEN_FOR, Downed


def cheap() -> dict[str, str]:
    return {"by": "cheap"}


async def cheap_async() -> dict[str, str]:
    return cheap()


def full() -> dict[str, str]:
    return {"by": "full"}


def endpoints(name: str) -> dict[str, Callable[[], Any]]:
    """The endpoints of a test by path; `name` is what two of them cannot do without."""

    @priority("normal", needs=name)
    def needs() -> dict[str, str]:
        return full()

    @degradable(cheap)
    @priority("normal", needs=name)
    def below() -> dict[str, str]:
        return full()

    @priority("normal", needs=name)
    @degradable(cheap)
    def above() -> dict[str, str]:
        return full()

    @degradable(cheap)
    def section() -> dict[str, str]:
        with current().within(1.0):
            return full()

    @exempt
    @priority("normal", needs=name)
    def probe() -> dict[str, str]:
        return full()

    def other() -> dict[str, str]:
        return full()

    return {
        "/needs": needs, "/below": below, "/above": above, "/rule": other, "/rule-degradable": section,
        "/probe": probe, "/other": full,
    }  # fmt: skip


def policy_for(name: str, **fields: Any) -> ServerPolicy:
    rules = [RouteRule("/rule", needs=name), RouteRule("/rule-degradable", needs=name)]
    return ServerPolicy(routes=rules, **fields)


def fastapi_client(name: str, policy: ServerPolicy) -> Any:
    app = FastAPI()
    for path, endpoint in endpoints(name).items():
        app.get(path)(endpoint)

    @app.get("/async")
    @degradable(cheap_async)
    @priority("normal", needs=name)
    async def asynchronous() -> dict[str, str]:
        return full()

    app.add_middleware(AsgiMiddleware, policy=policy)
    return TestClient(app)


def flask_client(name: str, policy: ServerPolicy) -> Any:
    app = Flask("needs")
    for number, (path, endpoint) in enumerate(endpoints(name).items()):
        app.add_url_rule(path, endpoint=str(number), view_func=endpoint)
    app.wsgi_app = WsgiMiddleware(app.wsgi_app, policy)  # type: ignore[method-assign]
    return app.test_client()


STACKS = pytest.mark.parametrize("stack", [fastapi_client, flask_client])


def seen(client: Any, path: str) -> tuple[int, str | None, str | None]:
    """Status, who answered or why nobody did, and the mark of a cheaper answer."""
    answer = client.get(path)
    document = answer.json() if callable(answer.json) else answer.json or {}
    answer.close()
    return answer.status_code, document.get("by", document.get("reason")), answer.headers.get("x-degraded")


@STACKS
def test_it_is_refused_on_arrival_or_answered_by_the_variant(stack: Any) -> None:
    downed = Downed(f"needs-{stack.__name__}")
    policy = policy_for(downed.dependency.name)
    client = stack(downed.dependency.name, policy)
    paths = list(endpoints("any")) + (["/async"] if stack is fastapi_client else [])
    for path in paths:
        assert seen(client, path) == (200, "full", None), path
    downed.open()
    for path in ("/needs", "/rule"):
        answer = client.get(path)
        assert seen(client, path) == (503, "dependency_unavailable", None)
        assert OPEN_FOR <= int(answer.headers["retry-after"]) <= OPEN_FOR * 1.4 + 1
        assert answer.headers["x-refusal-reason"] == "dependency_unavailable"
    for path in ("/below", "/above", "/rule-degradable", *(["/async"] if stack is fastapi_client else [])):
        assert seen(client, path) == (200, "cheap", "1"), path
    for path in ("/probe", "/other"):
        assert seen(client, path) == (200, "full", None)
    downed.clock.advance(OPEN_FOR)  # now it is to be tried again
    for path in paths:
        assert seen(client, path) == (200, "full", None)
    refused = {each.route: each.refused for each in policy.snapshot().routes if each.refused}
    assert refused == {
        "/needs": {"dependency_unavailable": 2},
        "/rule": {"dependency_unavailable": 2},
    }
    assert all(each.slots == 0 for each in policy.snapshot().classes)


@STACKS
def test_an_unknown_name_is_warned_of_at_start_and_refuses_nothing(stack: Any) -> None:
    policy = policy_for("nobody-has-this-name")
    client = stack("nobody-has-this-name", policy)
    with pytest.warns(ResilienceWarning) as told:
        assert seen(client, "/needs") == (200, "full", None)
    (text,) = [str(each.message) for each in told if "needs=" in str(each.message)]
    assert text.startswith("needs='nobody-has-this-name' names no dependency")
    assert "Dependency('nobody-has-this-name', ...)" in text


@STACKS
def test_a_known_name_is_not_warned_of(stack: Any) -> None:
    downed = Downed(f"known-to-{stack.__name__}")
    client = stack(downed.dependency.name, policy_for(downed.dependency.name))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert seen(client, "/needs") == (200, "full", None)
    assert [str(each.message) for each in told if "needs=" in str(each.message)] == []


@STACKS
def test_if_the_choice_of_a_variant_breaks_the_endpoint_answers(
    stack: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    downed = Downed(f"choice-under-{stack.__name__}")
    downed.open()
    policy = policy_for(downed.dependency.name)
    client = stack(downed.dependency.name, policy)
    seen(client, "/other")

    def broken() -> list[Any]:
        raise LookupError("no dependencies")

    monkeypatch.setattr(ports, "dependency_sources", broken)
    for _ in range(3):
        assert seen(client, "/below") == (200, "full", None)
    # Three times at the arrival and three times at the choice; each is logged once a minute.
    assert guard_of(policy).listeners.errors == 6
    failures = [record.getMessage() for record in caplog.records if record.name == "resilient_mw"]
    assert len(failures) == 2
