"""The client throttle: what it counts, when it acts, and what it does to a dependency under any load."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.calls.throttle import BUCKETS, Throttle, ThrottlePolicy
from tests.calls.desk import Luck

CAPACITY = 100.0


def throttle(luck: float = 0.0, patience: float = 1.0, **fields: float) -> Throttle:
    return Throttle(ThrottlePolicy(**fields), Luck(luck), patience)


def told(one: Throttle, now: float, accepted: bool | None, times: int = 1) -> None:
    for _ in range(times):
        one.sent(now)
        one.ended(now, accepted=accepted)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", 0.0),
        ("window", float("nan")),
        ("sent_per_accept", 1.0),
        ("most_refused", 1.0),
        ("most_refused", 0.0),
        ("per_second", -1.0),
    ],
)
def test_bad_values_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"ThrottlePolicy.{name}={value!r}"):
        ThrottlePolicy(**{name: value})


def test_as_long_as_half_is_accepted_nothing_is_refused() -> None:
    one = throttle()
    told(one, 1.0, True, 50)
    told(one, 1.0, False, 50)
    assert one.probability(1.0) == 0.0
    assert not one.refuses(1.0)
    told(one, 1.0, False)
    assert one.probability(1.0) == pytest.approx(1 / 102)
    assert one.refuses(1.0)


def test_what_is_refused_here_counts_as_a_request() -> None:
    one = throttle()
    told(one, 1.0, False, 20)
    told(one, 1.0, True, 5)
    for refused in range(1, 11):
        assert one.refuses(1.0)
        assert one.window() == (25 + refused, 5)
    assert one.refused == 10


def test_probes_always_flow() -> None:
    one = throttle(0.9)
    told(one, 1.0, False, 10_000)
    assert one.probability(1.0) == 0.9
    assert not one.refuses(1.0)


def test_little_traffic_is_let_through() -> None:
    one = throttle(per_second=1.0)
    told(one, 1.0, False, 9)
    assert not one.refuses(1.0)
    told(one, 1.0, False)
    assert one.refuses(1.0)


def test_what_says_nothing_is_taken_back() -> None:
    one = throttle()
    told(one, 1.0, None, 100)
    assert one.window() == (0, 0)


def test_a_hang_is_noticed_before_its_timeouts() -> None:
    """Counted at their end, not one of these would be known."""
    one = throttle(patience=1.0)
    for step in range(100):
        one.sent(step * 0.05)
    assert one.probability(5.0) > 0.5


def test_the_first_requests_of_all_are_not_taken_for_refusals() -> None:
    one = throttle(patience=1.0)
    for step in range(100):
        one.sent(step * 0.01)
        assert not one.refuses(step * 0.01)


def test_a_late_answer_of_a_bucket_that_was_forgotten_changes_nothing() -> None:
    one = throttle()
    one.sent(0.1)
    told(one, 10.6, True, 3)
    one.ended(0.1, accepted=True)
    assert one.window() == (3, 3)
    one.ended(0.1, accepted=None)
    assert one.window() == (3, 3)


def test_b77_a_waiter_that_asked_and_left_has_used_nothing_up() -> None:
    one = throttle(0.99)
    told(one, 1.0, False, 50)
    before = one.window()
    for _ in range(500):
        assert not one.refuses(1.0)  # Let through to wait for a slot, and gone before it came.
    assert one.window() == before


@given(
    st.lists(
        st.tuples(
            st.floats(0, 3),
            st.sampled_from(["sent", "refuses", "ok", "refused", "nothing"]),
            st.integers(0, 50),
        ),
        max_size=120,
    )
)
def test_its_window_is_what_a_plain_count_finds(steps: list[tuple[float, str, int]]) -> None:
    one = throttle(per_second=0.0)
    now, width = 0.0, 10.0 / BUCKETS
    flying: list[dict[str, float | bool]] = []
    books: list[dict[str, float | bool]] = []
    for pause, what, which in steps:
        now += pause
        if what == "sent":
            one.sent(now)
            flying.append({"at": now, "accepted": False})
            books.append(flying[-1])
        elif what == "refuses":
            if one.refuses(now):
                books.append({"at": now, "accepted": False})
        elif flying:
            entry = flying.pop(which % len(flying))
            one.probability(now)
            one.ended(float(entry["at"]), accepted={"ok": True, "refused": False, "nothing": None}[what])
            entry["accepted"] = what == "ok"
            if what == "nothing":
                books[:] = [each for each in books if each is not entry]
        chance = one.probability(now)
        inside = [entry for entry in books if int(entry["at"] / width) > int(now / width) - BUCKETS]
        assert one.window() == (len(inside), sum(bool(entry["accepted"]) for entry in inside))
        assert 0.0 <= chance <= 0.9
        assert all(count >= 0 for count in (*one._seen, *one._accepted, *one._open))


@dataclass
class Plant:
    """A dependency that accepts so many requests in a second and refuses the others, behind a throttle."""

    policy: ThrottlePolicy
    rng: Random
    sent: dict[int, int] = field(default_factory=dict)
    offered: dict[int, int] = field(default_factory=dict)

    def run(self, until: float, times: float, then: float, at: float) -> None:
        """Offer `times` the capacity, and `then` times from an instant on."""
        one = Throttle(self.policy, self.rng, 1.0)
        now = last = 0.0
        tokens = 0.0
        answers: list[tuple[float, float, bool]] = []
        while now < until:
            now += self.rng.expovariate(CAPACITY * (times if now < at else then))
            while answers and answers[0][0] <= now:
                _, sent_at, accepted = heapq.heappop(answers)
                one.ended(sent_at, accepted=accepted)
            second = int(now)
            self.offered[second] = self.offered.get(second, 0) + 1
            if one.refuses(now):
                continue
            one.sent(now)
            self.sent[second] = self.sent.get(second, 0) + 1
            tokens = min(10.0, tokens + (now - last) * CAPACITY)
            last = now
            accepted = tokens >= 1.0
            tokens -= accepted
            heapq.heappush(answers, (now + 0.05, now, accepted))

    def load(self) -> float:
        """What the dependency was sent after the beginning, as a multiple of its capacity."""
        return sum(count for second, count in self.sent.items() if 20 <= second < 40) / 20 / CAPACITY

    def returns(self, at: int) -> int:
        """Seconds after an instant from which on 95 % is sent for three seconds in a row."""
        good = [self.sent.get(each, 0) >= 0.95 * self.offered[each] for each in range(at, max(self.offered))]
        return next(each for each in range(len(good)) if all(good[each : each + 3]))


@pytest.mark.parametrize(
    ("times", "low", "high"),
    [(0.5, 0.45, 0.55), (0.9, 0.85, 0.95), (2, 1.9, 2.1), (10, 1.8, 2.2), (50, 4.6, 5.3)],
)
def test_the_load_of_the_dependency_is_bounded_whatever_is_offered(
    times: float, low: float, high: float
) -> None:
    """At fifty times the load the probes alone, 10 % of it, are five times what the dependency can do."""
    plant = Plant(ThrottlePolicy(), Random(7))
    plant.run(40.0, times, times, 40.0)
    assert low <= plant.load() <= high


@pytest.mark.parametrize(("k", "low", "high"), [(2.0, 12, 20), (1.5, 22, 40)])
def test_it_returns_when_the_overload_is_over(k: float, low: int, high: int) -> None:
    plant = Plant(ThrottlePolicy(sent_per_accept=k), Random(7))
    plant.run(90.0, 10.0, 0.8, 30.0)
    assert low <= plant.returns(30) <= high
