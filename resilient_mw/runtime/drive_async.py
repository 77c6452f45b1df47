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
    """What a transport does for the driver. As `drive_sync.SyncAttempts`, in a task."""

    async def attempt(self, start: Start) -> Head | Failure: ...  # noqa: D102

    async def discard(self, number: int) -> None: ...  # noqa: D102

    async def sleep(self, until: float, waiter: Waiter | None = None) -> None: ...  # noqa: D102


async def drive(
    owner: DependencyOwner,
    call: Call,
    attempts: AsyncAttempts,
    racers: AsyncRacers | None = None,
    first: First | None = None,
) -> Action:
    """Make the attempts of a call; return its last action. Arguments and errors as of `drive_sync.drive`."""
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
