"""What those who watch calls are told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from resilient_mw.calls.call import Call
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Failure, Head, Phase
from resilient_mw.core.call_watch import (
    WATCHES,
    AttemptEnds,
    CallBegins,
    CallEnds,
    unwatch_calls,
    watch_calls,
)
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.watched import watched


class Log:
    """Writes down what it is told, and whether the lock was free then."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.owner: DependencyOwner | None = None

    def _take(self, what: Any) -> None:
        assert self.owner is None or not self.owner._lock.locked()
        self.told.append(what)

    def begins(self, call: CallBegins) -> Log:
        self._take(call)
        return self

    def decided(self, breaker: str | None) -> None:
        self._take(breaker)

    def starts(self, number: int, timeout: float | None) -> None:
        self._take((number, timeout))

    def attempt_ended(self, attempt: AttemptEnds) -> None:
        self._take(attempt)

    def left(self) -> None:
        self._take("left")

    def ended(self, end: CallEnds) -> None:
        self._take(end)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    watch_calls(made)
    watch_calls(made)  # A second time changes nothing.
    yield made
    unwatch_calls(made)
    unwatch_calls(made)
    assert WATCHES == []


def begun(log: Log, **fields: Any) -> tuple[DependencyOwner, Call]:
    owner = DependencyOwner(Dependency("prices", **{"retry": None, **fields}))
    log.owner = owner
    seen = watched(owner, http=True)
    call = Call(owner.state, "GET")
    seen.begin(call)
    return seen, call


def test_the_steps_of_a_call_in_order(log: Log) -> None:
    owner, call = begun(log)
    owner.tell(call, 1, Head(200))
    owner.end(call, None)
    assert log.told == [
        CallBegins("prices", http=True, budget=None),
        "closed",
        (1, 2.0),
        AttemptEnds(1, 200, None, timed_out=False),
        "left",
        CallEnds("answered", 1),
    ]


def test_what_comes_after_the_end_is_told_to_nobody(log: Log) -> None:
    owner, call = begun(log, timeout=None, breaker=None)
    owner.tell(call, 1, Failure(Phase.TLS))
    before = list(log.told)
    assert before[1:] == [
        None,
        (1, None),
        AttemptEnds(1, None, "tls", timed_out=False),
        "left",
        CallEnds("failed", 1, phase="tls"),
    ]
    owner.cancel(call)
    owner.abandon(call)
    owner.end(call, None)
    begun(log)
    assert log.told[len(before) :][0] == CallBegins("prices", http=True, budget=None)


def test_a_body_that_breaks_is_a_failure(log: Log) -> None:
    owner, call = begun(log)
    owner.tell(call, 1, Head(200))
    owner.end(call, Failure(Phase.BODY, timed_out=True))
    assert log.told[-1] == CallEnds("failed", 1, phase="body", timed_out=True)


def test_a_finalizer_tells_nobody(log: Log) -> None:
    owner, call = begun(log)
    owner.tell(call, 1, Head(200))
    before = list(log.told)
    owner.abandon(call)
    assert log.told == before
    assert owner.state.in_use == 0
    begun(log)
    end = log.told[len(before)]
    assert (end.outcome, end.attempts) == ("cancelled", 1)
    assert end.ago > 0


def test_the_watched_owner_is_the_owner(log: Log) -> None:
    owner = DependencyOwner(Dependency("prices", retry=None))
    seen = watched(owner, http=True)
    call = Call(owner.state, "GET")
    seen.begin(call)
    assert seen.state is owner.state
    assert owner.snapshot().in_use == 1
    owner.forked()
    assert seen.state is owner.state
    assert seen._lock is owner._lock


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_tells_no_end_of_its_parent_s_calls(log: Log) -> None:
    owner, call = begun(log)
    owner.tell(call, 1, Head(200))
    owner.abandon(call)
    if threading.active_count() > 1:
        pytest.skip("a fork beside other threads")
    child = os.fork()
    if child == 0:
        before = len(log.told)
        begun(log)
        os._exit(0 if log.told[before] == CallBegins("prices", http=True, budget=None) else 1)
    assert os.waitpid(child, 0)[1] == 0
    before = len(log.told)
    begun(log)
    assert log.told[before].outcome == "cancelled"
