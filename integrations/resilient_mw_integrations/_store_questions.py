"""What a store of idempotency keys asks its server: one question for each transition, the same for both faces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.record import Claim, Ending, Outcome, Record, State

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """One round trip.

    Attributes:
        payload: what is sent, as the line to this kind of server takes it.
        read: makes the answer of what came back; or another question, to be asked within the same time.
    """

    payload: Any
    read: Callable[[Any], T | Question[T]]


class Questions(Protocol):
    """The questions to one kind of server. Pure: they are sent by somebody else."""

    def begin(self, claim: Claim) -> Question[Outcome]:
        """Ask for the record. May be asked again by the same claim: who has it is told once more that it has."""
        ...

    def renew(self, claim: Claim) -> Question[bool]:
        """Ask for more time."""
        ...

    def complete(self, claim: Claim, answer: StoredAnswer, fingerprint: str | None) -> Question[bool]:
        """Hand the answer in."""
        ...

    def abandon(self, claim: Claim, ending: Ending) -> Question[bool]:
        """Give the record up."""
        ...

    def look(self, record: str) -> Question[Record | None]:
        """Ask what is known."""
        ...

    def release(self, record: str, running: bool) -> Question[bool]:
        """Have a record removed."""
        ...

    def records(self, state: State | None, after: str, limit: int) -> Question[Sequence[Record]]:
        """Ask for a page of the list."""
        ...

    def purge(self, limit: int) -> Question[int]:
        """Have expired records removed."""
        ...

    def create(self) -> Question[None]:
        """Have made what is missing."""
        ...

    def ping(self) -> Question[None]:
        """Ask whether all is there."""
        ...
