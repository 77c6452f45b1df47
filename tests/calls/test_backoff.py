"""Back-off: full jitter, and waits that a dependency asked for."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from resilient_mw.calls.backoff import full_jitter, spread
from tests.calls.desk import Luck


@pytest.mark.parametrize(
    ("attempts", "most"), [(1, 0.1), (2, 0.2), (3, 0.4), (5, 1.6), (6, 2.0), (64, 2.0), (10_000, 2.0)]
)
def test_the_back_off_is_drawn_from_0_to_the_doubled_base_and_the_cap(attempts: int, most: float) -> None:
    assert full_jitter(Luck(0.0), attempts, 0.1, 2.0) == 0.0
    assert full_jitter(Luck(0.5), attempts, 0.1, 2.0) == pytest.approx(most / 2)
    assert full_jitter(Luck(1.0), attempts, 0.1, 2.0) == pytest.approx(most)


def test_no_base_is_no_back_off() -> None:
    assert full_jitter(Random(1), 5, 0.0, 2.0) == 0.0


def test_the_draws_fill_the_whole_span_evenly() -> None:
    random = Random(7)
    tenths = Counter(int(full_jitter(random, 1, 1.0, 9.0) * 10) for _ in range(10_000))
    assert sorted(tenths) == list(range(10))
    assert max(tenths.values()) - min(tenths.values()) < 250


@pytest.mark.parametrize("seed", range(5))
def test_b56_clients_that_were_told_the_same_do_not_come_back_together(seed: int) -> None:
    random = Random(seed)
    waits = [spread(random, 5.0) for _ in range(1000)]
    assert min(waits) >= 5.0
    assert max(waits) - min(waits) >= 0.1 * 5.0
    assert max(Counter(int(wait / 0.05) for wait in waits).values()) <= 50  # 5 % in 50 ms


def test_nothing_is_never_shortened_and_nothing_stays_nothing() -> None:
    for asked in (0.0, 0.001, 1.0, 86_400.0):
        assert spread(Luck(0.0), asked) == asked
        assert spread(Luck(1.0), asked) == pytest.approx(1.4 * asked)
