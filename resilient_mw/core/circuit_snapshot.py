"""The figures of a circuit beyond its state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CircuitFigures:
    """What a circuit has counted since the start.

    Attributes:
        held: whether somebody opened or closed it by hand.
        slow: attempts that were counted as slow, most of them while they still ran.
        ramped: attempts that were refused while traffic came back bit by bit; they count as `circuit_open` too.
        would_refuse: attempts that passed because it is in shadow mode.
        failed_listeners: errors of its listeners.
    """

    held: bool = False
    slow: int = 0
    ramped: int = 0
    would_refuse: int = 0
    failed_listeners: int = 0
