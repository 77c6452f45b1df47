"""Field case B95 in its WSGI form: what each value of a deadline header does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw import ServerPolicy, current
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import hello

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

NAME = "X-Request-Timeout-Ms"


class Asked:
    """What became of one request: its budget if it ran, the status, what was counted as ignored."""

    def __init__(self, headers: list[tuple[str, str]], peer: str = "203.0.113.9", **fields: Any) -> None:
        policy = ServerPolicy(**{"deadline_default": 10.0, "deadline_maximum": 60.0, **fields})
        use_clock(policy, ManualClock())
        self.budget: float | None = None
        self.server = ScriptedWSGI(ResilienceMiddleware(self.app, policy), headers=headers, peer=peer).run()
        snapshot = guard_of(policy).snapshot()
        self.status = int(self.server.status[:3])
        self.ignored = dict(snapshot.ignored_headers)
        assert snapshot.guard_errors == 0

    def app(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        self.budget = current().remaining()
        return hello(environ, start_response)


@pytest.mark.parametrize(
    "value",
    [
        "-1", "-0", "0.0004", "+5", "", "5s", "5000ms", "1e3", "1_000", "NaN", "nan", "inf", "-inf", "Infinity",
        "0x10", "5,1", "5, 1", "1" + "0" * 30, "٥", "５", "²", "5\x00", "5 000", "5;1", "9" * 1_048_576, "é", "ä" * 50,
    ],
)  # fmt: skip
def test_b95_what_is_outside_the_grammar_is_as_if_absent_and_counted(value: str) -> None:
    for text in (value, value.encode().decode("latin-1")):
        asked = Asked([(NAME, text)])
        assert (asked.status, asked.budget) == (200, 10.0)
        assert asked.ignored == {"x-request-timeout-ms": 1}


@pytest.mark.parametrize(
    ("value", "budget"),
    [("5000", 5.0), ("5000 ", 5.0), ("\t5000", 5.0), ("05000", 5.0), ("9999999999", 10.0)],
)
def test_b95_what_is_inside_the_grammar_is_used_and_bounded(value: str, budget: float) -> None:
    asked = Asked([(NAME, value)])
    assert (asked.status, asked.budget, asked.ignored) == (200, budget, {})


@pytest.mark.parametrize("value", ["0", "00", " 0 ", "0000000000"])
def test_b95_zero_is_refused_at_once(value: str) -> None:
    asked = Asked([(NAME, value)])
    assert (asked.status, asked.budget) == (504, None)
    assert asked.server.header("X-Refusal-Reason") == "expired_on_arrival"
    assert asked.server.header("Retry-After") is None


def test_zero_of_envoys_header_is_as_if_absent() -> None:
    asked = Asked([("X-Envoy-Expected-Rq-Timeout-Ms", "0")])
    assert (asked.status, asked.budget) == (200, 10.0)
    assert asked.ignored == {"x-envoy-expected-rq-timeout-ms": 1}


def test_b95_the_same_field_twice_is_ignored() -> None:
    asked = Asked([(NAME, "5"), (NAME, "1")])
    assert (asked.status, asked.budget, asked.ignored) == (200, 10.0, {"x-request-timeout-ms": 1})


def test_a_budget_that_is_too_small_is_refused() -> None:
    asked = Asked([(NAME, "3")], smallest_budget=0.005)
    assert (asked.status, asked.budget) == (504, None)
    assert asked.server.header("X-Refusal-Reason") == "insufficient_budget"


def test_of_several_formats_the_smallest_wins() -> None:
    headers = [(NAME, "4000"), ("grpc-timeout", "3S"), ("Connect-Timeout-Ms", "5000")]
    assert Asked(headers).budget == 3.0


def test_a_trusted_peer_may_lengthen_and_is_never_raised() -> None:
    trusted = {"trusted_peers": ["10.0.0.0/8"], "deadline_minimum": 2.0}
    assert Asked([(NAME, "30000")], "10.1.2.3", **trusted).budget == 30.0
    assert Asked([(NAME, "90000")], "10.1.2.3", **trusted).budget == 60.0
    assert Asked([(NAME, "100")], "10.1.2.3", **trusted).budget == 0.1
    assert Asked([(NAME, "30000")], "192.0.2.1", **trusted).budget == 10.0
    assert Asked([(NAME, "100")], "192.0.2.1", **trusted).budget == 2.0
    for unknown in ("", "unix:", "not an address"):
        assert Asked([(NAME, "30000")], unknown, **trusted).budget == 10.0
