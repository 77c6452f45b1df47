from __future__ import annotations

import pytest

from resilient_mw.lab.records import Record, load_figures, per_second, percentile


def record(
    latency: float,
    status: int = 200,
    *,
    late: float = 0.0,
    retry_after: str | None = None,
    reason: str | None = None,
    gave_up: bool = False,
) -> Record:
    return Record("checkout", 0.0, late, latency, status, retry_after, reason, gave_up)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile(reversed(range(1, 101)), share) == expected


def test_percentile_of_one_and_of_nothing() -> None:
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([], 0.5) is None


@pytest.mark.parametrize(
    ("one", "outcome"),
    [
        (record(0.1, 200), "served"),
        (record(0.1, 204), "served"),
        (record(0.1, 503), "refused"),
        (record(0.1, 500), "failed"),
        (record(0.1, 302), "failed"),
        (record(0.1, 0), "failed"),
        (record(10, 0, gave_up=True), "gave_up"),
    ],
)
def test_outcome(one: Record, outcome: str) -> None:
    assert one.outcome == outcome


@pytest.mark.parametrize(
    ("retry_after", "reason", "explained"),
    [("2", "queue_full", True), ("0", "queue_full", True), (None, "queue_full", False), ("2", None, False),
     ("2", "", False), ("soon", "queue_full", False), ("-1", "queue_full", False), ("1.5", "queue_full", False)],
)  # fmt: skip
def test_a_refusal_is_explained_by_reason_and_whole_seconds(
    retry_after: str | None, reason: str | None, explained: bool
) -> None:
    assert record(0.01, 503, retry_after=retry_after, reason=reason).explained is explained


def test_figures_of_a_load() -> None:
    records = [
        *(record(0.1) for _ in range(5)),
        record(0.3),
        record(0.002, 503, retry_after="2", reason="queue_full"),
        record(0.004, 503),
        record(0.5, 500, late=0.2),
        record(10.0, 0, gave_up=True),
        record(99.0)._replace(kind="health"),
    ]
    figures = load_figures("checkout", records)
    counts = {name.removeprefix("checkout_"): value for name, value in figures.items()}
    assert counts["sent"] == 10
    assert (counts["served"], counts["refused"], counts["failed"], counts["gave_up"]) == (6, 2, 1, 1)
    assert counts["lost"] == 4
    assert counts["unexplained"] == 1
    assert (counts["p50"], counts["p99"]) == (0.1, 10.0)
    assert (counts["served_p50"], counts["served_p99"]) == (0.1, 0.3)
    assert (counts["refused_p50"], counts["refused_p99"]) == (0.002, 0.004)
    assert counts["late_p99"] == 0.2
    assert (counts["served_share"], counts["refused_share"]) == (0.6, 0.2)


def test_figures_of_a_phase_carry_its_name() -> None:
    figures = load_figures("checkout", [record(0.1)], "10x")
    assert figures["checkout_10x_sent"] == 1
    assert {name.startswith("checkout_10x_") for name in figures} == {True}


def test_a_load_without_requests_has_counts_and_no_times() -> None:
    figures = load_figures("checkout", [])
    assert figures["checkout_sent"] == 0
    assert figures["checkout_p50"] is None
    assert figures["checkout_served_share"] is None


def test_per_second() -> None:
    assert per_second([0.0, 0.99, 1.0, 2.5, -0.1, 3.0], 3) == [2, 1, 1]
