"""Quotas as values: what they say, what an answer says of them, and when there is room again."""

from __future__ import annotations

import math
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.core.quotas import Quota, QuotaState, limited, sliding_state


@pytest.mark.parametrize(
    ("rate", "amount", "window"),
    [
        ("100/minute", 100, 60),
        ("1/second", 1, 1),
        (" 5 per second ", 5, 1),
        ("5 / 10 seconds", 5, 10),
        ("1000 per 2 hours", 1000, 7200),
        ("7/day", 7, 86_400),
    ],
)
def test_a_rate_is_an_amount_in_a_window(rate: str, amount: int, window: int) -> None:
    quota = Quota(rate)
    assert (quota.amount, quota.window) == (amount, window)


@pytest.mark.parametrize(
    "rate",
    ["", "100", "0/minute", "-1/minute", "1.5/minute", "1/0 minutes", "1/32 days", "1/fortnight", "1/minute 2/hour", "²/day",
     None, 5, b"1/minute"],
)  # fmt: skip
def test_what_is_no_rate_is_refused(rate: Any) -> None:
    with pytest.raises(ValueError, match="Quota.rate="):
        Quota(rate)


def test_the_other_fields_are_checked() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": ""}, "Quota.name="),
        ({"name": 'a"b'}, "Quota.name="),
        ({"path": "reports"}, "Quota.path="),
        ({"path": "/a/*/b"}, "Quota.path="),
        ({"by_cost": 1}, "Quota.by_cost="),
    ]
    for fields, text in wrong:
        with pytest.raises(ValueError, match=text):
            Quota("1/minute", **fields)


def test_a_request_counts_as_one_or_as_its_slots_but_never_as_more_than_there_is() -> None:
    assert Quota("10/minute").counts(5) == 1
    assert Quota("10/minute", by_cost=True).counts(5) == 5
    assert Quota("10/minute", by_cost=True).counts(50) == 10


def test_the_fields_are_those_of_the_draft() -> None:
    burst, hourly = Quota("20/second", name="burst"), Quota("1000/hour", name="hourly")
    found = limited([burst, hourly], hourly, QuotaState(allowed=False, remaining=3, reset=41.2))
    fields = dict(found.fields)
    policy: Any = http_sf.parse(fields["RateLimit-Policy"].encode(), tltype="list")
    assert [(name, dict(rest)) for name, rest in policy] == [
        ("burst", {"q": 20, "w": 1}),
        ("hourly", {"q": 1000, "w": 3600}),
    ]
    rests: Any = http_sf.parse(fields["RateLimit"].encode(), tltype="list")
    (rest,) = rests
    assert (rest[0], dict(rest[1])) == ("hourly", {"r": 3, "t": 42})
    assert found.retry_after == 42  # not earlier than t


def test_retry_after_is_at_least_a_second() -> None:
    quota = Quota("1/second")
    assert limited([quota], quota, QuotaState(allowed=False, reset=0.0)).retry_after == 1


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50), st.floats(0.001, 0.999), st.integers(1, 5))
def test_the_reset_is_the_first_instant_with_room(
    amount: int, previous: int, current: int, gone: float, count: int
) -> None:
    """Against a search: the state is played forward until the request would pass."""
    window = 60
    quota = Quota(f"{amount}/minute")
    previous, current, count = min(previous, amount), min(current, amount), min(count, amount)
    now = gone * window

    def taken(at: float) -> int:
        if at < window:
            return current + math.floor(previous * (window - at) / window)
        return math.floor(current * max(0.0, 2 * window - at) / window)

    state = sliding_state(quota, count, previous, window - now, current, 2 * window - now)
    if taken(now) + count <= amount:
        assert state.reset == 0.0
        return
    assert state.remaining == max(0, amount - taken(now))
    assert taken(now + state.reset + 1e-6) + count <= amount
    assert taken(now + state.reset - 0.01) + count > amount or state.reset < 0.02
