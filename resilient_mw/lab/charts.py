"""The charts of the report, as SVG text. Pure: values in, markup out; colours are classes of the style."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from resilient_mw.lab.records import OUTCOMES, Change, Outcome, Record
from resilient_mw.lab.step import Span

WIDE = 1000
HALF = 490

OUTCOME_WORDS = {"served": "served", "refused": "refused", "failed": "failed", "gave_up": "gave up"}

# Shapes differ, so that colour is not needed to tell them apart; dots get theirs from the caps of a line of
# no length.
_CROSS = "M{x:.1f} {y:.1f}m-3.2-3.2l6.4 6.4m0-6.4l-6.4 6.4"
_DOT = "M{x:.1f} {y:.1f}h0"
_TRIANGLE = "M{x:.1f} {y:.1f}m0-5l4.6 8h-9.2z"

_SHAPES = {
    "served": _DOT,
    "refused": _DOT,
    "failed": _CROSS,
    "gave_up": _CROSS,
    "health": _TRIANGLE,
    "health-lost": _TRIANGLE,
}


def nice_ticks(top: float, count: int = 4) -> list[float]:
    """Return some `count` round values from 0 to at least `top`.

    Steps are 1, 2 or 5 times a power of ten.
    """
    if top <= 0:
        return [0.0, 1.0]
    raw = top / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    return [number * step for number in range(math.ceil(top / step - 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Plot:
    """A frame with a time axis from 0 and a value axis from 0.

    Attributes:
        width: of the picture.
        height: of the picture.
        seconds: right end of the time axis.
        ticks: of the value axis; the last one is its upper end.
        factor: what values are multiplied with for the labels of their axis.
        unit: written after the upper label.
    """

    width: int
    height: int
    seconds: float
    ticks: Sequence[float]
    factor: float = 1.0
    unit: str = ""

    left = 58
    right = 14
    top = 22
    bottom = 36

    def x(self, second: float) -> float:
        """Return where an instant is."""
        return self.left + (self.width - self.left - self.right) * second / self.seconds

    def y(self, value: float) -> float:
        """Return where a value is; what is above the axis is drawn at its upper end."""
        return (
            self.height
            - self.bottom
            - (self.height - self.top - self.bottom) * min(1.0, value / self.ticks[-1])
        )

    def svg(self, content: str, label: str) -> str:
        """Return the picture with its axes."""
        parts = []
        for tick in self.ticks:
            y = self.y(tick)
            parts.append(f'<path class="grid" d="M{self.left} {y:.1f}H{self.width - self.right}"/>')
            unit = self.unit if tick == self.ticks[-1] else ""
            parts.append(
                f'<text class="tick" x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end">'
                f"{_number(tick * self.factor)}{unit}</text>"
            )
        parts += self.seconds_axis()
        return picture(self.width, self.height, "".join(parts) + content, label)

    def phases(self, spans: Sequence[Span]) -> str:
        """Return a line where each phase but the first begins, and the names of those that are wide enough for it."""
        parts = []
        for span in spans:
            x, name = self.x(span.start), span.phase.name
            if span.start:
                parts.append(
                    f'<path class="moment" d="M{x:.1f} {self.top - 16}V{self.height - self.bottom}"/>'
                )
            if self.x(span.end) - x > 7 * len(name) + 8:
                parts.append(
                    f'<text class="note" x="{x + 6:.1f}" y="{self.top - 6}">{html.escape(name)}</text>'
                )
        return "".join(parts)

    def seconds_axis(self) -> list[str]:
        """Return the labels of the time axis."""
        labels = [
            f'<text class="tick" x="{self.x(second):.1f}" y="{self.height - self.bottom + 18}" '
            f'text-anchor="middle">{_number(second)}</text>'
            for second in nice_ticks(self.seconds, 8 if self.width > HALF else 5)
            if second <= self.seconds * 1.0001
        ]
        labels.append(
            f'<text class="tick" x="{self.width - self.right}" y="{self.height - 3}" text-anchor="end">'
            "seconds after the first request</text>"
        )
        return labels


def picture(width: int, height: int, content: str, label: str) -> str:
    """Wrap markup into a picture with a name for those who cannot see it."""
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}">{content}</svg>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 else f"{value:,.10g}"


def latency(records: Sequence[Record], seconds: float, label: str, spans: Sequence[Span] = ()) -> str:
    """Draw every request: when it was due, and how long its user waited; and where the phases begin."""
    # A hair less than the highest: users who leave after 10 s are seen leaving after 10.003.
    ticks = nice_ticks(0.99 * max((record.latency for record in records), default=1.0))
    in_ms = ticks[-1] < 2
    plot = Plot(WIDE, 250, seconds, ticks, 1000 if in_ms else 1, " ms" if in_ms else " s")
    groups: dict[str, list[str]] = {}
    for record in records:
        place = shape_of(mark_of(record)).format(x=plot.x(record.due), y=plot.y(record.latency))
        groups.setdefault(mark_of(record), []).append(place)
    # Health checks last: they are fewer, and stay visible on top.
    ordered = sorted(groups, key=lambda name: name.startswith("health"))
    marks = "".join(f'<path class="mark {name}" d="{"".join(groups[name])}"/>' for name in ordered)
    return plot.svg(marks + plot.phases(spans), label)


def mark_of(record: Record) -> str:
    """Return the name of a request's mark."""
    if record.kind == "health":
        return "health" if record.outcome == "served" else "health-lost"
    return record.outcome


