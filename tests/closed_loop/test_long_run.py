"""An hour of overload in a few seconds, and runs that can be repeated."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import pairwise

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.simulation import Constant, Even, Exponential, Measures, Poisson, Traffic, Workers, table
from tests.closed_loop.scenes import LIMIT, play, traffic

HOUR = 3600


def test_an_hour_of_five_times_the_load_ends_as_it_began() -> None:
    """No drift: neither in goodput, nor in latency, nor in what is refused."""
    page = Traffic(name="page", arrivals=Poisson(20), service=Exponential(1.0), deadline=12)
    figures = play(HOUR, page, policy=ServerPolicy(limit=4), plant=Workers(4), sample=1).total
    assert figures.offered > 70_000
    assert figures.goodput(0, HOUR) >= 0.98 * 4
    tenths = range(0, HOUR, HOUR // 10)
    p99 = [figures.percentile(0.99, start, start + HOUR // 10) for start in tenths]
    refused = [figures.refusal_share(start, start + HOUR // 10) for start in tenths]
    goodput = [figures.goodput(start, start + HOUR // 10) for start in tenths]
    assert max(p99) <= 1.35 * min(p99)
    assert max(refused) - min(refused) < 0.05
    assert min(goodput) >= 0.9 * 4
    assert all(abs(after - before) < 0.6 for before, after in pairwise(goodput))


def lab_7(policy: ServerPolicy | None, workers: int) -> Measures:
    """80 checkouts/s that take 200 ms where ten at once are possible, and 5 health checks/s, for 15 s."""
    checkout = Traffic(name="checkout", arrivals=Even(80), service=Constant(0.2), patience=Constant(10))
    health = Traffic(name="health", arrivals=Even(5), service=Constant(0.001), priority="exempt")
    return play(15, checkout, health, policy=policy, plant=Workers(workers))


def test_an_unbounded_queue_serves_everybody_after_seconds() -> None:
    measures = lab_7(None, workers=10)
    assert measures["checkout"].in_time == measures["checkout"].offered > 1198
    assert 4 < measures["checkout"].percentile(0.5) < 5.5
    assert measures["health"].percentile(0.5) > 3.5


def test_a_short_queue_serves_fewer_at_once_and_health_checks_as_ever() -> None:
    measures = lab_7(ServerPolicy(limit=10, queue=20), workers=34)
    assert 740 <= measures["checkout"].in_time <= 790
    assert measures["checkout"].percentile(0.5) <= 0.7
    assert measures["checkout"].refused == measures["checkout"].offered - measures["checkout"].in_time
    assert measures["health"].in_time == measures["health"].offered > 73
    assert measures["health"].percentile(0.99) <= 0.01


def fingerprint(seed: int) -> str:
    measures = play(
        2,
        traffic(2, name="a", priority="critical", patience=0.2),
        traffic(2, name="b", cost=3, returns=2),
        policy=ServerPolicy(limit=LIMIT),
        seed=seed,
    )
    state = [table(measures), list(measures.total.finished_at), list(measures.levels.waiting)]
    return hashlib.sha256(repr(state).encode()).hexdigest()


def test_a_seed_gives_the_same_run_and_another_seed_another_one() -> None:
    assert fingerprint(7) == fingerprint(7)
    assert fingerprint(7) != fingerprint(8)


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    """Nothing depends on the order of hashes."""
    code = "from tests.closed_loop.test_long_run import fingerprint; print(fingerprint(7))"
    path = os.pathsep.join(each for each in sys.path if each)
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == fingerprint(7)
