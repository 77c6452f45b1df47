"""The table of statuses and failures: what each says about the dependency and about another attempt."""

from __future__ import annotations

import itertools

import pytest

from resilient_mw.calls.classify import Verdict, classify_failure, classify_head
from resilient_mw.calls.events import Failure, Head, Phase

STATUSES = {
    # status: (blames the dependency, may pass, may have acted)
    200: (False, False, True),
    204: (False, False, True),
    301: (False, False, True),
    304: (False, False, True),
    400: (False, False, True),
    401: (False, False, True),
    403: (False, False, True),
    404: (False, False, True),
    408: (None, True, True),
    409: (False, False, True),
    413: (False, False, True),
    422: (False, False, True),
    425: (None, True, False),
    429: (None, False, True),
    500: (True, True, True),
    501: (False, False, True),
    502: (True, True, True),
    503: (True, True, True),
    504: (True, True, True),
    505: (False, False, True),
    507: (True, False, True),
    511: (True, False, True),
    599: (True, False, True),
}


@pytest.mark.parametrize(("status", "expected"), STATUSES.items())
def test_statuses(status: int, expected: tuple[bool | None, bool, bool]) -> None:
    verdict = classify_head(Head(status))
    assert (verdict.failed, verdict.passing, verdict.acted) == expected


def test_no_other_status_below_500_blames_the_dependency_or_is_repeated() -> None:
    for status in set(range(100, 500)) - set(STATUSES):
        assert classify_head(Head(status, retry_after=1.0)) == Verdict(
            failed=False, passing=False, acted=True
        )


def test_429_may_pass_when_it_says_when() -> None:
    assert classify_head(Head(429, retry_after=0.0)).passing
    assert classify_head(Head(429, retry_after=3.0)) == Verdict(failed=None, passing=True, acted=True)
    assert not classify_head(Head(429)).passing


@pytest.mark.parametrize("status", [429, 500, 503, 504])
def test_what_a_trusted_dependency_refused_was_not_begun_and_is_not_its_fault(status: int) -> None:
    for retry_after in (None, 2.0):
        verdict = classify_head(Head(status, retry_after, refused=True))
        assert verdict == Verdict(failed=None, passing=True, acted=False)


def test_a_body_that_a_trusted_dependency_refused_for_its_size_is_not_sent_again() -> None:
    assert classify_head(Head(413, refused=True)) == Verdict(failed=None, passing=False, acted=False)


def test_an_answer_is_no_refusal_whatever_its_headers_say() -> None:
    assert classify_head(Head(200, refused=True)) == classify_head(Head(200))


def test_what_counts_as_failure_can_be_set_and_changes_nothing_else() -> None:
    for status in range(100, 600):
        usual, other = classify_head(Head(status)), classify_head(Head(status), frozenset({404, 429}))
        assert (other.passing, other.acted) == (usual.passing, usual.acted)
        assert other.failed is (status in {404, 429} or (None if status in {408, 425} else False))


def test_b58_a_table_of_all_failures() -> None:
    unsent = {Phase.POOL, Phase.DNS, Phase.CONNECT, Phase.TLS}
    truth = (False, True)
    for phase, timed_out, ours, cut_short in itertools.product(Phase, truth, truth, truth):
        verdict = classify_failure(Failure(phase, timed_out=timed_out, ours=ours), cut_short=cut_short)
        assert verdict.failed is (None if ours or cut_short else True)
        assert verdict.passing
        assert verdict.acted is (phase not in unsent)
