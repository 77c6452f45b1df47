"""The callers of a dependency: they drive the real call machine in virtual time, as the drivers do in real time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.calls.call import Call
from resilient_mw.calls.events import (
    Action,
    Actions,
    Cancel,
    Deliver,
    Discard,
    Failure,
    Head,
    Queue,
    Start,
    Wait,
)
from resilient_mw.calls.state import DependencyState
from resilient_mw.simulation.engine import Engine, Timer
from resilient_mw.simulation.remote import Exchange, RemoteService


class Caller:
    """Makes calls to one dependency.

    Args:
        engine: the clock.
        state: the dependency's state, shared by all its callers.
        remote: the dependency.
        late: draws how late a timer is that ends a back-off, in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        state: DependencyState,
        remote: RemoteService,
        *,
        late: Callable[[], float] = float,
    ) -> None:
        self.engine = engine
        self.state = state
        self.remote = remote
        self.late = late

    def call(
        self,
        method: str = "GET",
        *,
        budget: float = math.inf,
        replayable: bool = True,
        keyed: bool = False,
        owned: bool = False,
        ended: Callable[[OutgoingCall], None] | None = None,
    ) -> OutgoingCall:
        """Begin a call now.

        Args:
            method: the HTTP method, upper case.
            budget: seconds after which the answer is worthless.
            replayable, keyed, owned: of the request, see `Call`.
            ended: called once at the end of the call; not after `hang_up`.
        """
        call = Call(
            self.state,
            method,
            deadline_at=self.engine.now + budget,
            replayable=replayable,
            keyed=keyed,
            owned=owned,
        )
        call.allow_hedges(method, keyed=keyed)
        return OutgoingCall(self, call, ended)

    def wake(self) -> None:
        """Wake those who were granted a slot, as the owner does."""
        line = self.state.line
        while line is not None and line.woken:
            wake = line.woken.pop(0).wake
            if wake is not None:
                wake()


class OutgoingCall:
    """One call on its way.

    Attributes:
        machine: the call machine.
        begun_at: the instant.
        starts: its attempts so far, with their instants.
        late: the instants of those that began later than planned, because a timer was late.
        answer: the head that was delivered.
        outcome: the last action: `Deliver`, `Fail`, `Expire` or `Refuse`; None: under way, or the caller hung up.
        over: whether nothing of it is left.
    """

    __slots__ = (
        "_caller",
        "_ended",
        "_exchanges",
        "_head",
        "_look",
        "_timer",
        "_waiter",
        "answer",
        "begun_at",
        "late",
        "machine",
        "outcome",
        "over",
        "starts",
    )

    def __init__(self, caller: Caller, machine: Call, ended: Callable[[OutgoingCall], None] | None) -> None:
        self.machine = machine
        self.begun_at = caller.engine.now
        self.starts: list[tuple[float, Start]] = []
        self.late: list[float] = []
        self.answer: Head | None = None
        self.outcome: Action | None = None
        self.over = False
        self._caller = caller
        self._ended = ended
        self._exchanges: dict[int, Exchange] = {}
        self._look: Timer | None = None
        self._head: Head | None = None
        self._timer: Timer | None = None
        self._waiter: Waiter | None = None
        self._obey(machine.begin(caller.engine.now))

    def hang_up(self) -> None:
        """Give up, whatever is under way. Harmless after the end."""
        if self.over:
            return
        self.machine.cancel(self._caller.engine.now)
        self.over = True
        self._waiter = None
        self._caller.wake()
        if self._timer is not None:
            self._caller.engine.cancel(self._timer)
        for number in tuple(self._exchanges):
            self._close(number)

    def _obey(self, actions: Actions) -> None:
        caller = self._caller
        for action in actions:
            match action:
                case Discard(number):
                    self._close(number)
                case Cancel(number):
                    self._close(number)
                    self.machine.lost(caller.engine.now, number)
                case Start():
                    self.starts.append((caller.engine.now, action))
                    told = partial(self._told, action.number)
                    self._exchanges[action.number] = caller.remote.attempt(action, told)
                    self._look_again()
                case Wait(until):
                    at = until + caller.late()
                    self._timer = caller.engine.at(at, partial(self._resume, until, at))
                case Queue(until, waiter):
                    waiter.wake = partial(self._woken, waiter)
                    self._timer = caller.engine.at(until, partial(self._queued, waiter))
                    self._waiter = waiter
                case Deliver(number):
                    self.outcome = action
                    self.answer = self._head
                    self._exchanges[number].read(partial(self._read, number))
                case _:
                    self.outcome = action
                    self._end()
        caller.wake()

    def _queued(self, waiter: Waiter) -> None:
        if self._waiter is not waiter:
            return  # Woken in the instant in which its time was over: it has been heard.
        self._waiter = None
        if self._timer is not None:
            self._caller.engine.cancel(self._timer)
        now, begun = self._caller.engine.now, len(self.starts)
        self._obey(self.machine.queued(now))
        if len(self.starts) > begun > 0:
            self.late.append(now)

    def _told(self, number: int, outcome: Head | Failure) -> None:
        now = self._caller.engine.now
        if isinstance(outcome, Head):
            self._head = outcome
            self._obey(self.machine.head(now, number, outcome))
        else:
            self._exchanges.pop(number, None)
            self._obey(self.machine.failed(now, number, outcome))

    def _resume(self, until: float, at: float) -> None:
        begun = len(self.starts)
        self._obey(self.machine.resume(at))
        if at > until and len(self.starts) > begun:
            self.late.append(at)

    def _woken(self, waiter: Waiter) -> None:
        self._caller.engine.after(0.0, partial(self._queued, waiter))

    def _look_again(self) -> None:
        if self._look is not None:
            self._caller.engine.cancel(self._look)
        at = self.machine.next_wakeup()
        self._look = None if at == math.inf else self._caller.engine.at(at, self._wake)

    def _wake(self) -> None:
        self._look = None
        self._obey(self.machine.wake(self._caller.engine.now))

    def _read(self, number: int, failure: Failure | None) -> None:
        self._exchanges.pop(number, None)
        for action in self.machine.end(self._caller.engine.now, failure):
            self.outcome = action
        self._caller.wake()
        self._end()

    def _close(self, number: int) -> None:
        exchange = self._exchanges.pop(number, None)
        if exchange is not None:
            exchange.close()

    def _end(self) -> None:
        self.over = True
        if self._ended is not None:
            self._ended(self)