def shape_of(mark: str) -> str:
    """Return the shape of a mark: the data of a path, with `x` and `y` to be filled in."""
    return _SHAPES[mark]


def outcomes_per_second(
    records: Sequence[Record], seconds: float, label: str, spans: Sequence[Span] = ()
) -> str:
    """Draw what became of the requests of each second, stacked; and where the phases begin."""
    bins = max(1, math.ceil(seconds))
    counts: list[dict[Outcome, int]] = [dict.fromkeys(OUTCOMES, 0) for _ in range(bins)]
    for record in records:
        counts[min(bins - 1, int(record.due))][record.outcome] += 1
    plot = Plot(
        HALF, 200, bins, nice_ticks(max((sum(each.values()) for each in counts), default=1)), unit=" /s"
    )
    parts = []
    for second, each in enumerate(counts):
        total = 0
        words = ", ".join(f"{count} {OUTCOME_WORDS[name]}" for name, count in each.items() if count)
        parts.append(f"<g><title>second {second}: {words or 'nothing'}</title>")
        for name, count in each.items():
            if count:
                parts.append(_block(plot, second, total, count, name))
                total += count
        parts.append("</g>")
    return plot.svg("".join(parts) + plot.phases(spans), label)


def _block(plot: Plot, second: int, base: int, count: int, name: str) -> str:
    x, width = plot.x(second), plot.x(second + 1) - plot.x(second)
    gap = min(2.0, width * 0.2)
    y, bottom = plot.y(base + count), plot.y(base)
    return (
        f'<rect class="fill {name}" x="{x + gap / 2:.1f}" y="{y:.1f}" '
        f'width="{width - gap:.1f}" height="{max(0.0, bottom - y - 0.5):.1f}"/>'
    )


def calls_per_second(counts: Sequence[int], last_due: float, label: str) -> str:
    """Draw the calls that a dependency received in each second, and when the last user came."""
    plot = Plot(WIDE, 190, max(1, len(counts)), nice_ticks(max(counts, default=1), 3), unit=" /s")
    parts = []
    for second, count in enumerate(counts):
        if count:
            parts.append(
                f"<g><title>second {second}: {count} calls</title>"
                f"{_block(plot, second, 0, count, 'calls')}</g>"
            )
    x = plot.x(last_due)
    side, shift = ("end", -6) if x > WIDE * 0.75 else ("start", 6)
    parts.append(
        f'<path class="moment" d="M{x:.1f} {plot.top - 18}V{plot.height - plot.bottom}"/>'
        f'<text class="note" x="{x + shift:.1f}" y="{plot.top - 8}" text-anchor="{side}">'
        "last user arrives</text>"
    )
    return plot.svg("".join(parts), label)


def circuit(changes: Sequence[Change], seconds: float, label: str) -> str:
    """Draw the states of a circuit breaker, which begins closed, one after the other."""
    plot = Plot(WIDE, 78, seconds, (0.0, 1.0))
    parts, state, since = [], "closed", 0.0
    for at, after in [*((change.at, change.after) for change in changes), (seconds, "")]:
        x, width = plot.x(since), plot.x(min(at, seconds)) - plot.x(since)
        parts.append(
            f"<g><title>{state}, {since:.1f} to {at:.1f} s</title>"
            f'<rect class="fill {state}" x="{x:.1f}" y="4" width="{max(1.0, width - 1):.1f}" height="26"/>'
        )
        if width > 8 * len(state):
            parts.append(f'<text class="in {state}" x="{x + 8:.1f}" y="21.5">{state}</text>')
        parts.append("</g>")
        state, since = after, at
    parts += plot.seconds_axis()
    return picture(plot.width, plot.height, "".join(parts), label)


def shares(rows: Sequence[tuple[str, str, Sequence[tuple[Outcome, int]]]], label: str) -> str:
    """Draw one bar of equal length for each row (step, load, counts): what became of all of its requests."""
    left, height, gap = 215, 20, 6
    scale = WIDE - left - 4
    parts, y = [], 4
    before = None
    for step, load, counts in rows:
        if before not in (None, step):
            y += 10
        name = f"step {step}" if step != before else ""
        parts.append(f'<text class="name" x="0" y="{y + 15}">{html.escape(name)}</text>')
        parts.append(
            f'<text class="tick" x="{left - 10}" y="{y + 15}" text-anchor="end">{html.escape(load)}</text>'
        )
        x, total = float(left), sum(count for _, count in counts)
        for outcome, count in counts:
            if not count:
                continue
            width = scale * count / total
            parts.append(
                f'<g><title>{count} of {total} {OUTCOME_WORDS[outcome]}</title><rect class="fill {outcome}" '
                f'x="{x:.1f}" y="{y}" width="{max(1.0, width - 1):.1f}" height="{height}"/>'
            )
            text = f"{count:,} {OUTCOME_WORDS[outcome]}"
            if width > 8 * len(text):
                parts.append(f'<text class="in {outcome}" x="{x + 8:.1f}" y="{y + 14.5}">{text}</text>')
            parts.append("</g>")
            x += width
        y += height + gap
        before = step
    return picture(WIDE, y, "".join(parts), label)
