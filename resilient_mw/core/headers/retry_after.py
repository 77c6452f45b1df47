"""Retry-After: when to come back (RFC 9110 section 10.2.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from resilient_mw.core.headers.http_date import parse_http_date

# What RFC 9111 section 1.2.2 says to use for a delta-seconds value that is too large.
_MAX_DELAY: Final = 2**31
_MAX_DELAY_DIGITS: Final = 10


def parse_retry_after(values: Sequence[str], now: float) -> int | None:
    """Read Retry-After, as a number of seconds or as an HTTP-date.

    The field is never split at commas: a date has one.

    Args:
        values: One entry per field line, latin-1 decoded.
        now: Seconds since the Unix epoch; dates are measured from it.

    Returns:
        Whole seconds to wait, 0 to 2147483648; a date's fraction of a second is rounded up, so that nobody
        comes early. None if the field is absent, repeated or invalid.
    """
    if len(values) != 1:
        return None
    text = values[0].strip(" \t")
    if text.isascii() and text.isdigit():
        significant = text.lstrip("0")
        if len(significant) > _MAX_DELAY_DIGITS:
            return _MAX_DELAY
        return min(int(significant or "0"), _MAX_DELAY)
    instant = parse_http_date(text, now)
    if instant is None:
        return None
    return max(0, min(math.ceil(instant - now), _MAX_DELAY))


def format_retry_after(seconds: float) -> str:
    """Write a delay as delta-seconds, the only form that every client reads.

    Args:
        seconds: The delay in seconds, rounded up; less than one second, and NaN, become "1".

    Returns:
        Whole seconds, 1 to 2147483648.
    """
    if not seconds > 1:
        return "1"
    if seconds >= _MAX_DELAY:
        return str(_MAX_DELAY)
    return str(math.ceil(seconds))
