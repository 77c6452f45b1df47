"""The rows of a route say what the middleware does: both are asked about the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw import PriorityClass, RouteRule, ServerPolicy, deadline, exempt, priority
from resilient_mw.asgi import ResilienceMiddleware as Asgi
from resilient_mw.cli.facts import AppFacts
from resilient_mw.cli.gather import gather
from resilient_mw.cli.locate import find
from resilient_mw.cli.treatments import Treatment, covers, treatments
from resilient_mw.core.routes import RouteRule as Rule
from resilient_mw.core.routes import may_overlap, rule_index
from resilient_mw.runtime.protection import Protection
from resilient_mw.wsgi import ResilienceMiddleware as Wsgi
from tests.integrations.conftest import entry_points, own_marks
from tests.integrations.serving import http_scope, wsgi_environ

__all__ = ["entry_points", "own_marks"]

POLICY = {
    "limit": 20,
    "classes": [PriorityClass("critical"), PriorityClass("normal"), PriorityClass("sheddable")],
    "exempt_paths": ["/health", "/both"],
    "routes": [
        RouteRule("/items/special", priority="critical"),
        RouteRule("/items/{id}", methods=["GET", "PATCH"], cost=2, deadline_default=3),
        RouteRule("/both", methods=["POST", "GET"], priority="sheddable"),
        RouteRule("/items/*", deadline_maximum=7),
        RouteRule("/deep/*", priority="sheddable", deadline_minimum=1),
    ],
}
PATHS = {  # a path, and the template in each framework
    "/health": ("/health", "/health"),
    "/both": ("/both", "/both"),
    "/items/special": ("/items/{id}", "/items/<id>"),
    "/items/7": ("/items/{id}", "/items/<id>"),
    "/deep/a/b": ("/deep/{rest:path}", "/deep/<path:rest>"),
    "/marked": ("/marked", "/marked"),
    "/free": ("/free", "/free"),
}
MARKS = {
    "/items": deadline(default=5, maximum=30),
    "/deep": priority("critical", cost=4),
    "/marked": priority("sheddable", cost=3),
    "/free": exempt,
}


def endpoints(place: int) -> list[tuple[str, Any]]:
    found = []
    for path, templates in PATHS.items():

        def endpoint(**values: Any) -> str:
            return ""

        mark = next((mark for start, mark in MARKS.items() if path.startswith(start)), None)
        if path != "/items/special":
            found.append((templates[place], endpoint if mark is None else mark(endpoint)))
    return found


def row_of(facts: AppFacts, template: str, path: str, method: str) -> Treatment:
    """Return the first row that fits a request."""
    return next(
        row
        for row in treatments(facts)
        if row.template == template
        and (row.methods is None or method in row.methods)
        and (row.where is None or list(rule_index([Rule(row.where)]).candidates(path)))
    )


def told(row: Treatment) -> tuple[object, ...]:
    numbers = (row.deadline_default, row.deadline_minimum, row.deadline_maximum)
    return row.priority, row.cost, *numbers


def compare(protection: Protection, facts: AppFacts, place: int) -> None:
    seen = set()
    for path, templates in PATHS.items():
        for method in ("GET", "POST", "PATCH"):
            scope = http_scope(path, method) if place == 0 else wsgi_environ(path, method)
            entry = protection.table.entry(path, method, scope)
            row = row_of(facts, templates[place], path, method)
            rule = entry.deadline
            asked = (entry.priority, entry.cost, rule.default, rule.minimum, rule.maximum)
            assert told(row) == asked, (path, method)
            seen.add(asked)
    assert len(seen) > 6  # the requests are treated differently


def test_fastapi(entry_points: Path) -> None:
    app = FastAPI()
    for template, endpoint in endpoints(0):
        endpoint.__annotations__ = {}
        app.router.add_route(template, endpoint, methods=["GET", "POST", "PATCH"])
    app.add_middleware(Asgi, policy=ServerPolicy(**POLICY))  # type: ignore[arg-type]
    found = find(app, "app")
    found[0].protection.start(found[0].apps)
    compare(found[0].protection, gather("app", found).apps[0], 0)


def test_flask(entry_points: Path) -> None:
    app = Flask(__name__, static_folder=None)
    for number, (template, endpoint) in enumerate(endpoints(1)):
        app.add_url_rule(template, str(number), endpoint, methods=["GET", "POST", "PATCH"])
    app.wsgi_app = Wsgi(app.wsgi_app, ServerPolicy(**POLICY))  # type: ignore[method-assign, arg-type]
    found = find(app, "app")
    found[0].protection.start(found[0].apps)
    compare(found[0].protection, gather("app", found).apps[0], 1)


words = st.sampled_from(["a", "b", "ab"])
patterns = st.tuples(st.lists(st.one_of(words, st.just("{x}")), max_size=3), st.sampled_from(["", "/*"])).map(
    lambda parts: "".join(f"/{part}" for part in parts[0]) + parts[1] or "/"
)
parameters = st.sampled_from(["{p}", "{p:int}", "<p>", "<int:p>", "x-{p}", "{p:path}", "<path:p>", "*", ""])
templates = st.lists(st.one_of(words, parameters), min_size=1, max_size=4)
values = st.lists(st.sampled_from(["a", "b", "7", "ab"]), min_size=1, max_size=3)


@given(patterns, templates, values)
def test_a_rule_that_covers_a_route_matches_every_path_of_it(
    pattern: str, segments: list[str], filled: list[str]
) -> None:
    if "*" in segments[:-1]:
        segments = [segment for segment in segments if segment != "*"] or ["a"]
    template = "".join(f"/{segment}" for segment in segments)
    path = ""
    for segment in segments:
        if "path" in segment or segment == "*":
            path += "/" + "/".join(filled)
        elif segment[:1] in {"{", "<"} or segment.startswith("x-"):
            path += f"/{segment.partition('{')[0].partition('<')[0]}{filled[0]}"
        else:
            path += f"/{segment}"
    matches = bool(rule_index([Rule(pattern)]).candidates(path))
    if covers(pattern, template):
        assert matches
        assert may_overlap(Rule(pattern), template.replace("/*", "/{rest:path}"))
    if not matches:
        assert not covers(pattern, template)


@pytest.mark.parametrize(
    ("pattern", "template", "covered"),
    [
        ("/a", "/a", True),
        ("/a", "/{p}", False),
        ("/{x}", "/{p:int}", True),
        ("/{x}", "/<int:p>", True),
        ("/{x}", "/", False),
        ("/*", "/", True),
        ("/a/*", "/a", True),
        ("/a/*", "/a/{p:path}", True),
        ("/a/*", "/a/*", True),
        ("/a/{x}", "/a/{p:path}", False),
        ("/a/{x}/*", "/a/{p:path}", False),
        ("/a/b", "/a/{p:path}", False),
        ("/a/{x}", "/a", False),
    ],
)
def test_what_a_rule_covers(pattern: str, template: str, covered: bool) -> None:
    assert covers(pattern, template) is covered
