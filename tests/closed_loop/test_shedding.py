"""Shedding by overload: the lowest class goes first, nobody above it pays, and what it is guaranteed it keeps."""

from __future__ import annotations

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overload_policy import OverloadPolicy, OverloadState
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation import Measures, Traffic
from tests.closed_loop.scenes import CAPACITY, LIMIT, play, traffic
from tests.closed_loop.watch import Watch

SECONDS = 30
SETTLED = 4
"""Seconds after which the state has followed the load."""
CRITICAL, NORMAL, SHEDDABLE = 8 / 13, 4 / 13, 1 / 13
THREE_TIMES = tuple(traffic(1.0, name=name, priority=name) for name in ("critical", "normal", "sheddable"))


def crowd(*kinds: Traffic, shed: bool, queue: int = 26) -> tuple[Measures, Watch]:
    watch = Watch(OverloadPolicy(), SECONDS, shed)
    return play(SECONDS, *kinds, policy=ServerPolicy(limit=LIMIT, queue=queue), meddle=watch), watch


def test_at_three_times_the_load_critical_loses_nothing_and_sheddable_goes_first() -> None:
    with_it, watch = crowd(*THREE_TIMES, shed=True)
    without, _ = crowd(*THREE_TIMES, shed=False)
    assert set(watch.between(SETTLED, SECONDS)) == {OverloadState.OVERLOADED}
    for name, share in (("critical", CRITICAL), ("normal", NORMAL)):
        goodput = with_it[name].goodput(SETTLED, SECONDS)
        assert goodput >= 0.98 * without[name].goodput(SETTLED, SECONDS)
        assert goodput >= 0.95 * share * CAPACITY
        assert Reason.OVERLOADED not in with_it[name].reasons
    refused = {
        name: with_it[name].refusal_share(SETTLED, SECONDS) for name in ("critical", "normal", "sheddable")
    }
    assert refused["sheddable"] > refused["normal"] + 0.1 > refused["critical"] + 0.1
    reasons = with_it["sheddable"].reasons
    assert reasons[Reason.OVERLOADED] > 0.8 * sum(reasons.values())
    # Without it they wait first, and are pushed out or time out then.
    assert Reason.OVERLOADED not in without["sheddable"].reasons


def test_while_it_is_shed_a_class_still_gets_the_share_of_its_weight() -> None:
    with_it, _ = crowd(*THREE_TIMES, shed=True)
    assert with_it["sheddable"].goodput(SETTLED, SECONDS) == pytest.approx(SHEDDABLE * CAPACITY, rel=0.25)


def test_critical_at_half_the_capacity_leaves_sheddable_half_of_its_share() -> None:
    """While the other two are far above what is left."""
    measures, watch = crowd(
        traffic(0.5, name="critical", priority="critical"),
        traffic(2.0, name="normal"),
        traffic(2.5, name="sheddable", priority="sheddable"),
        shed=True,
    )
    assert OverloadState.OVERLOADED in watch.between(SETTLED, SECONDS)
    assert measures["critical"].in_time >= 0.99 * measures["critical"].offered
    share = 1 / 5 * 0.5 * CAPACITY
    assert measures["sheddable"].goodput(SETTLED, SECONDS) >= share / 2


def test_a_service_with_room_sheds_nobody() -> None:
    kinds = (traffic(0.3, name="page"), traffic(0.2, name="report", priority="sheddable"))
    measures, _ = crowd(*kinds, shed=True)
    assert measures["report"].in_time == measures["report"].offered
