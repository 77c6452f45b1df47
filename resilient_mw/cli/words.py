"""How numbers and functions are written for people."""

from __future__ import annotations


def number(value: float) -> str:
    """Return a number with four significant digits at most, and no exponent."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def seconds(value: float | None, none: str = "no bound") -> str:
    """Return a time, such as `0.25 s`."""
    return none if value is None else f"{number(value)} s"


def counted(value: int, what: str, plural: str = "") -> str:
    """Return a count of things, such as `2 slots`; the plural is made with an s where none is given."""
    return f"{value} {what if value == 1 else plural or what + 's'}"


def function_name(function: object) -> str:
    """Return how a function is called where it is written."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]
