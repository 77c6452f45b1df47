"""Whatever an answer or a caller writes into its head: it is read, bounded, and nothing raises."""

from __future__ import annotations

import math

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw import Dependency
from resilient_mw.calls.fallback import Fallback, may_keep
from resilient_mw.core.headers.http_date import parse_http_date
from resilient_mw.core.headers.retry_owner import OWNER_NAME, parse_retry_owner
from resilient_mw.transport.facts import head_of

DATES = [
    "Fri, 31 Dec 9999 23:59:60 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", "Sat, 00 Jan 0000 00:00:00 GMT",
    "Sunday, 06-Nov-94 08:49:37 GMT", "Sunday, 29-Feb-01 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
]  # fmt: skip
NUMBERS = [
    "",
    " ",
    "0",
    "-1",
    "1e9",
    "inf",
    "nan",
    "9" * 5_000,
    "0" * 5_000,
    "²",
    "5, 5",
    "1_0",
    "0x1",
    "5.5",
]
OTHERS = ['"', '"' * 999, "=,=,,=", "no-cache=", 'private="a,b"', "max-age=", "*", "\x7f\xff", "a" * 70_000]
value = st.one_of(st.sampled_from(DATES + NUMBERS + OTHERS), st.text(st.characters(max_codepoint=255)))
NAMES = [
    "Retry-After", "Date", "grpc-retry-pushback-ms", "x-envoy-ratelimited", "X-Refusal-Reason", "Age", "Cache-Control",
    "Vary",
]  # fmt: skip
lines = st.lists(st.tuples(st.sampled_from(NAMES), value), max_size=6)
PRICES = Dependency("prices", "http://prices/*")


@given(lines=lines, status=st.sampled_from([200, 413, 429, 500, 503, 599]))
def test_an_answer_is_read_whatever_stands_in_it(lines: list[tuple[str, str]], status: int) -> None:
    raw = [(name.encode(), text.encode("latin-1")) for name, text in lines]
    response = httpx.Response(status, headers=raw)
    head = head_of(PRICES, response, 1_700_000_000.0)
    assert head.retry_after is None or 0 <= head.retry_after <= 2**31
    told = {name.lower(): text for name, text in response.headers.items()}
    kept = may_keep(Fallback(stale_for=60), "GET", 200, asked={}, told=told, now=1000.0)
    assert kept is None or (kept.at <= 1000.0 and not math.isnan(kept.until))


@pytest.mark.parametrize("two_digits", DATES[3:5])
def test_a_date_at_the_end_of_time_is_no_clock_for_another_one(two_digits: str) -> None:
    response = httpx.Response(503, headers={"Date": DATES[0], "Retry-After": two_digits})
    head_of(PRICES, response, 1_700_000_000.0)
    assert parse_http_date(DATES[0], 0.0) is None
    assert parse_http_date("Fri, 31 Dec 9999 23:59:59 GMT", 0.0) == 253_402_300_799


@given(owners=st.lists(value, max_size=2), attempts=st.lists(value, max_size=2))
def test_who_retries_is_read_whatever_stands_there(owners: list[str], attempts: list[str]) -> None:
    fields = {"x-retry-owner": owners, "x-retry-attempt": attempts, "x-envoy-attempt-count": attempts}
    owner = parse_retry_owner(lambda name: fields.get(name, ()), "x-retry-owner", "x-retry-attempt")
    assert owner is None or (OWNER_NAME.fullmatch(owner.name) and 1 <= owner.attempt <= 1_000_000)
