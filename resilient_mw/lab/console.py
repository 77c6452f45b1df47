"""The lab on a terminal: a bar with live figures while a step runs, and the tables at the end.

On a stream that is no terminal the bar becomes a plain line every few seconds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TextIO

from resilient_mw.lab.expectations import show
from resilient_mw.lab.results import StepResult
from resilient_mw.lab.runner import Progress

PLAIN_EVERY = 5.0
BAR_WIDTH = 20

_STYLES = {"bold": "1", "red": "31", "green": "32", "dim": "2"}


def live_figures(progress: Progress) -> str:
    """Write what has become of the requests until now, and what the dependencies have received."""
    parts = []
    for kind, counts in progress.loads.items():
        waiting = counts["sent"] - sum(count for name, count in counts.items() if name != "sent")
        words = [f"{counts['served']}/{counts['sent']} served"]
        words += [
            f"{counts[name]} {name.replace('_', ' ')}"
            for name in ("refused", "failed", "gave_up")
            if counts[name]
        ]
        if waiting:
            words.append(f"{waiting} waiting")
        parts.append(f"{kind} {', '.join(words)}")
    for name, seen in progress.dependencies.items():
        parts.append(f"{name} {seen['received']} calls, {seen['last_second']}/s")
    return " | ".join(parts)


def bar(progress: Progress) -> str:
    """Draw the part of load and watch that has passed."""
    part = min(1.0, max(0.0, progress.elapsed / progress.total))
    done = round(part * BAR_WIDTH)
    return f"[{'#' * done}{'.' * (BAR_WIDTH - done)}]"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Line up columns; the first row is the header. The last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def overview_rows(results: Sequence[StepResult]) -> list[list[str]]:
    """Return one row for each load of each step: what became of it."""
    rows = [
        ["step", "load", "sent", "served", "refused", "failed", "gave up", "median", "p99", "median served"]
    ]
    for result in results:
        figures = result.figures() if result.error is None else {}
        for load in result.step.loads if figures else ():
            names = ["sent", "served", "refused", "failed", "gave_up", "p50", "p99", "served_p50"]
            keys = [f"{load.kind}_{name}" for name in names]
            rows.append([result.step.name, load.kind, *(show(key, figures[key]) for key in keys)])
    return rows


def verdict_rows(results: Sequence[StepResult]) -> list[list[str]]:
    """Return one row for each expectation of each step."""
    rows = [["step", "what", "published", "must be", "seen", ""]]
    for result in results:
        if result.error is not None:
            rows.append([result.step.name, result.step.title, "", "", "could not be run", "MISSED"])
        for each in result.verdicts():
            word = "ok" if each.passed else "MISSED"
            rows.append([result.step.name, each.label, each.published, each.expected, each.seen, word])
    return rows


class Console:
    """Writes to one stream.

    Args:
        stream: where to.
        environ: `NO_COLOR` leaves colours out, `TERM=dumb` also the bar.
    """

    def __init__(self, stream: TextIO, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._stream = stream
        self._live = stream.isatty() and environ.get("TERM") != "dumb"
        self._colour = self._live and not environ.get("NO_COLOR")
        self._next_line = 0.0

    def line(self, text: str = "", style: str | None = None) -> None:
        """Write a line."""
        if style and self._colour:
            text = f"\x1b[{_STYLES[style]}m{text}\x1b[0m"
        # A stream that cannot say it all (LANG=C) gets what it can say.
        encoding = self._stream.encoding or "utf-8"
        text = text.replace("\u2264", "<=").replace("\u2265", ">=") if not _can(encoding) else text
        self._stream.write(text + "\n")
        self._stream.flush()

    def step_begins(self, title: str, note: str) -> None:
        """Say what runs next."""
        self._next_line = 0.0
        self.line()
        self.line(title, "bold")
        self.line(note, "dim")

    def progress(self, progress: Progress) -> None:
        """Show how far the step is."""
        text = f"{max(0.0, progress.elapsed):4.0f} s  {live_figures(progress)}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[2K{f'{bar(progress)} {text}'[:width]}")
            self._stream.flush()
        elif progress.elapsed >= self._next_line:
            self._next_line += PLAIN_EVERY
            self.line(f"  {text}")

    def step_ends(self, result: StepResult) -> None:
        """Say what the step has shown."""
        if self._live:
            self._stream.write("\r\x1b[2K")
        if result.error is not None:
            self.line(f"  could not be run: {result.error}", "red")
            return
        self.line(f"  {result.finding()}.")
        missed = [verdict for verdict in result.verdicts() if not verdict.passed]
        for each in missed:
            self.line(f"  MISSED  {each.label}: {each.seen}, must be {each.expected}", "red")
        if not missed:
            self.line("  as expected", "green")

    def summary(self, results: Sequence[StepResult]) -> None:
        """Write the tables."""
        self.line()
        for text in table(overview_rows(results)):
            self.line(text)
        self.line()
        for text in table(verdict_rows(results)):
            self.line(text, "red" if text.endswith("MISSED") else None)


def _can(encoding: str) -> bool:
    """Return whether an encoding has the signs of the tables."""
    try:
        "\u2264\u2265".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
