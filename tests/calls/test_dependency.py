"""Configuration of the client half: what is refused when it is made, what is warned about, and what the text says."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from resilient_mw.calls.config import IDEMPOTENT, BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency, check_dependencies
from resilient_mw.calls.match import target
from resilient_mw.core.errors import ResilienceWarning

URL = "http://prices/*"


def _make(what: type[Any], field: str, value: object) -> object:
    return what("prices", URL, **{field: value}) if what is Dependency else what(**{field: value})


@pytest.mark.parametrize(
    ("what", "field", "value", "allowed"),
    [
        (RetryPolicy, "attempts", 0, "from 1 to 10"),
        (RetryPolicy, "attempts", 11, "from 1 to 10"),
        (RetryPolicy, "attempts", 1.5, "whole number"),
        (RetryPolicy, "backoff_base", -0.1, "from 0 to 60"),
        (RetryPolicy, "backoff_base", math.nan, "from 0 to 60"),
        (RetryPolicy, "backoff_cap", 0.05, "from 0.1 to 3600"),
        (RetryPolicy, "budget_ratio", 1.5, "from 0 to 1"),
        (RetryPolicy, "budget_per_second", -1, "from 0 to 1000"),
        (RetryPolicy, "max_retry_after", -1, "from 0 to 86400"),
        (RetryPolicy, "unsafe_methods", "POST", "a collection"),
        (RetryPolicy, "unsafe_methods", 5, "a collection"),
        (RetryPolicy, "unsafe_methods", {5}, "must hold methods"),
        (RetryPolicy, "unsafe_methods", {"PO ST"}, "must hold methods"),
        (BreakerPolicy, "window", 0, "from 1 to 10000"),
        (BreakerPolicy, "failure_ratio", 0, "from 0.001 to 1"),
        (BreakerPolicy, "failure_ratio", 1.01, "from 0.001 to 1"),
        (BreakerPolicy, "failure_statuses", "500", "a collection"),
        (BreakerPolicy, "failure_statuses", {200}, "from 400 to 599"),
        (BreakerPolicy, "failure_statuses", {"500"}, "from 400 to 599"),
        (BreakerPolicy, "minimum_calls", 0, "at least 1"),
        (BreakerPolicy, "minimum_calls", 21, "at most the window, 20, or the circuit could never open"),
        (BreakerPolicy, "open_for", 0, "from 0.001 to 86400"),
        (BreakerPolicy, "open_jitter", -0.1, "from 0 to 10"),
        (BreakerPolicy, "trials", 0, "from 1 to 1000"),
        (BreakerPolicy, "trial_lease", 0, "from 0.001 to 86400"),
        (Dependency, "timeout", 0, "from 0.001 to 86400"),
        (Dependency, "timeout", "2", "a number"),
        (Dependency, "connect_timeout", -1, "from 0.001 to 86400"),
        (Dependency, "total_timeout", True, "a number"),
        (
            Dependency,
            "total_timeout",
            0.015,
            "above reserve + smallest_budget, 0.015, or nothing would ever be sent",
        ),
        (Dependency, "bulkhead", 0, "at least 1"),
        (Dependency, "reserve", -0.1, "from 0 to 60"),
        (Dependency, "smallest_budget", 61, "from 0 to 60"),
        (Dependency, "retry", 3, "a RetryPolicy or None"),
        (Dependency, "breaker", True, "a BreakerPolicy or None"),
        (Dependency, "deadline_header", "X Timeout", "the name of a header field or None"),
        (Dependency, "deadline_header", "", "the name of a header field or None"),
        (Dependency, "deadline_header", 5, "the name of a header field or None"),
        (Dependency, "trusted", "yes", "True or False"),
    ],
)
def test_bad_values_are_refused_with_field_value_and_range(
    what: type[Any], field: str, value: object, allowed: str
) -> None:
    with pytest.raises(ValueError, match="is not allowed") as caught:
        _make(what, field, value)
    text = str(caught.value)
    assert field in text
    assert repr(value) in text or isinstance(value, (set, frozenset))
    assert allowed in text
    if what is Dependency:
        assert "prices" in text


@pytest.mark.parametrize(("match", "said"), [(5, "a pattern like"), (None, "a pattern like")])
def test_a_dependency_is_matched_by_patterns(match: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"Dependency\\('prices'\\).match=.*{said}"):
        Dependency("prices", match)


@pytest.mark.parametrize("name", ["", "my prices", 5, "préis"])
def test_a_name_becomes_a_label(name: Any) -> None:
    with pytest.raises(ValueError, match="Dependency.name="):
        Dependency(name, URL)


def test_the_defaults_are_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dependency("prices", URL)
        Dependency("prices", URL, total_timeout=0.5)
        Dependency("prices", URL, timeout=None, breaker=None)
        Dependency("prices", URL, timeout=120.0, total_timeout=None)


# -- warnings that say what to change


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: RetryPolicy(unsafe_methods={"POST"}),
            "repeating POST is not safe without an idempotency key. Let the",
        ),
        (
            lambda: RetryPolicy(unsafe_methods=["patch"]),
            "repeating PATCH is not safe without an idempotency key",
        ),
        (lambda: RetryPolicy(unsafe_methods=["PUT"]), "repeating PUT is without effect.* Leave it out"),
        (
            lambda: Dependency("prices", URL, timeout=None),
            r"'prices'\).breaker can never open on slow .* Set a timeout",
        ),
        (
            lambda: Dependency("prices", "http://prices/"),
            r"means the path '/' alone. Write 'http://prices/\*'",
        ),
    ],
)
def test_what_has_less_effect_than_it_seems_is_warned_about_where_it_was_written(
    make: Callable[[], object], said: str
) -> None:
    with pytest.warns(ResilienceWarning, match=said) as caught:
        make()
    assert len(caught) == 1
    assert caught[0].filename == __file__


# -- several of them


def test_a_name_may_stand_once() -> None:
    with pytest.raises(ValueError, match="dependencies name 'prices' twice"):
        check_dependencies([Dependency("prices", URL), Dependency("prices", "http://other/*")])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (URL, URL),
        (URL, "http://prices/v1/*"),
        (URL, "HTTP://Prices.:80/v1"),
        ("http://prices/price", "http://prices/price"),
        (["http://a/*", "http://b/*"], ["http://c/*", "http://b/x"]),
    ],
)
def test_a_rule_that_can_never_match_is_an_error_that_says_what_to_do(first: Any, second: Any) -> None:
    with pytest.raises(
        ValueError, match="dependency 'two' never gets .* 'one' comes first .* Put 'two' before it"
    ):
        check_dependencies([Dependency("one", first), Dependency("two", second)])


def test_overlapping_rules_in_order_are_allowed_and_the_first_that_matches_is_the_one() -> None:
    narrow = Dependency("narrow", "http://prices/v1/*")
    wide = Dependency("wide", URL)
    checked = check_dependencies([narrow, wide])
    assert checked == (narrow, wide)
    for path, expected in (("/v1/x", narrow), ("/v2/x", wide)):
        assert (
            next(each for each in checked if each.matches(target("http", "prices", None, path))) is expected
        )


def test_only_dependencies_are_dependencies() -> None:
    with pytest.raises(ValueError, match="each of them must be a Dependency"):
        check_dependencies(["http://prices/*"])  # type: ignore[list-item]


# -- the object owns its state


def test_two_equal_dependencies_are_two() -> None:
    assert Dependency("prices", URL) != Dependency("prices", URL)
    assert hash(Dependency("prices", URL)) != hash(Dependency("prices", URL))


def test_a_changed_copy_has_a_state_of_its_own() -> None:
    dependency = Dependency("prices", URL)
    copy = dataclasses.replace(dependency, timeout=5.0)
    assert copy.owner is not dependency.owner
    assert copy.rules == dependency.rules


def test_a_dependency_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Dependency("prices", URL).timeout = 5.0  # type: ignore[misc]


def test_methods_are_compared_in_upper_case() -> None:
    with pytest.warns(ResilienceWarning):
        assert RetryPolicy(unsafe_methods=["post"]).repeatable == IDEMPOTENT | {"POST"}
