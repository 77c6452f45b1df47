"""What a controller takes in while its server is about to stop."""

from __future__ import annotations

import pytest

from resilient_mw.core.priority import EXEMPT
from resilient_mw.core.rejection import Reason
from tests.admission.desk import PATIENT, Desk


def test_until_the_delay_is_over_new_work_is_taken() -> None:
    desk = Desk(limit=2, **PATIENT)
    desk.controller.drain(5.0)
    desk.admit(0.0)
    desk.admit(4.9)
    waiter = desk.queue(4.95)
    assert desk.arrive(5.0).reason is Reason.DRAINING
    assert desk.release(6.0) == (waiter,)  # who waits keeps his place
    assert desk.arrive(7.0).reason is Reason.DRAINING
    assert desk.controller.arrive(7.0, desk.route(EXEMPT), 1, 1e9).admitted


@pytest.mark.parametrize(("first", "second"), [(5.0, 9.0), (9.0, 5.0)])
def test_a_second_drain_may_bring_it_forward_only(first: float, second: float) -> None:
    desk = Desk(limit=2)
    desk.controller.drain(first)
    desk.controller.drain(second)
    desk.admit(4.9)
    assert desk.arrive(5.0).reason is Reason.DRAINING


@pytest.mark.parametrize("ramp", [0.0, 4.0])
def test_after_a_resume_it_is_as_before(ramp: float) -> None:
    desk = Desk(limit=20, ramp=ramp)
    desk.controller.drain()
    assert desk.arrive(0.0).reason is Reason.DRAINING
    desk.controller.resume()
    assert not desk.controller.draining
    desk.admit(0.0)
    assert desk.controller.attentive is bool(ramp)


def test_the_end_of_a_ramp_does_not_end_a_drain() -> None:
    desk = Desk(limit=20, ramp=4.0)
    desk.admit(0.0)
    desk.controller.drain(10.0)
    desk.admit(9.0)
    assert desk.controller.slots.limit == 20
    assert desk.arrive(10.0).reason is Reason.DRAINING
