"""The circuit of a dependency by hand, from any thread; what its listeners hear, and what the snapshot tells."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from resilient_mw import BreakerPolicy, Dependency
from resilient_mw.calls.call import Call
from resilient_mw.calls.events import Action, Failure, Phase, Refuse, Start
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import Transition
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw.testing import ManualClock


def _dependency(**policy: Any) -> Dependency:
    fields = {"window": 4, "minimum_calls": 2, "open_for": 5.0, "open_jitter": 0.0, **policy}
    return Dependency("prices", "http://prices/*", retry=None, breaker=BreakerPolicy(**fields))


def _attempt(owner: DependencyOwner, *, failing: bool = True) -> Action:
    call = Call(owner.state, "POST")
    *_, last = owner.begin(call)
    if isinstance(last, Start) and failing:
        owner.tell(call, last.number, Failure(Phase.HEAD))
    return last


def test_opened_closed_and_reset_from_another_thread() -> None:
    dependency = _dependency()
    owner = owner_of(dependency)
    for verb, refused, held in (
        (dependency.open_circuit, True, True),
        (dependency.close_circuit, False, True),
        (dependency.reset_circuit, False, False),
    ):
        thread = threading.Thread(target=verb)
        thread.start()
        thread.join()
        last = _attempt(owner, failing=False)
        assert isinstance(last, Refuse) is refused
        circuit = dependency.snapshot().circuit
        assert circuit is not None
        assert circuit.held is held
    dependency.open_circuit()
    last = _attempt(owner)
    assert isinstance(last, Refuse)
    assert (last.reason, last.retry_in) == (Reason.CIRCUIT_OPEN, 0.0)
    assert owner.closed_for() == 0.0


def test_what_cannot_be_done_by_hand_is_an_error_that_says_why() -> None:
    with pytest.raises(RuntimeError, match="make a transport"):
        _dependency().open_circuit()
    bare = Dependency("prices", "http://prices/*", breaker=None)
    owner_of(bare)
    with pytest.raises(RuntimeError, match="breaker is None"):
        bare.open_circuit()


def test_listeners_hear_of_each_change_outside_the_lock() -> None:
    heard: list[tuple[str, str]] = []

    def listener(name: str, change: Transition) -> None:
        heard.append((name, change.after))
        dependency.snapshot()
        assert isinstance(_attempt(owner), Refuse)

    def broken(name: str, change: Transition) -> None:
        raise RuntimeError("in the listener")

    dependency = _dependency(listeners=[broken, listener])
    owner = owner_of(dependency)
    for _ in range(2):
        _attempt(owner)
    assert heard == [("prices", "open")]
    circuit = dependency.snapshot().circuit
    assert circuit is not None
    assert circuit.failed_listeners == 1


def test_a_snapshot_sees_calls_that_hang() -> None:
    clock = ManualClock()
    dependency = _dependency(slow_after=1.0)
    owner = DependencyOwner(dependency, clock)
    dependency.owner.append(owner)
    for _ in range(2):
        _attempt(owner, failing=False)
    clock.advance(1.0)
    assert dependency.snapshot().breaker == "open"
    assert owner.closed_for() is not None


def test_the_shadow_counts_and_lets_pass() -> None:
    dependency = _dependency(shadow=True)
    owner = owner_of(dependency)
    for _ in range(5):
        assert isinstance(_attempt(owner), Start)
    circuit = dependency.snapshot().circuit
    assert circuit is not None
    assert circuit.would_refuse == 3
    assert owner.closed_for() is None
