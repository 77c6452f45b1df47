"""Deadlines: instants on the monotonic clock, and how one is established at the edge."""

from __future__ import annotations

import math
from dataclasses import dataclass

FOREVER = math.inf
"""The instant of a deadline that never comes."""


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """An instant on the monotonic clock of this process after which the answer is worthless.

    Attributes:
        at: monotonic seconds; `math.inf` means that there is none.
    """

    at: float = FOREVER

    def __post_init__(self) -> None:
        if math.isnan(self.at):
            raise ValueError(f"at={self.at!r} is not allowed: it must be an instant in seconds")

    def remaining(self, now: float) -> float:
        """Return the budget that is left, in seconds; 0 when it has passed, never negative."""
        return max(0.0, self.at - now)

    def expired(self, now: float) -> bool:
        """Return whether the instant has come."""
        return now >= self.at

    def within(self, seconds: float, now: float) -> Deadline:
        """Return a deadline at most `seconds` from now: it shrinks, it never grows."""
        return Deadline(min(self.at, now + seconds))


@dataclass(frozen=True, slots=True)
class DeadlineRule:
    """How long a request may take: the server's numbers, or a route's own (None: the server's).

    Attributes:
        default: seconds for a caller who sent no budget, and the most that an untrusted caller can ask for.
        minimum: seconds; a smaller wish of an untrusted caller is raised to it.
        maximum: seconds; the most that anybody gets.
    """

    default: float | None = None
    minimum: float | None = None
    maximum: float | None = None

    def budget(self, wish: float | None, *, trusted: bool) -> float:
        """Return the budget of a request that has just arrived, in seconds.

        Args:
            wish: what the caller's header says, None for no (valid) header.
            trusted: whether the caller is one whose word may lengthen the default.

        A trusted hop's budget is clamped to the maximum and never raised. Everybody else can shorten the default and
        never lengthen it, and is raised to the minimum.

        Raises:
            ValueError: the rule has gaps.
        """
        default, minimum, maximum = self.default, self.minimum, self.maximum
        if default is None or minimum is None or maximum is None:
            raise ValueError(f"{self!r} is not complete: fill its gaps with over()")
        if wish is None:
            budget = default
        elif trusted:
            return min(wish, maximum)
        else:
            budget = min(wish, default)
        return min(max(budget, minimum), maximum)

    def over(self, base: DeadlineRule) -> DeadlineRule:
        """Return this rule with its gaps filled from `base`."""
        return DeadlineRule(
            base.default if self.default is None else self.default,
            base.minimum if self.minimum is None else self.minimum,
            base.maximum if self.maximum is None else self.maximum,
        )
