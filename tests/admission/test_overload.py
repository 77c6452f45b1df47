"""The overload level: how it follows its signals, what an unknown one means, and that the state does not flap."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.admission.overload import OverloadLevel
from resilient_mw.admission.overload_policy import Band, OverloadPolicy, OverloadState, Signal

NORMAL, ELEVATED, OVERLOADED = OverloadState
PLAIN = Band(0.0, 1.0)  # the reading is the level
POLICY = OverloadPolicy(loop_lag=PLAIN, memory=PLAIN, gc=PLAIN, pool_wait=Band(1.0, 3.0))
START = 100.0


def _level(policy: OverloadPolicy = POLICY) -> OverloadLevel:
    return OverloadLevel(policy, START)


def _hold(
    level: OverloadLevel, start: float, seconds: float, reading: float, *, every: float = 0.125
) -> float:
    """Report one reading again and again, with the signal's own noise left out; return the end."""
    steps = round(seconds / every)
    for step in range(steps + 1):
        level.report(start + step * every, Signal.LOOP_LAG, reading)
    return start + steps * every


def _changes(level: OverloadLevel) -> list[str]:
    return [f"{each.before}>{each.after}" for each in level.transitions]


# -- the level


def test_it_starts_at_nothing_and_normal() -> None:
    level = _level()
    assert level.advance(START) is NORMAL
    assert (level.level, level.since, level.signals()) == (0.0, START, {})


def test_it_rises_with_one_time_constant_and_falls_with_a_longer_one() -> None:
    level = _level()
    _hold(level, START, POLICY.rise, 1.0)
    assert level.level == pytest.approx(1 - math.exp(-1))
    now = _hold(level, START, 60, 1.0)
    assert level.level == pytest.approx(1.0)
    _hold(level, now, POLICY.rise, 0.0)
    assert level.level == pytest.approx(math.exp(-POLICY.rise / POLICY.fall))
    assert POLICY.rise < POLICY.fall


def test_the_largest_signal_decides_and_no_sum_or_mean() -> None:
    level = _level()
    for signal, reading in (
        (Signal.MEMORY, 0.4),
        (Signal.GC, 0.7),
        (Signal.LOOP_LAG, 0.1),
        (Signal.POOL_WAIT, 1.5),
    ):
        level.report(START, signal, reading)
    level.advance(START + 9)
    assert level.level == pytest.approx(0.7, abs=0.001)
    assert level.signals() == pytest.approx(
        {Signal.GC: 0.7, Signal.MEMORY: 0.4, Signal.POOL_WAIT: 0.25, Signal.LOOP_LAG: 0.1}
    )
    assert next(iter(level.signals())) is Signal.GC, "the worst comes first"


def test_the_worst_source_of_a_signal_counts() -> None:
    level = _level()
    level.report(START, Signal.POOL_WAIT, 3.0, "orders")
    for step in range(80):
        level.report(START + step / 10, Signal.POOL_WAIT, 0.0, "users")
    assert level.signals() == {Signal.POOL_WAIT: 1.0}
    assert level.level > 0.99
    level.report(START + 8, Signal.POOL_WAIT, 2.0, "orders")
    assert level.signals() == {Signal.POOL_WAIT: 0.5}


def test_a_signal_without_a_band_is_ignored() -> None:
    level = _level(OverloadPolicy(gc=None))
    level.report(START, Signal.GC, 1.0)
    level.advance(START + 5)
    assert (level.level, level.signals()) == (0.0, {})


def test_what_counts_is_how_long_and_not_how_often() -> None:
    """A thousand good readings within a moment do not outvote one bad reading that lasts."""
    level, other = _level(), _level()
    for step in range(1000):
        level.report(START + step / 1e6, Signal.LOOP_LAG, 0.0)
    for each in (level, other):
        each.report(START + 0.001, Signal.LOOP_LAG, 1.0)
        each.advance(START + 2)
    assert level.level == pytest.approx(other.level, abs=1e-9) == pytest.approx(1 - math.exp(-1.999))


def test_an_instant_that_goes_back_counts_as_the_last_one() -> None:
    level = _level()
    level.report(START + 1, Signal.LOOP_LAG, 1.0)
    level.advance(START + 2)
    before = level.level
    level.report(START + 0.5, Signal.GC, 0.5)
    assert level.level == before
    level.advance(START + 2 + POLICY.stale_after - 0.001)
    assert Signal.GC in level.signals(), "stale counts from the last instant, too"


# -- what is not known


@pytest.mark.parametrize("missing", [None, math.nan])
@pytest.mark.parametrize("known", [0.0, 0.7, 1.0])
def test_a_missing_reading_is_neither_0_nor_1_and_changes_nothing(
    missing: float | None, known: float
) -> None:
    level, other = _level(), _level()
    for step in range(40):
        now = START + step / 8
        for each in (level, other):
            each.report(now, Signal.MEMORY, known)
        level.report(now, Signal.LOOP_LAG, missing)
        assert level.level == other.level
        assert level.signals() == {Signal.MEMORY: known}


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_missing_reading_does_not_renew_the_last_one_and_does_not_replace_it(missing: float | None) -> None:
    level = _level()
    level.report(START, Signal.LOOP_LAG, 1.0)
    level.report(START + POLICY.stale_after - 0.5, Signal.LOOP_LAG, missing)
    assert level.signals() == {Signal.LOOP_LAG: 1.0}
    level.report(START + POLICY.stale_after, Signal.LOOP_LAG, missing)
    assert level.signals() == {}


