"""The result of a run as a plain-text table for people."""

from __future__ import annotations

import math
from collections.abc import Iterable

from resilient_mw.simulation.measure import Figures, Measures

HEAD = (
    "traffic",
    "class",
    "offered",
    "in time",
    "refused",
    "expired",
    "left",
    "late",
    "per s",
    "p50 ms",
    "p99 ms",
)
LEFT_ALIGNED = 2
"""Columns of text; the others are numbers."""


def table(measures: Measures) -> str:
    """Return one line for each kind of traffic, and one for each reason of refusal below it.

    `per s` are the answers in time per second of the time in which requests were sent; percentiles are those of the
    answers in time, counted from sending.
    """
    rows: list[tuple[str, ...]] = [HEAD]
    for name, figures in measures.traffic.items():
        rows.append(_row(name, measures.classes[name], figures, measures.seconds))
        rows += [_reason(reason.value, count) for reason, count in figures.reasons.most_common()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join("  ".join(_aligned(row, widths)).rstrip() for row in rows)


def _row(name: str, priority: str, figures: Figures, seconds: float) -> tuple[str, ...]:
    counts = (figures.offered, figures.in_time, figures.refused, figures.expired, figures.left, figures.late)
    return (
        name,
        priority,
        *(str(count) for count in counts),
        f"{figures.goodput(0.0, seconds):.1f}",
        _milliseconds(figures.percentile(0.5)),
        _milliseconds(figures.percentile(0.99)),
    )


def _reason(reason: str, count: int) -> tuple[str, ...]:
    refused = HEAD.index("refused")
    return (f"  {reason}", *(str(count) if column == refused else "" for column in range(1, len(HEAD))))


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1000 * seconds:.0f}"


def _aligned(row: tuple[str, ...], widths: list[int]) -> Iterable[str]:
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if column < LEFT_ALIGNED else cell.rjust(width)
