"""What the report shows of a step with phases: how many of each load were served over time, and phase by phase. Pure."""

from __future__ import annotations

import html
from collections.abc import Sequence

from resilient_mw.lab.charts import WIDE, Plot, nice_ticks
from resilient_mw.lab.expectations import Figures, show
from resilient_mw.lab.records import Record, per_second
from resilient_mw.lab.step import Span

LINES = 3
"""Line styles that there are."""


def line_style(number: int) -> str:
    """Return the class of a load's line: loads are told apart by colour, and by dashes."""
    return f"line line-{number % LINES}"


def served_per_second(
    records: Sequence[Record], kinds: Sequence[str], seconds: float, spans: Sequence[Span], label: str
) -> str:
    """Draw one line for each kind of load: how many of the requests that were due in each whole second were served."""
    bins = max(1, int(seconds))
    counts = [
        per_second((each.due for each in records if each.kind == kind and each.outcome == "served"), bins)
        for kind in kinds
    ]
    plot = Plot(WIDE, 220, seconds, nice_ticks(max(map(max, counts), default=1)), unit=" /s")
    parts = []
    for number, (kind, values) in enumerate(zip(kinds, counts, strict=True)):
        path = "".join(
            f"{'V' if second else f'M{plot.left} '}{plot.y(value):.1f}H{plot.x(second + 1):.1f}"
            for second, value in enumerate(values)
        )
        title = html.escape(f"{kind}: {', '.join(map(str, values))} served in each second")
        parts.append(f'<g><title>{title}</title><path class="{line_style(number)}" d="{path}"/></g>')
    return plot.svg("".join(parts) + plot.phases(spans), label)


def legend(kinds: Sequence[str]) -> str:
    """Return the legend of `served_per_second`."""
    items = [
        f'<li><svg class="wide-sign" viewBox="0 0 34 14" aria-hidden="true"><path class="{line_style(number)}" '
        f'd="M0 7H34"/></svg>{html.escape(kind)}</li>'
        for number, kind in enumerate(kinds)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def table(figures: Figures, kinds: Sequence[str], spans: Sequence[Span]) -> str:
    """Return a table with a row for each phase: what was served of each load, and the p99 of what was served."""
    head = "".join(f'<th class="n">{html.escape(kind)}</th>' for kind in kinds)
    rows = []
    for span in spans:
        name = span.phase.name
        times = f"{span.start:.4g} to {span.end:.4g} s"
        cells = "".join(f'<td class="n">{_served(figures, f"{kind}_{name}")}</td>' for kind in kinds)
        rows.append(f"<tr><td>{html.escape(name)}, {times}</td>{cells}</tr>")
    return (
        f'<div class="scroll"><table>\n<thead><tr><th>phase</th>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody>\n</table></div>"
    )


def _served(figures: Figures, prefix: str) -> str:
    sent, served, p99 = (figures[f"{prefix}_{name}"] for name in ("sent", "served", "served_p99"))
    if not sent:
        return "none came"
    words = f"{show('', served)} of {show('', sent)}"
    return words if p99 is None else f"{words}, {show('_p99', p99)}".replace(" ms", "&nbsp;ms")
