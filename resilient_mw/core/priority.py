"""Priority classes: a few reviewed classes that decide who gets a slot when not everybody can."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.core.checks import require_integer, require_name, require_number

EXEMPT = "exempt"
"""The name of the class that is never queued or refused for load. It has a bound of its own and no queue."""

FIFO = "fifo"
NEWEST_FIRST = "newest_first"
QUEUE_ORDERS = (FIFO, NEWEST_FIRST)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """One class of requests that wait and run under the same rules.

    The order of classes in a policy is their rank, highest first: it decides who is pushed out of a full queue.

    Attributes:
        name: a stable name, also a metric label.
        weight: its share of the slots while several classes wait, relative to the others' weights.
        reserved: slots that no other class may use, also while this one leaves them idle. They stay out of the
            turns, so a class with 8 of 10 slots reserved still competes for the other two by weight.
        queue_length: most requests of this class that wait at once; None: the whole queue of the policy.
        queue_order: who of this class is served first: `"fifo"`, or `"newest_first"`: the newest while the queue stands
            (its oldest waiter has been waiting for more than twice the typical run time, for 100 ms on end),
            otherwise in the order of arrival.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    name: str
    weight: float = 1.0
    reserved: int = 0
    queue_length: int | None = None
    queue_order: str = FIFO

    def __post_init__(self) -> None:
        require_name("PriorityClass.name", self.name)
        if self.name == EXEMPT:
            raise ValueError("PriorityClass.name='exempt' is not allowed: mark routes as exempt instead")
        require_number(f"PriorityClass({self.name!r}).weight", self.weight, low=0.001, high=1000)
        require_integer(f"PriorityClass({self.name!r}).reserved", self.reserved, low=0)
        if self.queue_length is not None:
            require_integer(f"PriorityClass({self.name!r}).queue_length", self.queue_length, low=0)
        if self.queue_order not in QUEUE_ORDERS:
            raise ValueError(
                f"PriorityClass({self.name!r}).queue_order={self.queue_order!r} is not allowed: "
                f"it must be one of {QUEUE_ORDERS}"
            )


CRITICAL = PriorityClass("critical", weight=8)
NORMAL = PriorityClass("normal", weight=4)
SHEDDABLE = PriorityClass("sheddable", weight=1)

DEFAULT_CLASSES = (CRITICAL, NORMAL, SHEDDABLE)
