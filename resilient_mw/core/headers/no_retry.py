"""What an answer says about another attempt, besides `Retry-After`.

`x-envoy-ratelimited`, with whatever value: a retry is useless. `grpc-retry-pushback-ms`: wait so long; negative or no
number: do not retry (gRFC A6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

RATE_LIMITED: Final = "x-envoy-ratelimited"
PUSHBACK: Final = "grpc-retry-pushback-ms"
_DIGITS: Final = 10


def parse_pushback(values: Sequence[str]) -> float | None:
    """Read grpc-retry-pushback-ms.

    Args:
        values: One entry per field line, at least one.

    Returns:
        Seconds to wait; None: do not retry, which a field that cannot be read means as well.
    """
    text = values[0].strip(" \t") if len(values) == 1 else ""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        return None
    return int(text) / 1000.0
