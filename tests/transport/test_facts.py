"""What happened on the wire, in the words of the call machine."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Failure, Head, Phase
from resilient_mw.core.rejection import REFUSAL_HEADER
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.transport.facts import failure_of, head_of
from resilient_mw.transport.prepare import can_repeat
from resilient_mw.transport.scope import Scope
from resilient_mw_integrations.httpx import LIBRARY

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT
PRICES = Dependency("prices", match="http://prices.test/*")


def head(status: int, *headers: tuple[str, str], trusted: bool = True) -> Head:
    dependency = Dependency("prices", match="http://prices.test/*", trusted=trusted)
    return head_of(dependency, httpx.Response(status, headers=list(headers)), NOW)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("Sun, 06 Nov 1994 08:49:40 GMT", 3),
        ("Sunday, 06-Nov-94 08:49:40 GMT", 3),
        ("Sun Nov  6 08:49:40 1994", 3),
        ("Sun, 06 Nov 1994 08:49:30 GMT", 0),
        ("Sun, 06 Nov 1994 08:49:40", None),
    ],
)
def test_b55_retry_after_without_a_date(value: str, seconds: int | None) -> None:
    assert head(503, ("Retry-After", value)).retry_after == seconds


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("Sun, 06 Nov 1994 07:49:37 GMT", 3603),
        ("Sun, 06 Nov 1994 09:49:37 GMT", 0),
        ("Sun, 06 Nov 1994 08:49:35 GMT", 5),
        ("yesterday", 3),
        ("Sun, 06 Nov 1994 08:49:35", 3),
    ],
)
def test_b55_a_date_is_meant_on_the_clock_that_wrote_it(written: str, seconds: int) -> None:
    told = head(503, ("Date", written), ("Retry-After", "Sun, 06 Nov 1994 08:49:40 GMT"))
    assert told.retry_after == seconds


def test_b55_a_field_that_stands_twice_is_not_read() -> None:
    assert head(503, ("Retry-After", "1"), ("Retry-After", "2")).retry_after is None


def test_a_refusal_counts_from_who_is_trusted_and_on_errors_only() -> None:
    refusal = (REFUSAL_HEADER, "queue_full")
    assert head(503, refusal).refused
    assert head(429, refusal).refused
    assert not head(200, refusal).refused
    assert not head(503, refusal, trusted=False).refused
    assert not head(503, (REFUSAL_HEADER, " ")).refused


def failure(error: Exception, *, consumed: bool = False, **scope: Any) -> Failure | None:
    made = Scope(MONOTONIC, 1e9)
    for name, value in scope.items():
        setattr(made, name, value)
    return failure_of(LIBRARY, error, made, consumed=consumed)


def test_what_has_been_traced_says_more_than_the_class_of_the_error() -> None:
    assert failure(httpx.ReadTimeout("x")) == Failure(Phase.HEAD, timed_out=True)
    assert failure(httpx.ReadTimeout("x"), phase=Phase.CONNECT) == Failure(Phase.CONNECT, timed_out=True)
    assert failure(httpx.ConnectError("x"), phase=Phase.DNS) == Failure(Phase.DNS)
    assert failure(httpx.ProxyError("x")) == Failure(Phase.CONNECT)


def test_a_subclass_is_known_by_its_base() -> None:
    class Own(httpx.ConnectTimeout):
        pass

    assert failure(Own("x")) == Failure(Phase.CONNECT, timed_out=True)


def test_waiting_for_our_own_pool_is_our_own_fault() -> None:
    assert failure(httpx.PoolTimeout("x"), phase=Phase.HEAD) == Failure(Phase.POOL, timed_out=True, ours=True)


def test_b52_a_body_that_was_begun_was_sent() -> None:
    assert failure(httpx.ConnectError("x"), consumed=True) == Failure(Phase.WRITE)


@pytest.mark.parametrize(
    ("error", "scope", "ours"),
    [
        (httpx.RemoteProtocolError("x"), {"received": 0}, True),
        (httpx.ReadError("x"), {"received": 0}, True),
        (httpx.ReadError("x"), {"received": 1}, False),
        (httpx.ReadError("x"), {"received": 0, "connected": True}, False),
        (httpx.ReadError("x"), {"received": None}, False),
        (httpx.ReadTimeout("x"), {"received": 0}, False),
        (httpx.WriteError("x"), {"received": None, "phase": Phase.WRITE}, True),
        (httpx.WriteError("x"), {"received": None, "phase": Phase.WRITE, "connected": True}, False),
        (httpx.WriteError("x"), {"received": 1, "phase": Phase.WRITE}, False),
        (httpx.WriteError("x"), {"received": None, "phase": None}, False),
    ],
)
def test_b59_a_kept_connection_that_went_stale_is_nobodys_fault(
    error: Exception, scope: dict[str, Any], ours: bool
) -> None:
    failed = failure(error, **{"phase": Phase.HEAD, **scope})
    assert failed is not None
    assert failed.ours is ours


def test_mistakes_of_the_caller_are_no_failures() -> None:
    assert failure(httpx.LocalProtocolError("x")) is None
    assert failure(httpx.UnsupportedProtocol("x")) is None


def test_b52_what_can_be_sent_a_second_time() -> None:
    def stream(**keywords: Any) -> object:
        return httpx.Request("POST", "http://prices.test/", **keywords).stream

    assert can_repeat(LIBRARY, stream())
    assert can_repeat(LIBRARY, stream(content=b"x"))
    assert can_repeat(LIBRARY, stream(data={"a": "b"}, files={"f": b"x", "g": ("g.txt", "text")}))
    with open(__file__, "rb") as file:  # noqa: PTH123  a file object is what the library takes
        assert not can_repeat(LIBRARY, stream(content=file))
        assert not can_repeat(LIBRARY, stream(files={"f": file}))
    assert not can_repeat(LIBRARY, stream(content=iter([b"x"])))
    assert not can_repeat(LIBRARY, object())
