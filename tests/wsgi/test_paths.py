"""Field case B10 in its WSGI form: nobody reaches a protected class by a path trick."""

from __future__ import annotations

import pytest

from resilient_mw import RouteRule, ServerPolicy
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import hello

RULES = [
    RouteRule("/v1.0", priority="critical"),
    RouteRule("/a+b", priority="critical"),
    RouteRule("/reports/*", priority="sheddable"),
    RouteRule("/items/{id}", methods=["POST"], priority="critical"),
    RouteRule("/früh", priority="critical"),
]


def treated_as(path: str, *, script_name: str = "", method: str = "GET") -> tuple[str, str]:
    """Return route template and class that a request to this path was counted under."""
    policy = ServerPolicy(routes=RULES)
    ScriptedWSGI(ResilienceMiddleware(hello, policy), path=path, script_name=script_name, method=method).run()
    (counted,) = [route for route in guard_of(policy).snapshot().routes if route.arrived]
    return counted.route, counted.priority


@pytest.mark.parametrize("script_name", ["", "/api", "/product"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_b10_the_exact_health_path_is_exempt_below_any_root(script_name: str, method: str) -> None:
    assert treated_as("/health", script_name=script_name, method=method) == ("/health", "exempt")


@pytest.mark.parametrize("script_name", ["", "/api", "/health"])
@pytest.mark.parametrize(
    "path",
    [
        "/healthz-admin", "/health/../admin", "/health/", "//health", "/HEALTH", "/health%2f", "/health;x", "/health ",
        "/healthx", "/health\x00", "/health?", "/x/health", "/admin/health", "", "/", "/health\xa0", "/ｈealth",
    ],
)  # fmt: skip
def test_b10_nothing_else_is(path: str, script_name: str) -> None:
    assert treated_as(path, script_name=script_name)[1] == "normal"


def test_b10_a_health_path_is_exempt_for_reading_only() -> None:
    assert treated_as("/health", method="POST")[1] == "normal"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1.0", ("/v1.0", "critical")),
        ("/v1x0", ("unmatched", "normal")),
        ("/a+b", ("/a+b", "critical")),
        ("/aab", ("unmatched", "normal")),
        ("/reports", ("/reports/*", "sheddable")),
        ("/reports/7/pdf", ("/reports/*", "sheddable")),
        ("/reportsx", ("unmatched", "normal")),
        ("/früh", ("/früh", "critical")),
    ],
)
def test_b10_rules_are_text_and_end_at_segments(path: str, expected: tuple[str, str]) -> None:
    assert treated_as(path) == expected
    assert treated_as(path, script_name="/product") == expected


def test_rules_know_methods() -> None:
    assert treated_as("/items/5", method="POST") == ("/items/{id}", "critical")
    assert treated_as("/items/5", method="GET") == ("unmatched", "normal")


@pytest.mark.parametrize("path", ["\xff\xfe", "/\xe9", "/\udcff", "/€"])
def test_a_path_that_no_server_should_hand_over_is_served_and_counted(path: str) -> None:
    policy = ServerPolicy()
    server = ScriptedWSGI(
        ResilienceMiddleware(hello, policy), extra={"PATH_INFO": path}, validate=False
    ).run()
    assert server.body == b"hello"
    assert guard_of(policy).snapshot().guard_errors == 0


def test_an_environ_without_the_optional_keys_is_served() -> None:
    policy = ServerPolicy()
    server = ScriptedWSGI(ResilienceMiddleware(hello, policy), validate=False)
    for key in ("PATH_INFO", "SCRIPT_NAME", "REMOTE_ADDR", "QUERY_STRING"):
        del server.environ[key]
    assert server.run().body == b"hello"
    assert guard_of(policy).snapshot().guard_errors == 0
