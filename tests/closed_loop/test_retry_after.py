"""`Retry-After` is true: who comes back when he was told to finds that the backlog he saw has gone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.forecast import Forecast
from resilient_mw.simulation import Bursts, Exponential, Outcome, Request, Traffic, percentile
from tests.closed_loop.scenes import LIMIT, play, traffic

# Ten slots of a second each, forty who wait: four seconds to work off, so that whole seconds say something.
SLOW = Exponential(1.0)
POLICY = ServerPolicy(limit=LIMIT, queue=40, max_wait=30, wait_share=1, deadline_default=60)


def told_over_true(ended: list[Request]) -> list[float]:
    """For each refusal: the told delay divided by the time until the last of those who then waited was served."""
    started = sorted(
        (request.sent_at, request.began_at) for request in ended if request.began_at == request.began_at
    )
    sent = [at for at, _ in started]
    ratios = []
    for request in ended:
        if request.retry_after is not None:
            before = started[: bisect_right(sent, request.ended_at)]
            last = max((began for _, began in before[-2 * POLICY.queue_length :]), default=0.0)
            if last > request.ended_at:
                ratios.append(request.retry_after / (last - request.ended_at))
    return ratios


def overload(load: float) -> list[float]:
    ended: list[Request] = []
    play(
        60,
        Traffic(name="page", arrivals=traffic(load * 0.05).arrivals, service=SLOW),
        policy=POLICY,
        observe=ended.append,
    )
    return told_over_true(ended)


@pytest.mark.parametrize("load", [1.5, 3, 6])
def test_the_told_delay_is_the_time_that_the_backlog_takes(load: float) -> None:
    ratios = overload(load)
    assert len(ratios) > 100
    assert 0.9 <= percentile(ratios, 0.5) <= 1.6
    assert percentile(ratios, 0.1) >= 0.7
    assert percentile(ratios, 0.9) <= 2.2


def test_a_delay_from_thin_air_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forecast, "retry_after", lambda *_: 1)
    assert percentile(overload(3), 0.5) < 0.5


def comeback() -> list[Request]:
    """Every twenty seconds ninety come at once; forty too many, who come back once."""
    ended: list[Request] = []
    burst = Traffic(name="page", arrivals=Bursts(size=90, every=20, spread=0.05), service=SLOW, returns=1)
    play(200, burst, policy=POLICY, observe=ended.append)
    return [request for request in ended if request.attempt == 1]


def served(requests: list[Request]) -> float:
    return sum(request.outcome is Outcome.IN_TIME for request in requests) / len(requests)


def test_those_who_come_back_are_served() -> None:
    returned = comeback()
    assert len(returned) > 300
    assert served(returned) > 0.9


def test_those_who_come_back_after_a_second_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forecast, "retry_after", lambda *_: 1)
    assert served(comeback()) < 0.5


def test_those_who_were_refused_together_do_not_come_back_together() -> None:
    """In whole seconds, which is all that the header can say. Nothing is known yet at the first burst."""
    second = [request.sent_at for request in comeback() if 20 <= request.sent_at < 40]
    by_second = Counter(int(at) for at in second)
    assert len(by_second) >= 3
    assert max(by_second.values()) < 0.7 * len(second)


def test_the_lowest_class_is_told_to_stay_away_for_longer() -> None:
    ended: list[Request] = []
    play(
        100,
        Traffic(name="checkout", arrivals=traffic(0.1).arrivals, service=SLOW, priority="critical"),
        Traffic(name="report", arrivals=traffic(0.1).arrivals, service=SLOW, priority="sheddable"),
        policy=POLICY,
        observe=ended.append,
    )
    told = {
        name: [
            request.retry_after
            for request in ended
            if request.retry_after is not None and request.route.template == name
        ]
        for name in ("checkout", "report")
    }
    assert all(len(delays) > 50 and max(delays) <= 60 for delays in told.values())
