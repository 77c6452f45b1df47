"""What a request is told whose route needs a dependency that is not to be had."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_RETRY_AFTER = 60
"""Seconds; nobody is sent away for longer."""
JITTER = 0.4
"""The share by which a wait is lengthened at random, so that callers who were refused together do not come back together."""


def missing_for(waits: Sequence[float | None]) -> float | None:
    """Return the seconds for which a dependency is not to be had; None if it is, or is not known.

    Args:
        waits: of all dependencies of that name, the seconds until a circuit lets something through; None: it does.
            All of them must be missing.
    """
    closed = [wait for wait in waits if wait is not None]
    return min(closed) if closed and len(closed) == len(waits) else None


def retry_after(seconds: float, draw: float) -> int:
    """Return the whole seconds after which a caller should come back.

    Args:
        seconds: until the dependency is tried again.
        draw: a random number, 0 to 1.
    """
    return min(math.ceil(max(1.0, seconds) * (1.0 + JITTER * draw)), MOST_RETRY_AFTER)
