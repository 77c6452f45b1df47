from __future__ import annotations

import pytest

from resilient_mw.core.cors import EXPOSED, Cors

READABLE = ("Access-Control-Expose-Headers", "Retry-After, X-Refusal-Reason")


def test_by_default_nobody_is_named() -> None:
    cors = Cors()
    assert (cors.always, cors.by_origin, cors.vary) == ((), {}, "Accept")


@pytest.mark.parametrize("origins", ["*", ["*"], ("*",)])
def test_everybody_is_named_always_and_never_with_credentials(origins: str | list[str]) -> None:
    cors = Cors(origins)
    assert READABLE == EXPOSED
    assert cors.always == (("Access-Control-Allow-Origin", "*"), EXPOSED)
    assert (cors.by_origin, cors.vary) == ({}, "Accept")
    with pytest.raises(ValueError, match=r"^cors_credentials=True is not allowed with cors_origins='\*'"):
        Cors(origins, True)


@pytest.mark.parametrize(
    "origin",
    [
        "https://a",
        "http://localhost:3000",
        "https://a.b-c.example:8443",
        "http://127.0.0.1",
        "http://[::1]:81",
        "capacitor://localhost",
        "chrome-extension://abcdef",
        "https://a:80",
        "http://a:443",
    ],
)
@pytest.mark.parametrize("credentials", [False, True])
def test_an_origin_is_named_to_itself_only(origin: str, credentials: bool) -> None:
    cors = Cors([origin, "https://other.example"], credentials)
    lines = [("Access-Control-Allow-Origin", origin), READABLE]
    if credentials:
        lines.insert(1, ("Access-Control-Allow-Credentials", "true"))
    assert list(cors.by_origin) == [origin, "https://other.example"]
    assert list(cors.by_origin[origin]) == lines
    assert (cors.always, cors.vary) == ((), "Accept, Origin")


@pytest.mark.parametrize(
    ("origins", "credentials", "message"),
    [
        (["*", "https://a"], False, r"^cors_origins=.* is not allowed: '\*' must stand alone"),
        ((), True, "^cors_credentials=True is not allowed without cors_origins"),
    ],
)
def test_what_contradicts_itself_is_an_error(origins: list[str], credentials: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cors(origins, credentials)
