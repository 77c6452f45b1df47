"""Several attempts of one call at the same time, from a thread: each in a thread of its own. It decides nothing."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from resilient_mw.calls.call import Call
from resilient_mw.calls.events import Action, Actions, Cancel, Discard, Failure, Head, Start
from resilient_mw.runtime.dependency_owner import DependencyOwner


class Flight:
    """An attempt under way in a thread.

    Args:
        number: of the attempt.
        scope: whatever else the transport knows of it; its `cut` ends what the thread waits for, where that can be done.

    Attributes:
        response: what it got.
        error: what it raised.
    """

    def __init__(self, number: int, scope: Any) -> None:
        self.number = number
        self.scope = scope
        self.response: Any = None
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._over = False
        self._left: Callable[[], None] | None = None

    def fly(self, send: Callable[[], Any], land: Callable[[Flight], None]) -> None:
        """Make the attempt; then tell who waits, or clear up if nobody does."""
        try:
            self.response = send()
        except BaseException as error:  # noqa: BLE001  it is raised in the thread that waits
            self.error = error
        with self._lock:
            self._over = True
            left = self._left
        if left is None:
            land(self)
        else:
            self._clear_up(left)

    def leave(self, ended: Callable[[], None]) -> None:
        """End the attempt, close what it has got, and tell when that is done. It does not wait."""
        with self._lock:
            # As long as the thread cannot say that it is over, the connection is its own: no other call is cut off.
            self._left = ended
            over = self._over
            if not over:
                self.scope.cut()
        if over:
            self._clear_up(ended)

    def _clear_up(self, ended: Callable[[], None]) -> None:
        response, self.response, self.error = self.response, None, None
        try:
            if response is not None:
                with suppress(Exception):  # It was not wanted, and its connection is gone.
                    response.close()
        finally:
            ended()


class SyncRacers(Protocol):
    """What a transport does for a race."""

    def launch(self, start: Start, land: Callable[[Flight], None]) -> Flight:
        """Begin an attempt in a thread; `land` is called when it is over, unless it was left."""
        ...

    def landed(self, flight: Flight) -> Head | Failure:
        """Take what became of an attempt, and keep its response or error."""
        ...

    def drop(self) -> None:
        """Close the response that is kept."""
        ...


def race(owner: DependencyOwner, call: Call, racers: SyncRacers, start: Start) -> Actions:
    """Make an attempt, and those that come beside it, until one of them is enough or all have failed.

    Returns:
        What the machine says then.

    Raises:
        BaseException: what interrupted it. Every attempt is being ended then.
    """
    over: SimpleQueue[Flight] = SimpleQueue()
    flights: dict[int, Flight] = {}
    try:
        flights[start.number] = racers.launch(start, over.put)
        while True:
            rest: list[Action] = []
            for action in _next(owner, call, racers, flights, over):
                if isinstance(action, Start) and flights:
                    flights[action.number] = racers.launch(action, over.put)
                elif isinstance(action, Cancel):
                    flights.pop(action.number).leave(partial(owner.lost, call, action.number))
                elif isinstance(action, Discard) and flights:
                    racers.drop()
                else:
                    rest.append(action)
            if rest:
                return tuple(rest)
    except BaseException:
        for flight in flights.values():
            flight.leave(_nobody)
        raise


def _next(
    owner: DependencyOwner,
    call: Call,
    racers: SyncRacers,
    flights: dict[int, Flight],
    over: SimpleQueue[Flight],
) -> Actions:
    """Wait for the next thing that happens, and tell it."""
    until = call.next_wakeup()
    try:
        flight = over.get(timeout=None if until == math.inf else max(0.0, until - owner.clock.now()))
    except Empty:
        return owner.wake(call)
    del flights[flight.number]
    return owner.tell(call, flight.number, racers.landed(flight))


def _nobody() -> None:
    """Tell nobody: the call is over."""
