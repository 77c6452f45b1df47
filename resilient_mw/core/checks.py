"""Checks of configuration values: one wording for every refusal of a bad value."""

from __future__ import annotations

import math
import re
import string

FIELD_NAME = frozenset(string.ascii_letters + string.digits + "-")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
COROUTINE = 0x80
"""The flag of coroutine functions in `co_flags`."""


def require_number(field: str, value: object, *, low: float = 0.0, high: float = math.inf) -> float:
    """Return `value` as a float in `[low, high]`.

    Raises:
        ValueError: naming the field, the value and the allowed range. Booleans, NaN and text are refused.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{field}={value!r} is not allowed: it must be a number {_range(low, high)}")
    return float(value)


def is_token(text: str) -> bool:
    """Return whether text is a token of HTTP, which methods and names of header fields are."""
    return _TOKEN.fullmatch(text) is not None


def require_header_name(field: str, value: object) -> str:
    """Return `value` if it can be the name of any header field.

    Raises:
        ValueError: naming the field and the value.
    """
    if not isinstance(value, str) or not is_token(value):
        raise ValueError(f"{field}={value!r} is not allowed: it must be the name of a header field")
    return value


def require_integer(field: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return `value` as an int in `[low, high]` (`high=None`: no upper end).

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < low
        or (high is not None and value > high)
    ):
        raise ValueError(
            f"{field}={value!r} is not allowed: it must be a whole number {_range(low, math.inf if high is None else high)}"
        )
    return value


def require_function(field: str, value: object, of: str) -> None:
    """Check that `value` can be called, and is no coroutine function.

    Args:
        field: its name.
        value: what is to be checked.
        of: of what it is a function, for the text.

    Raises:
        ValueError: naming the field and the value.
    """
    flags = getattr(getattr(value, "__code__", None), "co_flags", 0)
    if not callable(value) or flags & COROUTINE:
        raise ValueError(
            f"{field}={value!r} is not allowed: it must be a function, not an async one, of {of}"
        )


def require_cost(field: str, value: object) -> None:
    """Check the cost of a route: a whole number of at least 1, or a function of the request's head.

    Raises:
        ValueError: naming the field and the value.
    """
    if callable(value):
        require_function(field, value, "the request's head")
    else:
        require_integer(field, value, low=1)


def require_name(field: str, value: object) -> str:
    """Return `value` as a non-empty text of letters, digits, `_`, `-` and `.` (it becomes a metric label).

    Raises:
        ValueError: naming the field and the value.
    """
    if (
        not isinstance(value, str)
        or not value
        or not value.isascii()
        or not value.replace("_", "").replace("-", "").replace(".", "").isalnum()
    ):
        raise ValueError(
            f"{field}={value!r} is not allowed: it must be text of ASCII letters, digits, '_', '-' or '.'"
        )
    return value


def require_field_name(field: str, value: object) -> str:
    """Return `value` as the name of a header field of our own.

    Raises:
        ValueError: naming the field and the value. Only names that start with `X-` are taken: a response's own fields
            must not be replaced.
    """
    if not isinstance(value, str) or not value.lower().startswith("x-") or not FIELD_NAME.issuperset(value):
        raise ValueError(
            f"{field}={value!r} is not allowed: it must be text such as 'X-Budget-Left-Ms': 'X-', then ASCII letters, "
            "digits or '-'"
        )
    return value


def require_flag(field: str, value: object) -> bool:
    """Return `value`, which is True or False.

    Raises:
        ValueError: naming the field and the value.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{field}={value!r} is not allowed: it must be True or False")
    return value


def _range(low: float, high: float) -> str:
    if high == math.inf:
        return f"of at least {low:g}"
    return f"from {low:g} to {high:g}"
