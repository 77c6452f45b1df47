"""Content-Length: how large a request body will be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_MAX_DIGITS: Final = 18
_MOST: Final = 10**_MAX_DIGITS


def parse_content_length(values: Sequence[str]) -> int | None:
    """Read how large a request body will be.

    Args:
        values: One entry per field line, latin-1 decoded.

    Returns:
        Bytes, 10**18 for everything beyond it; None if the field is absent, repeated or invalid, which servers
        answer by themselves.
    """
    if len(values) != 1:
        return None
    text = values[0].strip(" \t")
    if not text.isascii() or not text.isdigit():
        return None
    digits = text.lstrip("0")
    # The length comes first: int() refuses thousands of digits.
    return int(digits or "0") if len(digits) <= _MAX_DIGITS else _MOST
