"""Marks in a URLconf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from resilient_mw.core import marks

Patterns = TypeVar("Patterns")


def marked(patterns: Patterns, *decorators: Callable[[Any], Any], priority: str | None = None) -> Patterns:
    """Mark an entry of a URLconf; with `include()`, everything below it. Return the entry.

        marked(path("reports/", include("shop.reports")), priority="sheddable")
        marked(path("pay/", pay), priority("critical", cost=2), deadline(maximum=5))

    A mark on the view goes before it, one of an inner `include()` before that of an outer one.

    Args:
        patterns: what `path()` or `re_path()` returned, or a list of such: `i18n_patterns()`, the `urls` of a router.
        decorators: `priority(...)`, `deadline(...)`, `exempt` of `resilient_mw`.
        priority: short for `priority(...)` with a class alone.

    Raises:
        ValueError: the class is no valid name.
        TypeError: it cannot carry a mark.
    """
    every = (*decorators, *(() if priority is None else (marks.priority(priority),)))
    for pattern in patterns if isinstance(patterns, (list, tuple)) else (patterns,):
        for decorator in every:
            decorator(pattern)
    return patterns
