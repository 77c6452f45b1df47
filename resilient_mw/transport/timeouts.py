"""The timeouts that a library is told for an attempt."""

from __future__ import annotations

import math

Timeouts = dict[str, float | None]
"""As the library knows them: seconds by `connect`, `read`, `write` and `pool`; None: no bound."""


def timeouts_of(caller: Timeouts | None, whole: float, connect: float) -> Timeouts:
    """Return the library's timeouts of one attempt: the caller's own, where they are smaller."""
    if not caller:
        most = None if whole == math.inf else whole
        return {
            "connect": None if connect == math.inf else connect,
            "read": most,
            "write": most,
            "pool": most,
        }
    return {
        "connect": _least(caller.get("connect"), connect),
        "read": _least(caller.get("read"), whole),
        "write": _least(caller.get("write"), whole),
        "pool": _least(caller.get("pool"), whole),
    }


def _least(caller: float | None, ours: float) -> float | None:
    if caller is None:
        return None if ours == math.inf else ours
    return min(caller, ours)
