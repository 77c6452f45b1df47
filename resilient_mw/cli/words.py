"""How numbers and functions are written for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


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


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose columns are as wide as they must be."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def span(seconds: float) -> str:
    """Return a time in the unit that suits it, such as `3 min`."""
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def clean(text: str, most: int) -> str:
    """Return a text of strangers so that a terminal can show it: no control characters, and not too long."""
    shown = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text[: most + 1]
    )
    return shown if len(text) <= most and len(shown) <= most else shown[: max(0, most - 3)] + "..."
