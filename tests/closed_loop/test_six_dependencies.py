from __future__ import annotations

from tests.closed_loop.six import BARE, BEFORE, LONG, Seen, Site, protections

RATE = 80.0
"""Requests a second: a tenth of what `python -m tests.closed_loop.six` shows."""

SLOW = (BEFORE, BEFORE + LONG)


def run(policies: dict[str, object]) -> Seen:
    return Site(RATE, policies, seed=6).run()


def test_without_breakers_one_slow_dependency_takes_all_pages_down() -> None:
    seen = run(BARE)
    assert seen.p95(0, BEFORE) < 0.25
    assert seen.p95(*SLOW) > 5.0
    assert seen.use == 1.0
    assert seen.served(*SLOW, needs_slow=False) < 0.5


def test_with_them_nobody_notices_who_does_not_need_it() -> None:
    seen = run(protections(RATE))
    assert seen.p95(*SLOW) <= 1.6 * seen.p95(0, BEFORE)
    assert seen.use < 0.6
    assert seen.errors == 0
    assert seen.served(*SLOW, needs_slow=False) == 1.0
    assert seen.served(*SLOW, needs_slow=True) < 0.01
    assert seen.served(BEFORE + LONG + 6, BEFORE + LONG + 30, needs_slow=True) == 1.0, "it is asked again"
