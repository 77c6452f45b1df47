from __future__ import annotations

import math
import threading

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import hello


def test_the_clock_moves_by_hand_only() -> None:
    clock = ManualClock()
    assert clock.now() == 0.0
    assert clock.advance(1.5) == 1.5
    assert clock.advance(0) == 1.5
    assert clock.now() == 1.5


@pytest.mark.parametrize("seconds", [-0.1, math.nan, math.inf, "1", None, True])
def test_it_never_goes_back_nor_nowhere(seconds: float) -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="seconds=.* is not allowed"):
        clock.advance(seconds)
    assert clock.now() == 0.0


def test_it_has_a_ceiling() -> None:
    clock = ManualClock()
    clock.advance(1e6)
    with pytest.raises(ValueError, match="would pass 1e"):
        clock.advance(0.001)
    assert clock.now() == 1e6


def test_threads_that_move_it_together_lose_no_time() -> None:
    clock = ManualClock()
    threads = [threading.Thread(target=lambda: [clock.advance(1) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert clock.now() == 2000


def test_a_policy_reads_the_clock_that_it_was_given() -> None:
    policy, clock = ServerPolicy(), ManualClock()
    use_clock(policy, clock)
    assert guard_of(policy).clock is clock
    assert ScriptedWSGI(ResilienceMiddleware(hello, policy)).run().body == b"hello"


def test_a_policy_in_use_keeps_its_clock() -> None:
    policy = ServerPolicy(name="shop")
    middleware = ResilienceMiddleware(hello, policy)
    with pytest.raises(RuntimeError, match="'shop' is in use already"):
        use_clock(policy, ManualClock())
    assert ScriptedWSGI(middleware).run().body == b"hello"
