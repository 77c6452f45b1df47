"""Back-off: how long to wait before the next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

SPREAD = 0.4
"""Share by which a wait that a dependency asked for is lengthened at most."""


def full_jitter(random: Random, attempts: int, base: float, cap: float) -> float:
    """Return a back-off in seconds, drawn evenly from 0 to min(cap, base x 2^(attempts - 1)).

    Full jitter spreads callers who failed together over the whole span ("Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015).

    Args:
        random: source of randomness.
        attempts: attempts made so far, at least 1.
        base, cap: seconds.
    """
    return random.uniform(0.0, min(cap, base * 2.0 ** min(attempts - 1, 64)))


def equal_jitter(random: Random, attempts: int, base: float, cap: float) -> float:
    """Return a back-off in seconds, drawn evenly from the upper half of what full jitter draws from: never a short one."""
    longest = min(cap, base * 2.0 ** min(attempts - 1, 64))
    return random.uniform(longest / 2.0, longest)


def decorrelated_jitter(random: Random, previous: float, base: float, cap: float) -> float:
    """Return a back-off in seconds, drawn evenly from base to three times the previous one, or to the cap.

    The range ends at the cap, instead of cutting draws off there: callers whose waits have grown stay spread. The same
    source as full jitter.

    Args:
        random: source of randomness.
        previous: the call's last back-off in seconds; 0: it had none.
        base, cap: seconds.
    """
    return random.uniform(base, min(cap, 3.0 * max(base, previous)))


def spread(random: Random, retry_after: float) -> float:
    """Return a wait that obeys `Retry-After` and is up to 40 % longer, so that callers do not return together."""
    return retry_after * random.uniform(1.0, 1.0 + SPREAD)
