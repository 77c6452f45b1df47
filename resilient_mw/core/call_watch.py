"""Who watches calls to dependencies, such as a tracer: what they are told, and where they register.

They are called outside every lock, by whoever makes the call; one that fails changes nothing and is counted. While nobody
watches, a call asks once whether that is so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A call begins.

    Attributes:
        dependency: its name.
        http: whether it is a request; otherwise the call of a function.
        budget: seconds that the caller has left; None: no bound.
    """

    dependency: str
    http: bool
    budget: float | None


@dataclass(frozen=True, slots=True)
class AttemptEnds:
    """An attempt got the head of its response, or failed before it.

    Attributes:
        number: 1 for the first one of its call.
        status: of the response; None: there is none, or the call is that of a function.
        phase: where it failed; None: it did not.
        timed_out: whether a timeout ended it, whichever.
    """

    number: int
    status: int | None
    phase: str | None
    timed_out: bool


@dataclass(frozen=True, slots=True)
class CallEnds:
    """A call is over, the body of its response included.

    Attributes:
        outcome: `answered`, `failed`, `expired`, `refused`, or `cancelled` by the caller.
        attempts: how many were begun.
        phase: where an expired call died, or the attempt whose error is raised failed.
        reason: why it was refused.
        timed_out: whether a timeout of the dependency ended it.
        ago: seconds since then. A response that was thrown away unclosed is told of by the next call.
    """

    outcome: str
    attempts: int
    phase: str | None = None
    reason: str | None = None
    timed_out: bool = False
    ago: float = 0.0


class WatchedCall(Protocol):
    """What is told of one call. Each of them may be called from another thread than the one before, `ended` above all."""

    def decided(self, breaker: str | None) -> None:
        """Take the state of the circuit that the first attempt was asked for in; None: there is no breaker."""
        ...

    def starts(self, number: int, timeout: float | None) -> None:
        """Take that an attempt starts, and the seconds that it has; None: no bound."""
        ...

    def attempt_ended(self, attempt: AttemptEnds) -> None:
        """Take the end of an attempt: after that of its call, maybe, if another one was faster."""
        ...

    def left(self) -> None:
        """Take that the caller gets his answer or error, in the context in which the call began. The body may follow."""
        ...

    def ended(self, end: CallEnds) -> None:
        """Take the end of the call."""
        ...


class CallWatch(Protocol):
    """Watches calls."""

    def begins(self, call: CallBegins) -> WatchedCall:
        """Take that a call begins, in the caller's context; return what is told of it."""
        ...


WATCHES: list[CallWatch] = []
"""Who watches. Empty: nobody, which is all that a call looks at."""


def watch_calls(watch: CallWatch) -> None:
    """Have the calls that begin from now on watched; a second time changes nothing."""
    if watch not in WATCHES:
        WATCHES.append(watch)


def unwatch_calls(watch: CallWatch) -> None:
    """Have no further calls watched."""
    if watch in WATCHES:
        WATCHES.remove(watch)
