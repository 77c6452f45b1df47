"""X-Request-Start and X-Queue-Start: when a proxy took the request in.

There is no standard. Proxies write seconds, milliseconds, microseconds or nanoseconds since the epoch, with
or without "t=" and a fraction; the unit is told by size, since no plausible instant lies before 2000-01-01.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_FORM: Final = re.compile(r"(?:t=)?([0-9]{1,19})(?:\.([0-9]{1,9}))?")
_FRACTION_DIGITS: Final = 9
# "t=", 19 digits, the dot, 9 digits.
_MAX_LENGTH: Final = 31

_NS_PER_SECOND: Final = 10**9
_YEAR_2000: Final = 946_684_800
# Units per second, smallest unit first: the first one that puts the value after 2000-01-01 is the unit.
_UNITS_PER_SECOND: Final = (10**9, 10**6, 10**3, 1)


def parse_request_start(
    values: Sequence[str], now_ns: int, *, future_skew: float = 1.0, max_age: float = 3600.0
) -> float | None:
    """Read how long ago a proxy took the request in.

    Args:
        values: One entry per field line, latin-1 decoded.
        now_ns: Nanoseconds since the Unix epoch, as `time.time_ns()` counts them. An integer, because a
            float of that size resolves no better than 200 ns.
        future_skew: Seconds that the proxy's clock may be ahead of ours; such a start counts as now.
        max_age: Seconds after which a start is no longer believed.

    Returns:
        Seconds spent since then, 0.0 or more; None if the field is absent, repeated, invalid, older than
        `max_age` or further ahead than `future_skew`.
    """
    if len(values) != 1:
        return None
    text = values[0].strip(" \t")
    match = _FORM.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        return None
    whole = int(match[1])
    fraction = int((match[2] or "").ljust(_FRACTION_DIGITS, "0"))
    for units_per_second in _UNITS_PER_SECOND:
        if whole >= _YEAR_2000 * units_per_second:
            break
    else:
        return None
    start_ns = (whole * _NS_PER_SECOND + fraction) // units_per_second
    age_ns = now_ns - start_ns
    # An int compared with a float is compared exactly.
    if age_ns > max_age * _NS_PER_SECOND or -age_ns > future_skew * _NS_PER_SECOND:
        return None
    return max(age_ns, 0) / _NS_PER_SECOND
