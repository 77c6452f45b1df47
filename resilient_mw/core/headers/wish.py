"""What a caller's headers say about his budget, all formats together."""

from __future__ import annotations

from collections.abc import Iterable

from resilient_mw.core.headers.deadlines import DEADLINE_PARSERS, parse_deadline

NO_WISH: tuple[float | None, tuple[str, ...]] = (None, ())


def read_wish(fields: Iterable[tuple[str, str]]) -> tuple[float | None, tuple[str, ...]]:
    """Return the budget that a request's deadline headers ask for, and the names of headers that were ignored.

    Args:
        fields: the field lines whose names are in `DEADLINE_PARSERS`, as (lower-case name, value).

    The smallest of several formats wins. A field that stands twice, or outside its grammar, is as if absent.
    """
    lines: dict[str, list[str]] = {}
    for name, value in fields:
        lines.setdefault(name, []).append(value)
    wish: float | None = None
    ignored: list[str] = []
    for name, values in lines.items():
        budget = parse_deadline(name, values)
        if budget is None:
            ignored.append(name)
        elif wish is None or budget < wish:
            wish = budget
    return wish, tuple(ignored)


DEADLINE_FIELDS = tuple(DEADLINE_PARSERS)
"""Lower-case names of the headers that `read_wish` understands."""