def test_a_stale_signal_leaves_the_decision_to_the_others() -> None:
    level = _level()
    level.report(START, Signal.LOOP_LAG, 1.0)
    for second in range(40):
        level.report(START + second, Signal.MEMORY, 0.4)
    assert level.signals() == {Signal.MEMORY: 0.4}
    assert level.level == pytest.approx(0.4, abs=0.01)


def test_each_source_becomes_stale_by_itself() -> None:
    level = _level()
    level.report(START, Signal.POOL_WAIT, 3.0, "orders")
    level.report(START + 5, Signal.POOL_WAIT, 2.0, "users")
    level.advance(START + POLICY.stale_after)
    assert level.signals() == {Signal.POOL_WAIT: 0.5}
    assert level.advance(START + 5 + POLICY.stale_after)
    assert level.signals() == {}


def test_where_nothing_is_known_any_more_nothing_is_refused_for_ever() -> None:
    level = _level()
    assert _hold(level, START, 5, 1.0) == START + 5
    assert level.state is OVERLOADED
    assert level.advance(START + 5 + POLICY.stale_after - 0.01) is OVERLOADED
    assert level.advance(START + 5 + POLICY.stale_after + 3 * POLICY.fall) is NORMAL


def test_what_nobody_renews_takes_no_memory() -> None:
    level = _level()
    for step in range(2000):
        level.report(START + step, Signal.POOL_WAIT, 1.0, f"pool{step}")
    assert len(level._known) <= POLICY.stale_after + 1


# -- the state


def test_it_goes_up_through_the_states_at_their_thresholds() -> None:
    level = _level()
    seen = []
    for step in range(400):
        level.report(START + step / 100, Signal.LOOP_LAG, 1.0)
        seen.append((level.level, level.state))
    for reached, state in seen:
        assert state is (OVERLOADED if reached >= 0.8 else ELEVATED if reached >= 0.5 else NORMAL)
    assert level.counts == {("normal", "elevated"): 1, ("elevated", "overloaded"): 1}


def test_it_leaves_a_state_only_well_below_where_it_entered_it() -> None:
    level = _level(OverloadPolicy(loop_lag=PLAIN, dwell=0))
    now = _hold(level, START, 30, 1.0)
    seen = []
    for step in range(1000):
        level.report(now + step / 100, Signal.LOOP_LAG, 0.0)
        seen.append((level.level, level.state))
    for reached, state in seen:
        assert state is (OVERLOADED if reached >= 0.6 else ELEVATED if reached >= 0.3 else NORMAL)
    assert _changes(level)[2:] == ["overloaded>elevated", "elevated>normal"]


def test_a_worse_state_comes_at_once_and_a_better_one_only_after_the_dwell_time() -> None:
    policy = OverloadPolicy(loop_lag=PLAIN, rise=0.01, fall=0.01, dwell=4)
    level = _level(policy)
    now = _hold(level, START, 1, 1.0)
    assert level.state is OVERLOADED
    overloaded_since = level.since
    now = _hold(level, now, 20, 0.0)
    down = level.transitions[-1]
    assert (down.before, down.after) == ("overloaded", "normal"), "the level has long been at the bottom"
    assert down.at - overloaded_since == pytest.approx(4, abs=0.125)
    level.report(now, Signal.LOOP_LAG, 1.0)
    assert level.advance(now + 0.1) is OVERLOADED


def test_a_jump_can_skip_a_state() -> None:
    level = _level()
    level.report(START, Signal.LOOP_LAG, 1.0)
    level.advance(START + 5)
    assert _changes(level) == ["normal>overloaded"]


def test_only_the_last_transitions_are_kept_and_all_are_counted() -> None:
    level = _level(OverloadPolicy(loop_lag=PLAIN, rise=0.01, fall=0.01, dwell=0))
    for step in range(100):
        level.report(START + step, Signal.LOOP_LAG, step % 2)
    level.advance(START + 100)
    assert len(level.transitions) == OverloadLevel.KEPT
    assert level.counts == {("normal", "overloaded"): 50, ("overloaded", "normal"): 49}


# -- properties

