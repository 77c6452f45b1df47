"""Drives a call machine from a coroutine. It obeys; it decides nothing."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Protocol

from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.calls.call import Call
from resilient_mw.calls.events import Action, Actions, Discard, Failure, Head, Queue, Start, Wait
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.drive_sync import First
from resilient_mw.runtime.race_async import AsyncRacers, race


class AsyncAttempts(Protocol):
    """What a transport does for the driver."""

    async def attempt(self, start: Start) -> Head | Failure:
        """Make an attempt up to its response head and keep the response, or the error, for later."""
        ...

    async def discard(self, number: int) -> None:
        """Close the response that is kept of an attempt, if there is one. What goes wrong in it ends the call."""
        ...

    async def sleep(self, until: float, waiter: Waiter | None = None) -> None:
        """Wait until an instant on the owner's clock, or until a waiter is granted: set its `wake`, then look at it.

        The error that is kept may still be asked for.
        """
        ...


async def drive(
    owner: DependencyOwner,
    call: Call,
    attempts: AsyncAttempts,
    racers: AsyncRacers | None = None,
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
                    actions = await race(owner, call, racers, action)
                elif isinstance(action, Start):
                    actions = owner.tell(call, action.number, await attempts.attempt(action))
                elif isinstance(action, Discard):
                    await attempts.discard(action.number)
                elif isinstance(action, Wait):
                    await attempts.sleep(action.until)
                    actions = owner.resume(call, action.until)
                elif isinstance(action, Queue):
                    await attempts.sleep(action.until, action.waiter)
                    actions = owner.queued(call)
                else:
                    return action
    except BaseException as error:
        if _collected(error):
            owner.abandon(call)
        else:
            owner.cancel(call)
        with suppress(Exception):  # It must not hide what interrupted the call.
            await attempts.discard(call.attempts)
        raise


def _collected(error: BaseException | None) -> bool:
    """Return whether the collector may be what ends the coroutine. It runs anywhere, so it must not wait for the lock.

    What breaks on the way out (another context, a loop that is closed) hides the first error, but does not lose it.
    """
    while error is not None:
        if isinstance(error, GeneratorExit):
            return True
        error = error.__context__
    return False
