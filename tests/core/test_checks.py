"""The checks of configuration values: what passes, what does not, and what the error says."""

from __future__ import annotations

import math

import pytest

from resilient_mw.core.checks import require_field_name, require_integer, require_name, require_number


@pytest.mark.parametrize("value", [0, 0.0, 1, 0.5, 2.0])
def test_numbers_in_the_range_pass_as_floats(value: float) -> None:
    checked = require_number("wait", value, low=0, high=2)
    assert checked == value
    assert type(checked) is float


@pytest.mark.parametrize(
    "value", [-0.001, 2.001, math.nan, math.inf, -math.inf, True, False, "1", None, [1], 1j]
)
def test_other_numbers_are_refused_with_field_value_and_range(value: object) -> None:
    with pytest.raises(ValueError, match="is not allowed: it must be a number from 0 to 2") as caught:
        require_number("wait", value, low=0, high=2)
    assert str(caught.value).startswith(f"wait={value!r} ")


def test_a_range_without_an_upper_end_says_so() -> None:
    with pytest.raises(ValueError, match=r"it must be a number of at least 0\.5$"):
        require_number("wait", 0.4, low=0.5)
    with pytest.raises(ValueError, match="it must be a whole number of at least 1$"):
        require_integer("limit", 0, low=1)


@pytest.mark.parametrize("value", [1, 2, 3])
def test_whole_numbers_in_the_range_pass(value: int) -> None:
    assert require_integer("limit", value, low=1, high=3) == value


@pytest.mark.parametrize("value", [0, 4, 1.0, True, "2", None, math.nan])
def test_other_whole_numbers_are_refused_with_field_value_and_range(value: object) -> None:
    with pytest.raises(ValueError, match="is not allowed: it must be a whole number from 1 to 3") as caught:
        require_integer("limit", value, low=1, high=3)
    assert str(caught.value).startswith(f"limit={value!r} ")


@pytest.mark.parametrize("value", ["a", "A1", "my-app", "my_app", "v1.2", "7"])
def test_names_pass(value: str) -> None:
    assert require_name("name", value) == value


@pytest.mark.parametrize("value", ["", " ", "a b", "a/b", "ä", "-", "..", "a\n", 'a"', "²", None, 1, b"a"])
def test_what_could_not_be_a_label_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="it must be text of ASCII letters, digits") as caught:
        require_name("name", value)
    assert str(caught.value).startswith(f"name={value!r} ")


@pytest.mark.parametrize("value", ["X-Budget-Left-Ms", "x-a", "X-7"])
def test_names_of_header_fields_of_our_own_pass(value: str) -> None:
    assert require_field_name("header", value) == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Content-Length",
        "Budget",
        "X_Left",
        "X-ä",
        "X-a b",
        "X-a:",
        "X-a\n",
        "X-a\r\nB: c",
        None,
        1,
        b"X-a",
    ],
)
def test_what_is_no_name_of_a_field_of_our_own_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="it must be text such as 'X-Budget-Left-Ms'") as caught:
        require_field_name("header", value)
    assert str(caught.value).startswith(f"header={value!r} ")
