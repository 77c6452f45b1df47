"""The errors: each survives the way between two processes, with all that it knows."""

from __future__ import annotations

import copy
import pickle

import pytest

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import (
    BodyTooLarge,
    CallRefused,
    DeadlineExceeded,
    JobRefused,
    RequestCancelled,
    ResilienceError,
    UnsupportedEventLoop,
)
from resilient_mw.core.rejection import Reason


class Own(CallRefused):
    """One of the user's, with arguments of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}", Reason.BULKHEAD_FULL, "prices")
        self.number = number


class Late(DeadlineExceeded):
    """The same for what is an OSError as well."""

    def __init__(self, phase: str) -> None:
        super().__init__(f"too late in {phase}")
        self.phase = phase


@pytest.mark.parametrize(
    "error",
    [
        ResilienceError("what happened"),
        DeadlineExceeded("too late"),
        BodyTooLarge("too large"),
        CallRefused("open", Reason.CIRCUIT_OPEN, "prices", 2.5),
        JobRefused("full", Reason.QUEUE_FULL, "mails", "normal", 3),
        RequestCancelled(CancelReason.CLIENT_DISCONNECT),
        UnsupportedEventLoop("trio"),
        Own(7),
        Late("head"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("way", ["pickle", "copy"])
def test_an_error_survives_the_way_between_two_processes(error: ResilienceError, way: str) -> None:
    error.add_note("a note")
    there = pickle.loads(pickle.dumps(error)) if way == "pickle" else copy.copy(error)
    assert type(there) is type(error)
    assert there is not error
    assert (str(there), there.args, there.reason) == (str(error), error.args, error.reason)
    assert vars(there) == vars(error)
