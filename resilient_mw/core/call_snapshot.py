"""Parts of a dependency's figures, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The figures of one named route group; of `others`, that of the requests that no group takes.

    Attributes:
        breaker: the state of its circuit; None: there is none.
        timeout: seconds that an attempt may take at the moment, if the caller has so much left; None: no bound.
        under_way: attempts under way.
    """

    breaker: str | None
    timeout: float | None
    under_way: int


@dataclass(frozen=True, slots=True)
class KeyedSnapshot:
    """The figures of the keyed route groups together: there may be any number of keys, so none has a name here.

    Attributes:
        states: keys that have a state of their own.
        open: those of them whose circuit is not closed.
        evicted: states that were forgotten, because they were idle or their place was needed.
        shared: calls whose key found no place: they share one state.
    """

    states: int
    open: int
    evicted: int
    shared: int


@dataclass(frozen=True, slots=True)
class HedgeSnapshot:
    """Hedges: attempts beside others that take long.

    Attributes:
        made, won: how many, and those of them whose answer was delivered.
        refused: those that were due and not made, by reason.
        delay: seconds after which an attempt is hedged at the moment, outside the route groups; None: not known yet.
    """

    made: int
    won: int
    refused: Mapping[str, int]
    delay: float | None
