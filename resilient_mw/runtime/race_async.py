"""Several attempts of one call at the same time, from a coroutine: each in a task of its own. It decides nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from resilient_mw.calls.call import Call
from resilient_mw.calls.events import Action, Actions, Cancel, Discard, Failure, Head, Start
from resilient_mw.runtime.dependency_owner import DependencyOwner


class Flight:
    """An attempt under way.

    Args:
        task: its task.
        ends_at: the instant at which it is ended; inf: never.
        scope: whatever else the transport knows of it.
    """

    __slots__ = ("ends_at", "scope", "task")

    def __init__(self, task: asyncio.Future[Any], ends_at: float, scope: Any) -> None:
        self.task = task
        self.ends_at = ends_at
        self.scope = scope


class AsyncRacers(Protocol):
    """What a transport does for a race."""

    def launch(self, start: Start) -> Flight:
        """Begin an attempt."""
        ...

    def landed(self, flight: Flight) -> Head | Failure:
        """Take what became of an attempt, and keep its response or error. One whose time is over is ended."""
        ...

    def drop(self) -> None:
        """Close the response that is kept, and do not wait for it."""
        ...

    def leave(self, flight: Flight, ended: Callable[[], None]) -> None:
        """End an attempt, close what it has got, and tell when that is done. It does not wait."""
        ...


async def race(owner: DependencyOwner, call: Call, racers: AsyncRacers, start: Start) -> Actions:
    """Make an attempt, and those that come beside it, until one of them is enough or all have failed.

    Returns:
        What the machine says then.

    Raises:
        BaseException: what interrupted it. Every attempt is being ended then.
    """
    flights: dict[int, Flight] = {}
    try:
        flights[start.number] = racers.launch(start)
        while True:
            rest: list[Action] = []
            for action in await _next(owner, call, racers, flights):
                if isinstance(action, Start) and flights:
                    flights[action.number] = racers.launch(action)
                elif isinstance(action, Cancel):
                    racers.leave(flights.pop(action.number), partial(owner.lost, call, action.number))
                elif isinstance(action, Discard) and flights:
                    racers.drop()
                else:
                    rest.append(action)
            if rest:
                return tuple(rest)
    except BaseException:
        for flight in flights.values():
            racers.leave(flight, _nobody)
        raise


async def _next(
    owner: DependencyOwner, call: Call, racers: AsyncRacers, flights: dict[int, Flight]
) -> Actions:
    """Wait for the next thing that happens, and tell it."""
    until = min(call.next_wakeup(), *(flight.ends_at for flight in flights.values()))
    seconds = None if until == math.inf else max(0.0, until - owner.clock.now())
    tasks = [flight.task for flight in flights.values()]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    now = owner.clock.now()
    for number, flight in flights.items():
        if flight.task.done() or flight.ends_at <= now:
            del flights[number]
            return owner.tell(call, number, racers.landed(flight))
    return owner.wake(call)


def _nobody() -> None:
    """Tell nobody: the call is over."""
