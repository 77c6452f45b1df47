from __future__ import annotations

import dataclasses

import pytest

from resilient_mw.lab.expectations import Expectation, OrderExpectation, Verdict, show


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("checkout_served", 1200, "1,200"),
        ("checkout_p50", 0.0536, "54 ms"),
        ("checkout_p50", 4.974, "4,974 ms"),
        ("health_p99", 0.0042, "4.2 ms"),
        ("checkout_p50", 10.0008, "10.0 s"),
        ("prices_after_load", 0.5, "0.5 s"),
        ("checkout_refused_p50", None, "none"),
        ("checkout_served_share", 0.9912, "99.1 %"),
        ("checkout_served_share", 1.0, "100.0 %"),
    ],
)
def test_a_figure_is_written_with_its_unit(name: str, value: float | None, text: str) -> None:
    assert show(name, value) == text


def test_a_bound_holds_as_it_is_for_the_full_length() -> None:
    least = Expectation("checkout_served", "served", ">=", 298, "300", scales=True)
    assert least.bound_for(1) == 298
    assert least.judge({"checkout_served": 298}, 1).passed
    assert not least.judge({"checkout_served": 297}, 1).passed


def test_a_count_that_scales_is_rounded_to_the_lenient_side() -> None:
    least = Expectation("checkout_served", "served", ">=", 298, "300", scales=True)
    most = Expectation("checkout_lost", "lost", "<=", 10, "2", scales=True)
    assert least.bound_for(1 / 3) == 99
    assert most.bound_for(1 / 3) == 4


def test_a_time_that_scales_is_not_rounded() -> None:
    wait = Expectation("checkout_p50", "median", ">=", 4.0, "4,974 ms", scales=True)
    assert wait.bound_for(1 / 4) == 1.0
    assert wait.judge({"checkout_p50": 1.0}, 1 / 4).expected == "\u2265 1,000 ms"


def test_a_bound_that_does_not_scale_may_have_a_value_of_its_own_for_a_short_run() -> None:
    plain = Expectation("checkout_served", "served", "<=", 45, "30")
    own = Expectation("health_lost", "lost", ">=", 50, "65", short=10)
    assert plain.bound_for(1 / 3) == 45
    assert (own.bound_for(1), own.bound_for(1 / 3)) == (50, 10)


@pytest.mark.parametrize("figures", [{}, {"checkout_refused_p50": None}])
def test_what_was_not_measured_is_a_miss(figures: dict[str, float | None]) -> None:
    refusals = Expectation("checkout_refused_p50", "time to refuse", "<=", 0.05, "-")
    verdict = refusals.judge(figures, 1)
    assert not verdict.passed
    assert verdict.seen == "none"


def test_a_bound_may_be_a_multiple_of_another_figure() -> None:
    after = Expectation("checkout_after_p99", "p99", "<=", 1.5, "-", of="checkout_before_p99")
    assert after.judge({"checkout_after_p99": 0.3, "checkout_before_p99": 0.2}, 1).passed
    verdict = after.judge({"checkout_after_p99": 0.31, "checkout_before_p99": 0.2}, 1 / 3)
    assert not verdict.passed
    assert verdict.expected == "\u2264 300 ms"
    assert not after.judge({"checkout_after_p99": 0.3, "checkout_before_p99": None}, 1).passed
    assert not after.judge({"checkout_after_p99": 0.3}, 1).passed


def test_an_order_is_said_once_and_again_only_if_it_is_another() -> None:
    expectation = OrderExpectation("circuit", "the circuit", "closed, open", "-")
    met = Verdict("the circuit: closed, open", "-", "in this order", "in this order", True)
    assert expectation.judge({"circuit": "closed, open"}) == met
    assert expectation.judge({"circuit": "closed"}) == dataclasses.replace(met, seen="closed", passed=False)
    assert expectation.judge({}) == dataclasses.replace(met, seen="none", passed=False)
