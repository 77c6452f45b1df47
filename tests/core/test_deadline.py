"""Deadlines, and how a request's budget is established at the edge."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.core.deadline import FOREVER, Deadline, DeadlineRule

seconds = st.floats(0, 1e6)
RULE = DeadlineRule(default=10.0, minimum=0.5, maximum=60.0)


def test_what_is_left_shrinks_to_zero_and_no_further() -> None:
    deadline = Deadline(12.0)
    assert [deadline.remaining(now) for now in (10.0, 11.5, 12.0, 13.0)] == [2.0, 0.5, 0.0, 0.0]


def test_the_instant_itself_is_too_late() -> None:
    deadline = Deadline(12.0)
    assert not deadline.expired(math.nextafter(12.0, 0))
    assert deadline.expired(12.0)


def test_a_deadline_that_never_comes() -> None:
    assert Deadline().at == FOREVER
    assert Deadline().remaining(1e9) == math.inf
    assert not Deadline().expired(1e9)
    assert Deadline().within(5.0, 100.0) == Deadline(105.0)


@given(at=st.floats(0, 1e6) | st.just(FOREVER), now=seconds, first=seconds, second=seconds)
def test_within_only_shrinks(at: float, now: float, first: float, second: float) -> None:
    one = Deadline(at).within(first, now)
    two = one.within(second, now)
    assert two <= one <= Deadline(at)
    assert two.remaining(now) <= max(0.0, min(at - now, first, second)) + 1e-9


def test_a_deadline_has_to_be_an_instant() -> None:
    with pytest.raises(ValueError, match="at=nan is not allowed: it must be an instant"):
        Deadline(math.nan)


@pytest.mark.parametrize(
    ("wish", "trusted", "expected"),
    [
        (None, False, 10.0),
        (None, True, 10.0),
        (3.0, False, 3.0),
        (3.0, True, 3.0),
        (30.0, False, 10.0),  # a stranger shortens the default and never lengthens it
        (30.0, True, 30.0),
        (100.0, True, 60.0),  # and nobody gets more than the maximum
        (0.1, False, 0.5),  # the minimum raises at the edge
        (0.1, True, 0.1),  # what a trusted hop has left is never raised
        (math.inf, False, 10.0),
        (math.inf, True, 60.0),
    ],
)
def test_the_budget_at_the_edge(wish: float | None, trusted: bool, expected: float) -> None:
    assert RULE.budget(wish, trusted=trusted) == expected


@given(
    default=st.floats(0.001, 1e5),
    minimum=st.floats(0, 1e5),
    maximum=st.floats(0.001, 1e5),
    wish=st.none() | st.floats(0, math.inf),
    trusted=st.booleans(),
)
def test_no_wish_gets_more_than_it_may(
    default: float, minimum: float, maximum: float, wish: float | None, trusted: bool
) -> None:
    budget = DeadlineRule(default, minimum, maximum).budget(wish, trusted=trusted)
    assert 0 <= budget <= maximum
    if wish is not None and trusted:
        assert budget <= wish
    else:
        assert budget <= max(default, minimum)


def test_a_default_below_the_minimum_is_raised_like_a_wish() -> None:
    assert DeadlineRule(default=1.0, minimum=2.0, maximum=60.0).budget(None, trusted=False) == 2.0


@pytest.mark.parametrize("field", ["default", "minimum", "maximum"])
def test_a_rule_with_a_gap_gives_no_budget(field: str) -> None:
    numbers: dict[str, float | None] = {"default": 1.0, "minimum": 0.0, "maximum": 2.0, field: None}
    with pytest.raises(ValueError, match=r"not complete: fill its gaps with over\(\)"):
        DeadlineRule(**numbers).budget(1.0, trusted=True)


@pytest.mark.parametrize("field", ["default", "minimum", "maximum"])
def test_a_rule_keeps_what_it_says_and_takes_the_rest(field: str) -> None:
    own = {field: 5.0}
    expected = {"default": 10.0, "minimum": 0.5, "maximum": 60.0, field: 5.0}
    assert DeadlineRule(**own).over(RULE) == DeadlineRule(**expected)
    assert DeadlineRule(minimum=0.0).over(RULE).minimum == 0.0, "zero is a number and no gap"
