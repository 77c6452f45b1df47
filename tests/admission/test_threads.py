"""The sum of worker threads: what fits, what a shortened queue keeps, and what the complaint says to change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.threads import ThreadSum

COUNTS = st.integers(0, 200)


@pytest.mark.parametrize(
    ("threads", "says"),
    [
        (35, None),
        (34, None),
        (33, "Start 34 threads, or set queue=19, which fit_queue=True does by itself"),
        (14, "set queue=0"),
        (13, "set limit=9 and queue=0"),
        (4, "lower spare_threads, limit and queue"),
        (1, "nothing to admit"),
    ],
)
def test_what_is_wrong_and_what_to_change(threads: int, says: str | None) -> None:
    complaint = ThreadSum(threads, 10, 20, 4).complaint("the server", fitted=False)
    assert says in complaint if says is not None and complaint is not None else complaint is says


@pytest.mark.parametrize(("threads", "complains"), [(34, False), (14, False), (13, True), (1, True)])
def test_a_shortened_queue_suffices_as_long_as_the_limit_fits(threads: int, *, complains: bool) -> None:
    complaint = ThreadSum(threads, 10, 20, 4).complaint("the server", fitted=True)
    assert (complaint is not None) is complains


@given(st.integers(1, 200), st.integers(1, 200), COUNTS, COUNTS)
def test_a_shortened_queue_is_the_longest_that_fits(threads: int, limit: int, queue: int, spare: int) -> None:
    needs = ThreadSum(threads, limit, queue, spare)
    assert 0 <= needs.room <= queue
    if needs.room:
        assert limit + needs.room + spare <= threads
    if needs.room < queue:
        assert limit + needs.room + 1 + spare > threads
    assert (needs.complaint("", fitted=False) is None) is (needs.needed <= threads and threads > 1)


def test_the_queue_of_a_policy_is_shortened_only_where_it_says_so() -> None:
    policy = ServerPolicy(limit=10, queue=20, threads=18)
    assert policy.queue_length == 20
    assert policy.with_changes({"fit_queue": True}).queue_length == 4
    assert policy.with_changes({"fit_queue": True, "spare_threads": 0}).queue_length == 8
    assert policy.with_changes({"fit_queue": True, "threads": None}).queue_length == 20
