"""The thread gate: a worker thread waits for its slot."""

from __future__ import annotations

import threading

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.runtime.callers import LOOK_EVERY, Gone
from resilient_mw.runtime.guard import Guard


class CallerLeft(Exception):
    """The caller of a request that waited has gone."""


def wait_in_thread(guard: Guard, waiter: Waiter, gone: Gone | None = None) -> Decision:
    """Block this thread until a slot is granted or refused.

    The slot is the caller's from the moment this returns an admitted decision. If it raises (a signal, too), nothing is
    held.

    Args:
        guard: decides.
        waiter: what it made of the request.
        gone: tells whether its caller has gone; None: nobody knows.

    Raises:
        CallerLeft: he has.
    """
    signal = threading.Lock()
    signal.acquire()
    try:
        guard.attach(waiter, signal.release)
        while waiter.state is WaiterState.WAITING:
            at = guard.look_at(waiter)
            left = max(0.0, at - guard.clock.now())
            if signal.acquire(timeout=left if gone is None else min(left, LOOK_EVERY)):
                break
            if gone is not None and gone():
                raise CallerLeft
            if gone is None or left <= LOOK_EVERY:
                guard.tick(at)
        # Who has waited long may have lost his caller at any time: no work begins for nobody.
        if gone is not None and waiter.state is WaiterState.GRANTED and gone():
            raise CallerLeft
    except BaseException:
        guard.leave(waiter)
        raise
    return guard.begin(waiter)
