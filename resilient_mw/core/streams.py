"""What a route says of a request that lasts: for how long it holds its slot, and what its deadline covers."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.core.checks import require_number

BODY, HEAD, GAPS = "body", "head", "gaps"
SLOTS = (HEAD, BODY)
COVERS = (HEAD, BODY, GAPS)

IDLE = 30.0
"""Seconds of the longest gap where nothing else is said: twice the 15 s after which event streams usually say that they
are alive."""


@dataclass(frozen=True, slots=True)
class StreamRule:
    """How a request is treated that may last longer than a deadline. None: the surrounding mark, or the policy, says it.

    Attributes:
        slot: how long the slot is held: for the `head` of the response, or to the end of its `body`.
        covers: what the deadline covers: the `head`, everything to the end of the `body`, or the head and then the `gaps`
            between two chunks.
        idle: seconds that a gap may last; belongs to `covers`.
    """

    slot: str | None = None
    covers: str | None = None
    idle: float | None = None

    def over(self, base: StreamRule | None) -> StreamRule:
        """Return this rule with its gaps filled from `base`."""
        if base is None:
            return self
        slot = base.slot if self.slot is None else self.slot
        if self.covers is None:
            return StreamRule(slot, base.covers, base.idle)
        return StreamRule(slot, self.covers, self.idle)

    def effective(self, *, exempt: bool) -> StreamRule | None:
        """Return the complete rule; None where it says what holds for every request.

        Args:
            exempt: whether the request is exempt: such a one takes no slot, and keeps its place to the end.
        """
        slot = BODY if exempt or self.slot is None else self.slot
        covers = self.covers or BODY
        if slot == covers == BODY:
            return None
        return StreamRule(slot, covers, (self.idle or IDLE) if covers == GAPS else None)


def stream_rule(
    slot: tuple[str, object] = ("slot", None),
    covers: tuple[str, object] = ("covers", None),
    idle: tuple[str, object] = ("idle", None),
) -> StreamRule | None:
    """Return a checked rule; None where nothing is said.

    Args:
        slot, covers, idle: the name of the field in errors, and its value. `idle` alone means that gaps are covered.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    for (name, value), allowed in ((slot, SLOTS), (covers, COVERS)):
        if value is not None and value not in allowed:
            raise ValueError(f"{name}={value!r} is not allowed: it must be one of {list(allowed)}")
    seconds = None if idle[1] is None else require_number(*idle, low=0.1, high=86_400)
    kept, covered = slot[1], covers[1]
    if seconds is not None and covered is None:
        covered = GAPS
    if seconds is not None and covered != GAPS:
        raise ValueError(
            f"{idle[0]}={seconds!r} is not allowed with {covers[0]}={covered!r}: it bounds the gaps of {GAPS!r}"
        )
    if kept is None and covered is None:
        return None
    return StreamRule(None if kept is None else str(kept), None if covered is None else str(covered), seconds)
