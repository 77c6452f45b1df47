"""The overload policy: every wrong value is an error when it is made, and a band is a straight line between its ends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.admission.overload_policy import Band, OverloadPolicy, OverloadState, Signal

NAN, INF = float("nan"), float("inf")

SECONDS = [-1, 0, 3601, NAN, INF, True, "1", None]
SHARES = [-0.1, 0, 1, 1.1, NAN, True, "0.5", None]
WRONG: dict[str, tuple[list[Any], str]] = {
    **{signal.value: ([0.5, (0.1, 0.2), "slots", True], "a Band or None") for signal in Signal},
    "dependencies": (["prices", 1, True], "a collection of names, or None"),
    "rise": (SECONDS, "a number from 0.01 to 3600"),
    "fall": ([*SECONDS, 0.99], "a number from 1 to 3600"),
    "dwell": ([each for each in SECONDS if each != 0], "a number from 0 to 3600"),
    "stale_after": ([*SECONDS, 0.09], "a number from 0.1 to 3600"),
    "enter_elevated": (SHARES, "a number from 0.01 to 0.99"),
    "leave_elevated": (SHARES, "a number from 0.01 to 0.99"),
    "enter_overloaded": (SHARES, "a number from 0.01 to 0.99"),
    "leave_overloaded": (SHARES, "a number from 0.01 to 0.99"),
    "readiness_falls_on_overload": ([0, 1, None, "yes"], "True or False"),
}


def test_every_field_is_in_the_table_and_every_signal_is_a_field() -> None:
    fields = {field.name for field in dataclasses.fields(OverloadPolicy)}
    assert fields == set(WRONG)
    assert {signal.value for signal in Signal} <= fields


CASES = [(field, value, allowed) for field, (values, allowed) in WRONG.items() for value in values]


@pytest.mark.parametrize(
    ("field", "value", "allowed"), CASES, ids=[f"{field}={value!r}" for field, value, _ in CASES]
)
def test_a_wrong_value_is_an_error_with_field_value_and_range(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match="is not allowed: it must be") as caught:
        OverloadPolicy(**{field: value})
    message = str(caught.value)
    assert message.startswith(f"OverloadPolicy.{field}={value!r} "), message
    assert message.endswith(allowed), message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leave_elevated": 0.5}, "OverloadPolicy.leave_elevated=0.5 is not allowed: it must be below enter_elevated, 0.5"),
        ({"leave_overloaded": 0.9}, "OverloadPolicy.leave_overloaded=0.9 .* it must be below enter_overloaded, 0.8"),
        ({"enter_elevated": 0.9}, "OverloadPolicy.enter_elevated=0.9 .* it must be at most enter_overloaded, 0.8"),
        ({"leave_overloaded": 0.2}, "OverloadPolicy.leave_elevated=0.3 .* it must be at most leave_overloaded, 0.2"),
        ({"rise": 5.0}, "OverloadPolicy.fall=3.0 .* it must be a number from 5 to 3600"),
    ],
)  # fmt: skip
def test_thresholds_that_do_not_fit_each_other_are_an_error(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OverloadPolicy(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((-1, 1), "Band.healthy=-1 is not allowed: it must be a number from 0 to 1e"),
        ((NAN, 1), "Band.healthy=nan"),
        ((0.5, 0.4), "Band.overloaded=0.4 is not allowed: it must be a number from 0.5 to 1e"),
        ((0.5, INF), "Band.overloaded=inf"),
        ((0.5, "1"), "Band.overloaded='1'"),
        ((0.5, 0.5), "Band.overloaded=0.5 is not allowed: it must be above healthy, 0.5"),
        ((0, 1, 0), "Band.most=0 is not allowed: it must be a number from 0.01 to 1"),
        ((0, 1, 1.1), "Band.most=1.1"),
    ],
)
def test_a_wrong_band_is_an_error(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Band(*values)


@pytest.mark.parametrize(
    ("reading", "level"),
    [(-INF, 0), (-1, 0), (0.2, 0), (0.3, 0.2), (0.4, 0.4), (0.6, 0.8), (INF, 0.8), (7, 0.8)],
)
def test_a_band_is_flat_below_and_above_and_a_straight_line_between(reading: float, level: float) -> None:
    assert Band(0.2, 0.6, most=0.8).level(reading) == pytest.approx(level)


BANDS = st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)).filter(lambda ends: ends[0] != ends[1])


@given(BANDS, st.floats(0.01, 1), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_every_band_is_monotone_and_keeps_its_ends(
    ends: tuple[float, float], most: float, one: float, other: float
) -> None:
    band = Band(min(ends), max(ends), most)
    low, high = band.level(min(one, other)), band.level(max(one, other))
    assert 0 <= low <= high <= most


def test_a_signal_can_be_ignored() -> None:
    assert set(OverloadPolicy().bands) == set(Signal)
    assert set(OverloadPolicy(gc=None, memory=None).bands) == set(Signal) - {Signal.GC, Signal.MEMORY}


@pytest.mark.parametrize("signal", [Signal.SLOTS, Signal.DEPENDENCY_LATENCY, Signal.DEPENDENCY_ERRORS])
def test_what_is_no_overload_by_itself_can_elevate_and_no_more(signal: Signal) -> None:
    policy = OverloadPolicy()
    assert policy.enter_elevated < policy.bands[signal].most < policy.enter_overloaded
    assert all(
        band.most == 1 for other, band in policy.bands.items() if band.most != policy.bands[signal].most
    )


def test_labels_are_stable() -> None:
    assert [state.value for state in OverloadState] == ["normal", "elevated", "overloaded"]
    assert " ".join(Signal) == (
        "slots queue queue_age loop_lag memory memory_pressure pool_wait gc dependency_latency dependency_errors"
    )
