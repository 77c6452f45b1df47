"""The thread gate: a worker thread waits for its slot."""

from __future__ import annotations

import threading

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.runtime.guard import Guard


def wait_in_thread(guard: Guard, waiter: Waiter) -> Decision:
    """Block this thread until a slot is granted or refused.

    The slot is the caller's from the moment this returns an admitted decision. If it raises (a signal), nothing is
    held.
    """
    signal = threading.Lock()
    signal.acquire()
    try:
        guard.attach(waiter, signal.release)
        while waiter.state is WaiterState.WAITING:
            at = guard.look_at(waiter)
            if signal.acquire(timeout=max(0.0, at - guard.clock.now())):
                break
            guard.tick(at)
    except BaseException:
        guard.leave(waiter)
        raise
    return guard.begin(waiter)
