"""The figures of the idempotency keys of an application, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransitionSnapshot:
    """How one transition of a store has gone.

    Attributes:
        asked: how often it was asked for.
        failed: how often the store could not do it.
        microseconds: how long it took, all together.
    """

    asked: int
    failed: int
    microseconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencySnapshot:
    """The figures of the idempotency keys of one application.

    Attributes:
        app: its name.
        waiting: repeats that wait for the answer of a first request.
        places: most of them.
        outcomes: requests with a key by what became of them: `first` (the work ran and its answer was recorded), `again` (the same
            after an earlier attempt whose outcome was unknown), `settled` (the status function has told the answer), `replayed`,
            `joined` (replayed after a wait), `freed` (the work ran and its answer is not kept: the key is free), `left_unknown`
            (it was cut off), `lost` (somebody else has taken the record), `unrecorded` (the store could not record the answer),
            `unprotected` (the work ran without a store); and the reasons of refusals.
        store: by transition.
    """

    app: str
    waiting: int
    places: int
    outcomes: Mapping[str, int]
    store: Mapping[str, TransitionSnapshot]
