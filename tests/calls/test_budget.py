"""The retry budget: a share of the traffic of the last ten seconds, and a few a second besides."""

from __future__ import annotations

from resilient_mw.calls.budget import WINDOW, RetryBudget


def _retries(budget: RetryBudget, now: float, most: int = 10_000) -> int:
    """Begin as many retries as are allowed now."""
    return next(count for count in range(most + 1) if not budget.reserve(now, now))


def test_a_share_of_the_calls_and_a_few_a_second() -> None:
    budget = RetryBudget(0.1, 1.0)
    for number in range(200):
        budget.call(number / 100)
    assert _retries(budget, 2.0) == 30


def test_no_share_and_nothing_a_second_is_no_retry() -> None:
    budget = RetryBudget(0.0, 0.0)
    budget.call(0.0)
    assert not budget.reserve(0.0, 0.0)


def test_the_floor_is_there_without_traffic() -> None:
    assert _retries(RetryBudget(0.1, 1.0), 1000.0) == 10


def test_calls_and_retries_leave_the_window_exactly_after_ten_seconds() -> None:
    budget = RetryBudget(1.0, 0.0)
    budget.call(1.0)
    assert budget.reserve(1.0, 1.0)
    assert not budget.reserve(1.0, 1.0)
    budget.call(10.5)
    assert budget.reserve(10.5, 10.5)
    before = 11.0 - 2.0**-20
    assert not budget.reserve(before, before), "two calls, two retries"
    assert not budget.reserve(11.0, 11.0), "one call, one retry: the first ones are gone together"
    budget.call(11.0)
    assert budget.reserve(11.0, 11.0)


def test_a_retry_is_reserved_for_the_end_of_its_back_off() -> None:
    budget = RetryBudget(0.0, 0.2)
    assert budget.reserve(0.0, 5.0)
    assert budget.reserve(0.0, 7.0)
    assert not budget.reserve(0.0, 6.0)
    # At 0 there would be room up to now, and then three in the window that ends at 7.
    assert not budget.reserve(0.0, 0.0)
    assert budget.reserve(0.0, 15.0)


def test_later_reservations_out_of_reach_do_not_matter() -> None:
    budget = RetryBudget(0.0, 0.1)
    assert budget.reserve(0.0, 10.0)
    assert budget.reserve(0.0, 0.0), "the window that ends at 10 begins after 0"
    assert not budget.reserve(0.0, 0.5)


def test_what_is_given_back_can_be_had_again() -> None:
    budget = RetryBudget(0.0, 0.1)
    assert budget.reserve(0.0, 1.0)
    assert not budget.reserve(0.0, 2.0)
    budget.give_back(1.0)
    budget.give_back(1.0)
    budget.give_back(7.0)
    assert budget.reserve(0.0, 2.0)


def test_one_that_begins_late_counts_where_it_began() -> None:
    budget = RetryBudget(0.0, 0.1)
    assert budget.reserve(0.0, 1.0)
    budget.begin(1.0, 5.0)
    assert not budget.reserve(11.5, 11.5)
    assert budget.reserve(15.0, 15.0)


def test_one_that_begins_so_late_that_it_was_forgotten_counts_once() -> None:
    budget = RetryBudget(0.0, 0.1)
    assert budget.reserve(0.0, 1.0)
    assert budget.reserve(12.0, 12.0)
    budget.begin(1.0, 12.0)
    assert len(budget._retries) == 2


def test_b80_after_silence_the_floor_is_back_and_nothing_was_saved_up() -> None:
    budget = RetryBudget(0.1, 1.0)
    for tick in range(6000):
        budget.call(tick / 100)
    now = 360.0
    assert _retries(budget, now) == 10, "the floor for ten seconds, and not a word of the sixty of quiet"
    sent, calls = 10, 0
    for second in range(60):
        now = 361.0 + second
        budget.call(now)
        calls += 1
        sent += _retries(budget, now)
    assert sent <= 10 + 0.1 * calls + 1.0 * 61
    sent = calls = 0
    for tick in range(6000):
        now = 421.0 + tick / 100
        budget.call(now)
        calls += 1
        sent += budget.reserve(now, now)
    assert 0.09 * calls < sent <= 0.1 * calls + 60 + 10


def test_memory_is_that_of_the_window() -> None:
    budget = RetryBudget(0.1, 1.0)
    for tick in range(100_000):
        budget.call(tick / 100)
        budget.reserve(tick / 100, tick / 100 + 1.0)
        assert len(budget._calls) <= 100 * (WINDOW + 1) + 1
        assert len(budget._retries) <= 0.1 * 1200 + 11
