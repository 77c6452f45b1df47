"""Deadline fields: the time that a caller still gives us.

What may live here: the grammar of each deadline field, and nothing about what a server does with the number.

All four fields are relative. The house rule is stricter than most peers: surrounding SP and HTAB go, then
only ASCII digits (and the unit of grpc-timeout) are left. Zero means "expired now", except in Envoy's field,
where zero means "no limit" and Envoy itself never sends it: there it is invalid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

# The limit of Connect-Timeout-Ms; 10 digits of milliseconds are 115 days.
_MAX_MILLISECOND_DIGITS: Final = 10
_MAX_MILLISECONDS: Final = 10**_MAX_MILLISECOND_DIGITS - 1
_MAX_GRPC_DIGITS: Final = 8

# Unit of grpc-timeout -> (seconds per unit, units per second). One division of integers at the end is
# correctly rounded; a factor such as 1e-9 would round twice.
_GRPC_UNITS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "H": (3600, 1),
        "M": (60, 1),
        "S": (1, 1),
        "m": (1, 1_000),
        "u": (1, 1_000_000),
        "n": (1, 1_000_000_000),
    }
)


def _parse_milliseconds(value: str) -> float | None:
    # The length comes first: int() refuses thousands of digits. isascii() guards isdigit(), which knows
    # superscripts and the digits of other scripts.
    if len(value) > _MAX_MILLISECOND_DIGITS or not value.isascii() or not value.isdigit():
        value = value.strip(" \t")
        if len(value) > _MAX_MILLISECOND_DIGITS or not value.isascii() or not value.isdigit():
            return None
    return int(value) / 1000


def _parse_envoy_milliseconds(value: str) -> float | None:
    return _parse_milliseconds(value) or None


def _parse_grpc_timeout(value: str) -> float | None:
    value = value.strip(" \t")
    if len(value) > _MAX_GRPC_DIGITS + 1:
        return None
    digits = value[:-1]
    unit = _GRPC_UNITS.get(value[-1:])
    if unit is None or not digits.isascii() or not digits.isdigit():
        return None
    seconds_per_unit, units_per_second = unit
    return int(digits) * seconds_per_unit / units_per_second


DEADLINE_PARSERS: Final[Mapping[str, Callable[[str], float | None]]] = MappingProxyType(
    {
        "x-request-timeout-ms": _parse_milliseconds,
        "grpc-timeout": _parse_grpc_timeout,
        "connect-timeout-ms": _parse_milliseconds,
        "x-envoy-expected-rq-timeout-ms": _parse_envoy_milliseconds,
    }
)
"""Lower-case field name -> reader of one field value: remaining seconds, or None for an invalid value."""


def parse_deadline(name: str, values: Sequence[str]) -> float | None:
    """Read the deadline field `name` from its field lines.

    Args:
        name: The field name, in any case.
        values: One entry per field line of that name, latin-1 decoded.

    Returns:
        Remaining seconds, 0.0 for "expired now"; None if the field is absent, repeated or invalid.

    Raises:
        KeyError: `name` is not a key of `DEADLINE_PARSERS`.
    """
    parse = DEADLINE_PARSERS.get(name) or DEADLINE_PARSERS[name.lower()]
    return parse(values[0]) if len(values) == 1 else None


def format_timeout_ms(seconds: float) -> str:
    """Write a budget as whole milliseconds, rounded down so that it never grows from hop to hop.

    Args:
        seconds: The budget in seconds. Negative values and NaN become "0"; more than ten digits can hold,
            infinity included, becomes "9999999999".

    Returns:
        The largest number of milliseconds that its reader takes for no more than `seconds`.
    """
    if not seconds > 0:
        return "0"
    if seconds >= _MAX_MILLISECONDS / 1000:
        return str(_MAX_MILLISECONDS)
    milliseconds = math.floor(seconds * 1000)
    # The product may have been rounded across a whole number, in either direction (1.001 * 1000 < 1001).
    if milliseconds / 1000 > seconds:
        milliseconds -= 1
    elif (milliseconds + 1) / 1000 <= seconds:
        milliseconds += 1
    return str(milliseconds)
