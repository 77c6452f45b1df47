"""Histograms, and the ports at which exporters find what runs in this process."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.core import ports
from resilient_mw.core.snapshot import BUCKETS, AppSnapshot, Histogram


def test_buckets_grow() -> None:
    assert list(BUCKETS) == sorted(set(BUCKETS))


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.001, 0), (0.0010001, 1), (0.25, 7), (60.0, len(BUCKETS) - 1), (60.1, len(BUCKETS))],
)
def test_a_duration_is_counted_under_the_first_bound_that_is_not_below_it(
    seconds: float, bucket: int
) -> None:
    histogram = Histogram()
    histogram.add(seconds)
    assert histogram.counts.index(1) == bucket
    assert sum(histogram.counts) == 1
    assert histogram.total == seconds


@given(st.lists(st.floats(0, 1000)), st.lists(st.floats(0, 1000)))
def test_merging_is_the_same_as_counting_in_one(first: list[float], second: list[float]) -> None:
    one, two, both = Histogram(), Histogram(), Histogram()
    for seconds in first:
        one.add(seconds)
        both.add(seconds)
    for seconds in second:
        two.add(seconds)
        both.add(seconds)
    one.merge(two)
    assert one.counts == both.counts
    assert one.total == pytest.approx(both.total)
    assert sum(two.counts) == len(second), "the other one stays as it was"


class _Source:
    def __init__(self, name: str) -> None:
        self.name = name

    def snapshot(self) -> AppSnapshot:
        return AppSnapshot(self.name, 1, 1, False, None, (), (), {}, 0)


def test_sources_are_seen_in_a_stable_order_for_as_long_as_they_live() -> None:
    names = [f"snapshot-test-{letter}" for letter in "cab"]
    sources = [_Source(name) for name in names]
    for source in sources:
        ports.register(source)

    def seen() -> list[str]:
        return [snapshot.app for snapshot in ports.snapshots() if snapshot.app in names]

    assert seen() == sorted(names)
    del source, sources[0]
    gc.collect()
    assert seen() == sorted(names[1:])