READINGS = st.floats(-2, 5) | st.sampled_from([None, math.nan, math.inf, -math.inf])
REPORTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.001, 0.05, 0.4, 3.0, 11.0, 60.0, -0.01]),
        st.sampled_from([Signal.LOOP_LAG, Signal.MEMORY, Signal.SLOTS, Signal.POOL_WAIT]),
        READINGS,
        st.sampled_from(["", "other"]),
    ),
    max_size=40,
)
POLICIES = st.builds(
    lambda rise, more, thresholds, dwell, stale: OverloadPolicy(
        loop_lag=PLAIN, memory=Band(0.2, 0.9, 0.7), rise=rise, fall=rise + more, dwell=dwell, stale_after=stale,
        leave_elevated=thresholds[0], enter_elevated=thresholds[1],
        leave_overloaded=thresholds[2], enter_overloaded=thresholds[3],
    ),
    st.floats(0.01, 10),
    st.floats(0, 20),
    st.lists(st.integers(1, 99), min_size=4, max_size=4, unique=True).map(lambda four: [x / 100 for x in sorted(four)]),
    st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    st.sampled_from([0.1, 1.0, 10.0]),
)  # fmt: skip
Report = tuple[float, Signal, float | None, str]


@given(POLICIES, REPORTS)
def test_the_level_stays_between_0_and_1_and_the_state_obeys_its_thresholds(
    policy: OverloadPolicy, reports: list[Report]
) -> None:
    level, now = _level(policy), START
    for passed, signal, reading, source in reports:
        now += passed
        before, since = level.state, level.since
        level.report(now, signal, reading, source)
        assert 0 <= level.level <= 1
        if level.level >= policy.enter_overloaded:
            assert level.state is OVERLOADED
        elif level.level >= policy.enter_elevated:
            assert level.state is not NORMAL
        if _rank(level.state) < _rank(before):
            assert level.since - since >= policy.dwell
            assert level.level < (policy.leave_elevated if level.state is NORMAL else policy.leave_overloaded)
    level.advance(now + policy.stale_after + 20 * policy.fall + policy.dwell + 1)
    assert level.level < 0.01
    assert level.state is NORMAL, "no state is a trap"
    for earlier, later in pairwise(level.transitions):
        assert (earlier.after, earlier.at) == (later.before, min(earlier.at, later.at))


def _rank(state: OverloadState) -> int:
    return list(OverloadState).index(state)


@given(POLICIES, REPORTS, st.data())
def test_a_worse_reading_never_makes_the_level_better(
    policy: OverloadPolicy, reports: list[Report], data: st.DataObject
) -> None:
    level, worse, now = _level(policy), _level(policy), START
    for passed, signal, reading, source in reports:
        now += passed
        more = reading
        if reading is not None and not math.isnan(reading) and data.draw(st.booleans()):
            more = reading + data.draw(st.floats(0, 3))
        level.report(now, signal, reading, source)
        worse.report(now, signal, more, source)
        assert worse.level >= level.level - 1e-12
        assert all(worse.signals()[each] >= known for each, known in level.signals().items())


@given(POLICIES, REPORTS, st.lists(st.floats(0, 1), max_size=5))
def test_asking_more_often_does_not_change_the_level(
    policy: OverloadPolicy, reports: list[Report], parts: list[float]
) -> None:
    level, asked, now = _level(policy), _level(policy), START
    for passed, signal, reading, source in reports:
        for part in sorted(parts):
            asked.advance(now + part * passed)
        now += passed
        level.report(now, signal, reading, source)
        asked.report(now, signal, reading, source)
        assert asked.level == pytest.approx(level.level, abs=1e-9)
        assert asked.signals() == level.signals()


@given(
    st.sampled_from([(0.31, 0.49, NORMAL), (0.31, 0.59, ELEVATED), (0.61, 0.79, OVERLOADED)]),
    st.lists(st.tuples(st.floats(0.001, 5), st.floats(0, 1)), min_size=1, max_size=60),
)
def test_noise_between_the_thresholds_of_a_state_never_changes_it(
    case: tuple[float, float, OverloadState], noise: list[tuple[float, float]]
) -> None:
    low, high, state = case
    level = _level()
    now = START if state is NORMAL else _hold(level, START, 30, 0.55 if state is ELEVATED else 1.0)
    now = _hold(level, now, 30, (low + high) / 2)
    before = list(level.transitions)
    assert level.state is state
    for passed, part in noise:
        now += passed
        level.report(now, Signal.LOOP_LAG, low + part * (high - low))
    assert list(level.transitions) == before


@given(POLICIES, REPORTS, st.sampled_from(["elevated", "overloaded"]), st.floats(0.01, 0.99))
def test_a_steady_reading_between_two_thresholds_changes_the_state_once_at_most(
    policy: OverloadPolicy, reports: list[Report], state: str, part: float
) -> None:
    """Whatever was before."""
    policy = replace(policy, stale_after=3600)  # a reading that goes stale between two reports is not steady
    level, now = _level(policy), START
    for passed, signal, reading, source in reports:
        now += passed
        level.report(now, signal, reading, source)
    for signal in (Signal.LOOP_LAG, Signal.MEMORY, Signal.SLOTS, Signal.POOL_WAIT):
        for source in ("", "other"):
            level.report(now, signal, 0.0, source)
    leave, enter = getattr(policy, f"leave_{state}"), getattr(policy, f"enter_{state}")
    steady = leave + part * (enter - leave)
    changes = sum(level.counts.values())
    for _ in range(200):
        level.report(now, Signal.LOOP_LAG, steady)
        now += policy.fall / 10
    assert sum(level.counts.values()) - changes <= 1
