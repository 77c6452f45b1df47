"""Route rules, the path index against a naive matcher, and the path below a root path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.marks import Mark
from resilient_mw.core.routes import PathIndex, RouteRule, below_root, may_overlap, rule_index
from resilient_mw.core.streams import StreamRule

# -- rules


def test_a_rule_says_what_it_is_given() -> None:
    rule = RouteRule(
        "/a/{id}",
        methods=["get", "POST"],
        priority="critical",
        cost=3,
        deadline_default=2,
        deadline_maximum=5.0,
    )
    assert rule.path == "/a/{id}"
    assert rule.methods == {"GET", "POST"}
    assert rule.mark == Mark("critical", 3, DeadlineRule(2.0, None, 5.0))
    assert repr(rule) == "RouteRule('/a/{id}', methods=['GET', 'POST'])"
    assert RouteRule("/a").mark == Mark()
    stream = RouteRule("/a", slot="head", deadline_covers="gaps", deadline_idle=2).mark.stream
    assert stream == StreamRule("head", "gaps", 2.0)


@pytest.mark.parametrize(
    "path",
    [
        "", "a", "a/", "*", "https://example.org/a", "/*/a", "/a*", "/a/*/b", "/a/**", "/a/*/*", "//*x",
        None, 5, b"/a", ["/a"],
    ],
)  # fmt: skip
def test_a_path_that_is_no_pattern_is_an_error(path: Any) -> None:
    with pytest.raises(ValueError, match="^RouteRule.path=.* is not allowed: it must ") as caught:
        RouteRule(path)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "/v{n}/admin",  # it would match every segment, not only those that begin with a v
        "/{a}{b}", "/{}", "/{", "/}", "/a{", "/{id", "/id}", "/{a b}", "/{1}",
        "/{id:int}",  # frameworks check the type, a rule does not
        "/files/{rest:path}",  # a rule's way to say this is /files/*
        "/<id>", "/<int:id>", "/a<b>", "/<path:rest>",  # Flask's way to say {id}
    ],
)  # fmt: skip
def test_a_segment_that_says_more_than_a_rule_can_check_is_an_error(path: str) -> None:
    with pytest.raises(ValueError, match=r"^RouteRule.path=.* is not allowed: .*'\{name\}'"):
        RouteRule(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("methods", "GET"),
        ("methods", [b"GET"]),
        ("methods", [""]),
        ("methods", ["GET,POST"]),
        ("methods", ["GET "]),
        ("methods", 5),
        ("methods", None),
        ("priority", ""),
        ("priority", "a b"),
        ("priority", 1),
        ("cost", 0),
        ("cost", -1),
        ("cost", 1.5),
        ("cost", True),
        ("deadline_default", 0),
        ("deadline_default", float("nan")),
        ("deadline_default", 86_401),
        ("deadline_minimum", -1),
        ("deadline_minimum", "1"),
        ("deadline_maximum", 0),
        ("deadline_maximum", float("inf")),
        ("slot", "gaps"),
        ("slot", 1),
        ("deadline_covers", "tail"),
        ("deadline_idle", 0),
        ("deadline_idle", float("nan")),
    ],
)
def test_wrong_values_are_errors_that_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match="is not allowed: it must be") as caught:
        RouteRule("/a", **{field: value})
    culprit = value[0] if isinstance(value, list) else value
    assert f"RouteRule.{field}=" in str(caught.value)
    assert repr(culprit) in str(caught.value)


def test_a_minimum_above_the_maximum_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"^RouteRule\.deadline_minimum=3\.0 is not allowed: .* at most .*2\.0"
    ):
        RouteRule("/a", deadline_minimum=3, deadline_maximum=2)


# -- which rule a path reaches


def _reached(path: str, *patterns: str) -> list[str]:
    return [rule.path for rule in rule_index(RouteRule(pattern) for pattern in patterns).candidates(path)]


@pytest.mark.parametrize(
    "path",
    [
        "/healthz-admin", "/health/../admin", "//health", "/HEALTH", "/health%2f", "/health%2F", "/health/",
        "/health//", "/./health", "/health/.", "/health;x", "/health?x", "/health#x", "/health ", " /health",
        "/health\n", "/health\x00", "health", "x/health", "http:/health", "http://host/health", "*", "", "/", "/healt", "\\health",
        "/health\\", "/ｈealth",
    ],
)  # fmt: skip
def test_no_path_trick_reaches_an_exact_rule(path: str) -> None:
    """B10."""
    assert _reached(path, "/health") == []


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("/reports", True),
        ("/reports/", True),
        ("/reports/a", True),
        ("/reports/a/b/", True),
        ("/reportsx", False),
        ("/reports-x/a", False),
        ("/report", False),
        ("/Reports/a", False),
        ("//reports/a", False),
        ("/x/reports/a", False),
        ("x/reports/a", False),
        ("/reports/../admin", True),  # as the framework routes it: by segments, not as a file system would
    ],
)
def test_everything_below_ends_at_a_segment_boundary(path: str, reached: bool) -> None:
    assert _reached(path, "/reports/*") == (["/reports/*"] if reached else [])


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "//", "/a//b"])
def test_the_rule_for_everything(path: str) -> None:
    assert _reached(path, "/*") == ["/*"]


@pytest.mark.parametrize("text", ["/v1.0", "/a+b", "/a(b)?", "/[a]", "/a|b", "/$x^"])
def test_characters_of_regular_expressions_mean_themselves(text: str) -> None:
    """B10."""
    assert _reached(text, text) == [text]
    assert _reached(text.replace(".", "x").replace("+", "a"), text) in ([], [text])
    assert _reached("/v1x0", "/v1.0") == []
    assert _reached("/aab", "/a+b") == []


def test_a_parameter_is_one_segment_that_is_not_empty() -> None:
    assert _reached("/items/1", "/items/{id}") == ["/items/{id}"]
    assert _reached("/items/", "/items/{id}") == []
    assert _reached("/items/1/2", "/items/{id}") == []
    assert _reached("/items/{id}", "/items/{id}") == ["/items/{id}"]
    assert _reached("/items//x", "/items/{id}/x") == []


def test_rules_keep_their_order() -> None:
    patterns = ["/a/*", "/a/{x}", "/*", "/a/b", "/{x}/b", "/{x}/{y}", "/a/b/*"]
    assert _reached("/a/b", *patterns) == patterns


SEGMENTS = ["a", "b", "", "{x}", "a.b", "A"]
patterns = st.lists(st.sampled_from(SEGMENTS), max_size=4).map(lambda segments: "/" + "/".join(segments))
paths = st.lists(st.sampled_from([*SEGMENTS, "zz", "%61", ".."]), max_size=5).map(
    lambda segments: "/" + "/".join(segments)
)


def _matches(pattern: str, below: bool, path: str) -> bool:
    ours, theirs = pattern.split("/"), path.split("/")
    if len(theirs) < len(ours) or (len(theirs) > len(ours) and not below):
        return False
    return all(
        mine == other or ("{" in mine and other != "") for mine, other in zip(ours, theirs, strict=False)
    )


@given(st.lists(st.tuples(patterns, st.booleans()), max_size=8), st.lists(paths, min_size=1, max_size=8))
@example([("/a", False), ("/{x}", True)], ["/a/b", "/a", "/a/"])
def test_the_index_finds_what_trying_all_patterns_finds(
    added: list[tuple[str, bool]], asked: list[str]
) -> None:
    index: PathIndex[int] = PathIndex()
    for number, (pattern, below) in enumerate(added):
        index.add(pattern, number, below=below)
    for path in asked:
        expected = [number for number, (pattern, below) in enumerate(added) if _matches(pattern, below, path)]
        assert list(index.candidates(path)) == expected


@given(st.text(), st.lists(patterns, max_size=3))
def test_any_text_is_a_path_that_can_be_asked_for(path: str, added: list[str]) -> None:
    index: PathIndex[str] = PathIndex()
    for pattern in added:
        index.add(pattern, pattern)
    for found in index.candidates(path):
        assert _matches(found, below=False, path=path)


def test_finding_takes_no_longer_with_many_rules() -> None:
    """Counted in look-ups, not in time: each segment is looked up once for each node that is still possible."""

    class Counted(dict[str, Any]):
        looked_up = 0

        def get(self, key: str, default: Any = None) -> Any:
            Counted.looked_up += 1
            return super().get(key, default)

    index: PathIndex[int] = PathIndex()
    for number in range(1000):
        index.add(f"/a{number}/b{number}/c", number)
    pending = [index._root]
    while pending:
        node = pending.pop()
        pending += node.literal.values()
        node.literal = Counted(node.literal)
    assert list(index.candidates("/a500/b500/c")) == [500]
    assert Counted.looked_up == 3


# -- rules that match no route


@pytest.mark.parametrize(
    ("rule", "template", "expected"),
    [
        ("/a", "/a", True),
        ("/a", "/b", False),
        ("/a", "/a/b", False),
        ("/a/b", "/a", False),
        ("/a/*", "/a", True),
        ("/a/*", "/a/b/{c}", True),
        ("/a/*", "/b/a", False),
        ("/*", "/anything/at/all", True),
        ("/{x}", "/a", True),
        ("/a", "/{x}", True),
        ("/a/b", "/{x}/c", False),
        ("/a/b", "/{rest:path}", True),
        ("/a/b/c", "/a/{rest:path}", True),
        ("/b/b/c", "/a/{rest:path}", False),
        ("/files/a/b", "/files/<path:rest>", True),
        ("/user/7", "/user/<int:id>", True),
        ("/user-7", "/user-<id>", True),  # a parameter inside a segment, Flask's way
        ("/user-7", "/user-{id}", True),  # and Starlette's
        ("/user-7/x", "/user-<id>/y", False),
        ("/items/{id}", "/items/", True),
    ],
)
def test_whether_a_rule_may_match_a_route(rule: str, template: str, expected: bool) -> None:
    assert may_overlap(RouteRule(rule), template) is expected


@given(patterns, st.booleans(), paths)
def test_a_rule_that_matches_a_path_overlaps_the_route_of_that_path(
    pattern: str, below: bool, path: str
) -> None:
    rule = RouteRule(pattern.rstrip("/") + "/*" if below else pattern)
    if rule_index([rule]).candidates(path):
        assert may_overlap(rule, path), "or the start would warn about a rule that works"


# -- the root path


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/health", "", "/health"),
        ("/api/health", "/api", "/health"),  # ASGI: the root is part of the path
        ("/health", "/api", "/health"),  # WSGI, and servers before ASGI 3.0 said so
        ("/api", "/api", "/"),
        ("/api/", "/api", "/"),
        ("/product/x", "/product", "/x"),
        ("/products", "/product", "/products"),
        ("/products/x", "/product", "/products/x"),
        ("/api/api/health", "/api", "/api/health"),
        ("/API/health", "/api", "/API/health"),
        ("/a+b/x", "/a+b", "/x"),
        ("/v1.0/x", "/v1.0", "/x"),
        ("/v1x0/x", "/v1.0", "/v1x0/x"),
        ("//api/health", "/api", "//api/health"),
        ("", "", ""),
        ("", "/api", ""),
    ],
)
def test_the_path_below_a_root(path: str, root: str, expected: str) -> None:
    """B10: the root is taken off at a segment boundary, as text and not as a pattern."""
    assert below_root(path, root) == expected
