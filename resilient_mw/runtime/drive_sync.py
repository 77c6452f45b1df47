"""Drives a call machine from a thread. It obeys; it decides nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.calls.call import Call
from resilient_mw.calls.events import Action, Actions, Discard, Failure, Head, Queue, Start, Wait
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.race_sync import SyncRacers, race

First = Callable[[], Head | Failure]
"""Says what became of an attempt that has been made."""


class SyncAttempts(Protocol):
    """What a transport does for the driver."""

    def attempt(self, start: Start) -> Head | Failure:
        """Make an attempt up to its response head and keep the response, or the error, for later."""
        ...

    def discard(self, number: int) -> None:
        """Close the response that is kept of an attempt, if there is one. What goes wrong in it ends the call."""
        ...

    def sleep(self, until: float, waiter: Waiter | None = None) -> None:
        """Wait until an instant on the owner's clock, or until a waiter is granted: set its `wake`, then look at it.

        The error that is kept may still be asked for.
        """
        ...


def drive(
    owner: DependencyOwner,
    call: Call,
    attempts: SyncAttempts,
    racers: SyncRacers | None = None,
    first: First | None = None,
) -> Action:
    """Make the attempts of a call; return its last action: `Deliver`, `Fail`, `Expire` or `Refuse`.

    Args:
        owner: the owner of the dependency's state.
        call: the call machine.
        attempts: makes the attempts.
        racers: makes several at the same time; None: it cannot, and the call was not told that it may have them.
        first: says what became of the first attempt, where that has been made; the call has begun then.

    Raises:
        BaseException: what interrupted it; nothing is held then.
    """
    try:
        actions: Actions = owner.begin(call) if first is None else owner.tell(call, 1, first())
        while True:
            for action in actions:
                if isinstance(action, Start) and racers is not None and action.look_at != math.inf:
                    actions = race(owner, call, racers, action)
                elif isinstance(action, Start):
                    actions = owner.tell(call, action.number, attempts.attempt(action))
                elif isinstance(action, Discard):
                    attempts.discard(action.number)
                elif isinstance(action, Wait):
                    attempts.sleep(action.until)
                    actions = owner.resume(call, action.until)
                elif isinstance(action, Queue):
                    attempts.sleep(action.until, action.waiter)
                    actions = owner.queued(call)
                else:
                    return action
    except BaseException:
        owner.cancel(call)
        with suppress(Exception):  # It must not hide what interrupted the call.
            attempts.discard(call.attempts)
        raise
