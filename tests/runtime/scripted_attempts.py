"""Attempts that play a script instead of the network, for the sync and the async driver."""

from __future__ import annotations

from collections.abc import Iterable

from resilient_mw.calls.events import Failure, Head, Start

Played = Head | Failure | BaseException


class Script:
    """What happens in which attempt, and what the driver asked for.

    Args:
        outcomes: one for each attempt; an exception is raised.
        at_sleep, at_discard: raised there, each time.
    """

    def __init__(
        self,
        outcomes: Iterable[Played],
        *,
        at_sleep: BaseException | None = None,
        at_discard: BaseException | None = None,
    ) -> None:
        self.outcomes = iter(outcomes)
        self.at_sleep = at_sleep
        self.at_discard = at_discard
        self.asked: list[object] = []
        self.open = 0

    def attempt(self, start: Start) -> Head | Failure:
        self.asked.append(start)
        outcome = next(self.outcomes)
        if isinstance(outcome, BaseException):
            raise outcome
        self.open += isinstance(outcome, Head)
        return outcome

    def discard(self, number: int) -> None:
        self.asked.append("discard")
        self.open = 0
        if self.at_discard is not None:
            raise self.at_discard

    def sleep(self, until: float, waiter: object = None) -> None:
        self.asked.append(until)
        if self.at_sleep is not None:
            raise self.at_sleep


class AsyncScript:
    """The same for the async driver."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def attempt(self, start: Start) -> Head | Failure:
        return self._script.attempt(start)

    async def discard(self, number: int) -> None:
        self._script.discard(number)

    async def sleep(self, until: float, waiter: object = None) -> None:
        self._script.sleep(until)
