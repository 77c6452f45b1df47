"""Match rules: one host has one spelling, a path is below another one or the same, and nothing else matches."""

from __future__ import annotations

import itertools

import pytest

from resilient_mw.calls.match import MatchRule, Target, one_spelling, parse_rule, target


def _matches(pattern: str, scheme: str, host: str, port: int | None, path: str) -> bool:
    return parse_rule(pattern).matches(target(scheme, host, port, path))


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("http://prices/*", "/", True),
        ("http://prices/*", "/a/b?c", True),
        ("http://prices/*", "", True),
        ("http://prices", "/a", True),
        ("http://prices/v1/*", "/v1/x", True),
        ("http://prices/v1/*", "/v1/", True),
        ("http://prices/v1/*", "/v1", False),
        ("http://prices/v1/*", "/v12", False),
        ("http://prices/v1/*", "/V1/x", False),
        ("http://prices/price", "/price", True),
        ("http://prices/price", "/price/", False),
        ("http://prices/price", "/prices", False),
    ],
)
def test_paths(pattern: str, path: str, expected: bool) -> None:
    assert _matches(pattern, "http", "prices", None, path) is expected


@pytest.mark.parametrize("host", ["api.example", "API.Example", "api.example.", "API.EXAMPLE."])
@pytest.mark.parametrize(("pattern_port", "port"), [("", None), (":443", None), ("", 443), (":443", 443)])
def test_b74_one_host_is_one_whatever_its_spelling(host: str, pattern_port: str, port: int | None) -> None:
    for written in ("api.example", "Api.Example."):
        assert _matches(f"https://{written}{pattern_port}/*", "HTTPS", host, port, "/")


@pytest.mark.parametrize(
    ("scheme", "host", "port"),
    [
        ("http", "api.example", None),  # another scheme, and so another port
        ("http", "api.example", 443),
        ("https", "api.example", 8443),
        ("https", "api.example.evil", None),
        ("https", "evil-api.example", None),
        ("https", "example", None),
        ("https", "api.example..", None),
        ("https", "", None),
    ],
)
def test_b62_other_places_do_not_match(scheme: str, host: str, port: int | None) -> None:
    assert not _matches("https://api.example/*", scheme, host, port, "/")


def test_b74_international_names_have_one_ascii_form() -> None:
    ascii_form = "xn--bcher-kva.example"
    for written, asked in itertools.product(
        ["bücher.example", "BÜCHER.example.", ascii_form, "XN--BCHER-KVA.example"], repeat=2
    ):
        assert _matches(f"http://{written}/*", "http", asked, None, "/")
    assert one_spelling("bücher.example") == ascii_form


def test_a_name_with_two_ascii_forms_is_neither_of_them() -> None:
    # `strasse.example` and `xn--strae-oqa.example` are two hosts, and both have been meant by this spelling.
    for rule in ("http://strasse.example/*", "http://xn--strae-oqa.example/*"):
        assert not _matches(rule, "http", "straße.example", None, "/")
    with pytest.raises(ValueError, match="write this host in its ASCII form"):
        parse_rule("http://straße.example/*")


def test_what_is_no_name_matches_nothing_and_breaks_nothing() -> None:
    for host in ("ü" * 100, "a..ü", "\ud800", "[zz::]"):
        assert not _matches("http://prices/*", "http", host, None, "/")


def test_b74_addresses_have_one_spelling() -> None:
    for written, asked in itertools.product(
        ["[::1]", "[0:0:0:0:0:0:0:1]", "[0::0001]"], ["::1", "[::1]", "0::1"]
    ):
        assert _matches(f"http://{written}:8000/*", "http", asked, 8000, "/")
    assert not _matches("http://[::1]/*", "http", "::2", None, "/")
    assert _matches("http://127.0.0.1:9/*", "http", "127.0.0.1", 9, "/")


@pytest.mark.parametrize(
    "pattern",
    [
        "", "prices", "prices/*", "//prices/*", "ftp://prices/*", "http:///x", "http://*x/x", "http://a.*.example/*",
        "http://prices/a*", "http://prices/*/a", "http://prices/**", "http://prices/*?x=1", "http://prices/?x",
        "http://prices/#a", "http://user@prices/*", "http://user:secret@prices/*", "http://@prices/*",
        "http://prices:http/*", "http://prices:99999/*", "http://pri ces/*", "http://[::1/*", "http://a..b/*", "http://ü..b/*",
        "http://.prices/*", 5, None, b"http://prices/*", ("http://prices/*",),
    ],
)  # fmt: skip
def test_wrong_patterns_say_what_is_allowed(pattern: object) -> None:
    with pytest.raises(ValueError, match=r"match=.* is not allowed: it must be like 'http://prices/\*'"):
        parse_rule(pattern)


def test_a_rule_covers_what_it_matches_all_of() -> None:
    patterns = [
        "http://a/*", "http://a/x/*", "http://a/x/y", "http://a/x", "http://a/x/", "http://b/*", "https://a/*",
        "http://a:80/x/*", "http://a:81/*",
    ]  # fmt: skip
    paths = ["/", "/x", "/x/", "/x/y", "/x/y/z", "/z"]
    targets = [
        Target(scheme, host, port, path)
        for scheme, host, port in (
            ("http", "a", 80),
            ("http", "b", 80),
            ("https", "a", 443),
            ("http", "a", 81),
        )
        for path in paths
    ]
    rules: list[MatchRule] = [parse_rule(pattern) for pattern in patterns]
    for first, second in itertools.product(rules, rules):
        expected = all(first.matches(each) for each in targets if second.matches(each))
        assert first.covers(second) is expected, (first.pattern, second.pattern)


@pytest.mark.parametrize(
    ("pattern", "scheme", "host", "port", "expected"),
    [
        ("https://*/*", "https", "x1.example", None, True),
        ("https://*/*", "https", "x1.example", 8443, True),
        ("https://*/*", "http", "x1.example", 443, False),
        ("https://*/*", "https", "", None, False),
        ("https://*:443/*", "https", "x1.example", None, True),
        ("https://*:443/*", "https", "x1.example", 8443, False),
        ("https://*.Example/*", "https", "A.X1.EXAMPLE.", None, True),
        ("https://*.example/*", "https", "example", None, False),
        ("https://*.example/*", "https", "evilexample", None, False),
        ("https://*.b\u00fccher.example/*", "https", "a.xn--bcher-kva.example", None, True),
    ],
)
def test_many_hosts(pattern: str, scheme: str, host: str, port: int | None, expected: bool) -> None:
    assert _matches(pattern, scheme, host, port, "/") is expected


@pytest.mark.parametrize("pattern", ["https://a*/*", "https://a.*.b/*", "https://**/*", "https://*./*."])
def test_a_star_stands_for_the_beginning_of_a_host_only(pattern: str) -> None:
    with pytest.raises(ValueError, match="match="):
        parse_rule(pattern)


def test_rules_for_many_hosts_cover_others() -> None:
    every, some, one = (parse_rule(f"https://{host}/*") for host in ("*", "*.example", "api.example"))
    assert every.covers(some)
    assert every.covers(one)
    assert some.covers(one)
    assert some.covers(some)
    assert not some.covers(every)
    assert not one.covers(some)
    assert not parse_rule("https://*:443/*").covers(every)
