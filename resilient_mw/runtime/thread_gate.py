"""The thread gate: a worker thread waits for its slot."""

from __future__ import annotations

import threading

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import Waiter
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
        if not signal.acquire(timeout=max(0.0, waiter.give_up_at - guard.clock.now())):
            guard.tick(waiter.give_up_at)
    except BaseException:
        guard.leave(waiter)
        raise
    return guard.begin(waiter)
