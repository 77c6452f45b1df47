"""What is shown while it runs, and the table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from tests.torture.run import Result

ROWS: Final[Sequence[tuple[str, Callable[[Result], object]]]] = (
    ("payments", lambda result: result.plan.payments),
    ("requests sent", lambda result: result.tally.sent),
    ("clients hung up", lambda result: result.tally.hung_up),
    ("answers that never came", lambda result: result.tally.no_answer),
    ("replays", lambda result: result.tally.replays),
    ("of them joined in the air", lambda result: result.tally.joins),
    ("409 in progress", lambda result: result.tally.in_progress),
    ("409 unknown", lambda result: result.tally.unknown),
    ("503", lambda result: result.tally.away),
    ("other refusals", lambda result: _others(result.tally.other)),
    ("servers killed", lambda result: result.kills),
    ("stops of the store", lambda result: result.stops),
    ("handler runs", lambda result: result.runs),
    ("of them cancelled", lambda result: result.cancelled),
    ("unknown, settled", lambda result: result.settled),
    ("unknown, left so", lambda result: result.undecided),
    ("DOUBLES", lambda result: result.doubles),
    ("LOST", lambda result: result.losts),
    ("WRONG ANSWERS", lambda result: len(result.wrong)),
    ("seconds", lambda result: round(result.seconds, 1)),
)


class Progress:
    """Shows how far a run is: on a terminal in one line, else now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._next = 0.0
        self._begun = time.monotonic()

    def __call__(self, result: Result, through: int) -> None:
        """Show it."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if self._terminal else 5.0)
        line = (
            f"{result.store}, {result.plan.form}: {through:,} of {result.plan.payments:,} payments, {result.tally.sent:,} "
            f"requests, {result.kills} kills, {result.stops} stops, {now - self._begun:.0f} s"
        )
        print(f"\r{line:<110}" if self._terminal else line, end="" if self._terminal else "\n", flush=True)

    def end(self) -> None:
        """Leave the line."""
        if self._terminal:
            print()


def table(results: Sequence[Result]) -> str:
    """Return all results side by side, and below them what was wrong."""
    names = [f"{result.store}, {result.plan.form}" for result in results]
    cells = [[_text(figure(result)) for result in results] for _, figure in ROWS]
    widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(names)]
    left = max(len(title) for title, _ in ROWS)
    lines = [" " * left + "".join(f"  {name:>{width}}" for name, width in zip(names, widths, strict=True))]
    for (title, _), row in zip(ROWS, cells, strict=True):
        lines.append(
            f"{title:<{left}}"
            + "".join(f"  {cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        )
    for name, result in zip(names, results, strict=True):
        lines += [f"{name}: {what}" for what in result.wrong[:10]]
        if len(result.wrong) > 10:
            lines.append(f"{name}: and {len(result.wrong) - 10} more")
    return "\n".join(lines)


def _others(statuses: dict[int, int]) -> str:
    return " ".join(f"{status}:{count}" for status, count in sorted(statuses.items())) or "0"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
