"""Whatever a call holds is given back, and those who wait for it hear of it, in the odd cases too."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import httpx
import pytest

from resilient_mw import Dependency
from resilient_mw.calls.bulkhead import BulkheadPolicy, Waiter
from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy
from resilient_mw.calls.events import Failure, Phase, Queue
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw.runtime.slot_waits import pause_thread
from resilient_mw.transport.sync import SyncExchange
from resilient_mw_integrations.httpx import LIBRARY


def _owner(limit: int = 1, **fields: Any) -> DependencyOwner:
    bulkhead = BulkheadPolicy(limit=limit, max_wait=5.0)
    return owner_of(Dependency("prices", "http://prices/*", retry=None, bulkhead=bulkhead, **fields))


def _begun(owner: DependencyOwner) -> Call:
    call = Call(owner.state, "GET")
    owner.begin(call)
    return call


def _waiting(owner: DependencyOwner) -> tuple[Waiter, threading.Event]:
    (action,) = owner.begin(Call(owner.state, "GET"))
    assert isinstance(action, Queue)
    woken = threading.Event()
    action.waiter.wake = woken.set
    return action.waiter, woken


def _abandoned_while_locked(owner: DependencyOwner, call: Call) -> None:
    with owner._lock:  # A collection runs in a thread that decides.
        owner.abandon(call)


@pytest.mark.parametrize("look", ["snapshot", "closed_for", "judged", "reset"])
def test_whoever_clears_up_wakes_those_who_wait(look: str) -> None:
    owner = _owner()
    call = _begun(owner)
    waiter, woken = _waiting(owner)
    _abandoned_while_locked(owner, call)
    owner.by_hand("reset") if look == "reset" else getattr(owner, look)()
    assert waiter.granted
    assert woken.is_set()


@pytest.mark.parametrize("step", ["cancel", "end", "tell", "lost"])
def test_each_step_clears_up_what_a_finalizer_has_left(step: str) -> None:
    owner = _owner(limit=2)
    call, other = _begun(owner), _begun(owner)
    waiter, woken = _waiting(owner)
    _abandoned_while_locked(owner, call)
    steps: dict[str, tuple[Any, ...]] = {
        "cancel": (),
        "end": (None,),
        "tell": (1, Failure(Phase.HEAD)),
        "lost": (1,),
    }
    getattr(owner, step)(other, *steps[step])
    assert waiter.granted
    assert woken.is_set()


def test_a_listener_that_takes_its_time_keeps_nobody_waiting() -> None:
    awake: list[bool] = []
    breaker = BreakerPolicy(consecutive_failures=1, listeners=[lambda *_: awake.append(woken.is_set())])
    owner = _owner(breaker=breaker)
    call = _begun(owner)
    _, woken = _waiting(owner)
    owner.tell(call, 1, Failure(Phase.HEAD))
    assert awake == [True]


def test_a_listener_that_ends_the_thread_keeps_nobody_waiting() -> None:
    def leave(*_: object) -> None:
        raise SystemExit

    owner = _owner(breaker=BreakerPolicy(consecutive_failures=1, listeners=[leave]))
    call = _begun(owner)
    _, woken = _waiting(owner)
    with pytest.raises(SystemExit):
        owner.tell(call, 1, Failure(Phase.HEAD))
    assert woken.is_set()


def _in_a_guard(owner: DependencyOwner, waiter: Waiter) -> Callable[[], None]:
    return lambda: pause_thread(5.0, waiter)


def _in_a_transport(owner: DependencyOwner, waiter: Waiter) -> Callable[[], None]:
    request = httpx.Request("GET", "http://prices/1")
    exchange = SyncExchange(LIBRARY, owner, request, None, set(), bounded=False)
    return lambda: exchange.sleep(owner.clock.now() + 5.0, waiter)


Prepare = Callable[[DependencyOwner, Waiter], Callable[[], None]]


def _collected_at(step: int, prepare: Prepare) -> bool:
    """Let a collection end the call that holds the slot, so many steps after its successor has begun to wait.

    Return whether he did take so many steps before he slept.
    """
    owner = _owner()
    call = _begun(owner)
    (action,) = owner.begin(Call(owner.state, "GET"))
    assert isinstance(action, Queue)
    wait, steps = prepare(owner, action.waiter), 0

    def collects(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        steps += 1
        if steps == step:
            sys.settrace(None)
            owner.abandon(call)
        return collects

    def run() -> None:
        sys.settrace(collects)
        wait()
        sys.settrace(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.2)
    reached = steps >= step
    if not reached:
        owner.cancel(call)
    thread.join(2)
    assert not thread.is_alive(), f"it waits for itself since step {step}"
    return reached


@pytest.mark.parametrize("prepare", [_in_a_guard, _in_a_transport])
def test_a_collection_in_the_thread_that_waits_wakes_it_at_whatever_step(prepare: Prepare) -> None:
    step = 1
    while _collected_at(step, prepare):
        step += 1
    assert step > 5
