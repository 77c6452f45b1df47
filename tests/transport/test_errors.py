"""What the errors of a call say."""

from __future__ import annotations

from resilient_mw import Dependency
from resilient_mw.calls.events import Phase, Refuse
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime import guarded_errors
from resilient_mw.transport.errors import expired_message, refused_message

PRICES = Dependency("prices", "http://prices/*")


def test_a_call_that_was_never_sent_has_no_attempt_number() -> None:
    for told, again in (
        (expired_message(PRICES, Phase.BULKHEAD, 0), expired_message(PRICES, Phase.HEAD, 2)),
        (
            guarded_errors.expired_message("prices", Phase.BULKHEAD, 0),
            guarded_errors.expired_message("prices", Phase.HEAD, 2),
        ),
    ):
        assert "before the first attempt at 'prices', waiting for a bulkhead slot" in told
        assert "in attempt 2 at 'prices'" in again


def test_an_open_circuit_is_not_said_to_have_opened_by_failures() -> None:
    """By slow attempts and by hand it opens as well."""
    timed = refused_message(PRICES, Refuse(Reason.CIRCUIT_OPEN, 4.2))
    untimed = refused_message(PRICES, Refuse(Reason.CIRCUIT_OPEN))
    assert "next trial is in 4.2 s" in timed
    assert "held open" in untimed
    assert "failures" not in timed + untimed
