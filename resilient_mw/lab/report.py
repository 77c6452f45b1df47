"""The report of a lab run: one HTML file that needs nothing from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from resilient_mw.lab import charts, charts_phases
from resilient_mw.lab.expectations import show
from resilient_mw.lab.records import OUTCOMES, Record, per_second
from resilient_mw.lab.results import StepResult
from resilient_mw.lab.style import STYLE

_ABOUT = (
    "Real processes on this machine: a price service, an application that calls it, and users who arrive at "
    "fixed rates whether or not the others have been served. Latency counts from when a request was due. Absolute "
    "times depend on the machine; the difference between the steps does not."
)
_ABOUT_SHORT = (
    "A short run: the load has the same rates and lasts less long, so counts, waits that grow with the load and "
    "their bounds are smaller in proportion. Published figures are those of the full length."
)

_MARK_WORDS = {
    "served": "served",
    "refused": "refused",
    "failed": "failed",
    "gave_up": "user gave up",
    "health": "health check",
    "health-lost": "health check lost",
}


def _escape(text: str) -> str:
    """Escape text, and keep numbers and their unit on one line."""
    return html.escape(text).replace(" ms", "&nbsp;ms")


def render(results: Sequence[StepResult], *, stack: str, when: str) -> str:
    """Return the page.

    Args:
        results: of the steps that were run.
        stack: what the steps ran on, for a reader.
        when: the time of the run, for a reader.
    """
    title = headline(results)
    body = [
        f"<h1>{_escape(title)}</h1>",
        f'<p class="meta">{_escape(stack)} &middot; {_escape(when)} &middot; {_verdict_words(results)}</p>',
        f'<p class="story">{_ABOUT}</p>',
        _short_note(results),
        _summary(results),
        *(_section(result) for result in results),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def headline(results: Sequence[StepResult]) -> str:
    """Return the finding of the whole run: the pair without and with admission, where both have shown it."""
    by_name = {result.step.name: result for result in results if result.passed}
    if "7a" in by_name and "7b" in by_name:
        without, admission = by_name["7a"].figures(), by_name["7b"].figures()
        return (
            f"Under the same load, admission serves the median checkout in "
            f"{show('_p50', admission['checkout_served_p50'])} instead of "
            f"{show('_p50', without['checkout_p50'])}, and answers {show('', admission['health_served'])} of "
            f"{show('', admission['health_sent'])} health checks"
        )
    if len(results) == 1:
        return results[0].finding()
    return "What a slow dependency does to a service"


def _verdict_words(results: Sequence[StepResult]) -> str:
    verdicts = [verdict for result in results for verdict in result.verdicts()]
    met = sum(verdict.passed for verdict in verdicts)
    failed = [result.step.name for result in results if result.error is not None]
    words = f"{met} of {len(verdicts)} expectations met"
    if failed:
        words += f", could not be run: {', '.join(failed)}"
    kind = "ok" if met == len(verdicts) and not failed else "missed"
    return f'<span class="verdict {kind}">{_escape(words)}</span>'


def _short_note(results: Sequence[StepResult]) -> str:
    if all(result.share == 1 for result in results):
        return ""
    return f'<p class="story">{_ABOUT_SHORT}</p>'


def _summary(results: Sequence[StepResult]) -> str:
    shown = [result for result in results if result.error is None]
    rows = [
        (result.step.name, load.kind, [(name, _count(result, load.kind, name)) for name in OUTCOMES])
        for result in shown
        for load in result.step.loads
    ]
    picture = charts.shares(rows, "What became of the requests of each step") if rows else ""
    lines = []
    for result in results:
        name = _escape(result.step.name)
        if result.error is not None:
            lines.append(
                f"<tr><td>{name}</td><td>{_escape(result.step.title)}</td><td></td><td></td><td></td>"
                '<td class="verdict missed">could not be run</td></tr>'
            )
        for verdict in result.verdicts():
            word = (
                '<td class="verdict ok">met</td>'
                if verdict.passed
                else '<td class="verdict missed">missed</td>'
            )
            numbers = (verdict.published, verdict.expected, verdict.seen)
            cells = "".join(f'<td class="n">{_escape(text)}</td>' for text in numbers)
            lines.append(f"<tr><td>{name}</td><td>{_escape(verdict.label)}</td>{cells}{word}</tr>")
    return (
        "<section>\n<h2>What became of the requests</h2>\n"
        f'{_legend(_used(rows), solid=True)}\n<div class="scroll">{picture}</div>\n'
        '<h2 class="next">What each step must show</h2>\n<div class="scroll"><table>\n<thead><tr>'
        '<th>step</th><th>figure</th><th class="n">published</th><th class="n">must be</th>'
        '<th class="n">seen here</th><th></th></tr></thead>\n'
        f"<tbody>{''.join(lines)}</tbody>\n</table></div>\n</section>"
    )


def _count(result: StepResult, kind: str, outcome: str) -> int:
    return int(result.figures()[f"{kind}_{outcome}"] or 0)


def _used(rows: Sequence[tuple[str, str, Sequence[tuple[str, int]]]]) -> list[str]:
    return [
        name
        for name in OUTCOMES
        if any(count for _, _, counts in rows for each, count in counts if each == name)
    ]


def _section(result: StepResult) -> str:
    step = result.step
    word, words = ("ok", "as expected") if result.passed else ("missed", "not as expected")
    opening = (
        f'<p class="eyebrow">Step {_escape(step.name)} &middot; {_escape(step.title)} &middot; '
        f'<span class="verdict {word}">{words}</span></p>'
    )
    if result.error is not None:
        return (
            f"<section>\n{opening}\n<h2>This step could not be run</h2>\n"
            f'<pre class="missed">{_escape(result.error)}</pre>\n</section>'
        )
    figures = [_phases(result)] if result.spans else []
    figures.append(_latency(result))
    figures += [_outcomes(result, load.kind) for load in step.loads]
    for name in result.dependencies:
        figures.append(_calls(result, name))
        if result.changes.get(name):
            figures.append(_circuit(result, name))
    return (
        f"<section>\n{opening}\n<h2>{_escape(result.finding())}</h2>\n"
        f'<p class="story">{_escape(step.story)}</p>\n'
        f'<div class="charts">\n{"".join(figures)}\n</div>\n</section>'
    )


def _phases(result: StepResult) -> str:
    """Return what a step with phases shows at once: who was served, over time and phase by phase."""
    kinds = [load.kind for load in result.step.loads]
    caption = "Served, of those sent, and the p99 of the served, by when they were due"
    shown = _figure(caption, charts_phases.table(result.figures(), kinds, result.spans), wide=True)
    loads = [kind for kind in kinds if kind != "health"]
    if len(loads) > 1:
        caption = "Requests of each load that were served, by second of arrival"
        picture = charts_phases.served_per_second(result.records, loads, result.length, result.spans, caption)
        shown += _figure(caption, charts_phases.legend(loads) + picture, wide=True)
    return shown


def _latency(result: StepResult) -> str:
    figures = result.figures()
    medians = [f"{show('_p50', figures[f'{load.kind}_p50'])} ({load.kind})" for load in result.step.loads]
    caption = f"How long each user waited: half of them at most {', '.join(medians)}"
    marks = {charts.mark_of(record) for record in result.records}
    legend = _legend([name for name in _MARK_WORDS if name in marks])
    picture = charts.latency(result.records, result.length, caption, result.spans)
    return _figure(caption, legend + picture, wide=True)


def _outcomes(result: StepResult, kind: str) -> str:
    mine: list[Record] = [record for record in result.records if record.kind == kind]
    words = [
        f"{count:,} {charts.OUTCOME_WORDS[name]}"
        for name in OUTCOMES
        if (count := _count(result, kind, name))
    ]
    caption = f"{kind.capitalize()}, by second of arrival: {', '.join(words) or 'nothing sent'}"
    used = [name for name in OUTCOMES if _count(result, kind, name)]
    picture = charts.outcomes_per_second(mine, result.length, caption, result.spans)
    return _figure(caption, _legend(used, solid=True) + picture, wide=False)


def _calls(result: StepResult, name: str) -> str:
    log = result.dependencies[name]
    after = result.figures()[f"{name}_after_load"] or 0.0
    caption = f"{len(log.arrivals):,} calls reached the dependency \u201c{name}\u201d"
    if after > 1:
        caption += f", the last one seen {show('_after_load', after)} after the last user arrived"
    seconds = max(math.ceil(result.length), math.floor(max(log.arrivals, default=0.0)) + 1)
    counts = per_second(log.arrivals, seconds)
    return _figure(caption, charts.calls_per_second(counts, result.last_due, caption), wide=True)


def _circuit(result: StepResult, name: str) -> str:
    caption = f"The circuit breaker of \u201c{name}\u201d: {result.texts()[f'{name}_breaker_log']}"
    return _figure(caption, charts.circuit(result.changes[name], result.length, caption), wide=True)


def _figure(caption: str, content: str, *, wide: bool) -> str:
    kind = ' class="wide"' if wide else ""
    return f"<figure{kind}><figcaption>{_escape(caption)}</figcaption>{content}</figure>\n"


def _legend(names: Sequence[str], *, solid: bool = False) -> str:
    """Return the legend of blocks, or of marks."""
    items = []
    for name in names:
        if solid:
            sign = f'<rect class="fill {name}" x="1" y="1" width="12" height="12"/>'
        else:
            shape = charts.shape_of(name).format(x=7.0, y=7.0)
            sign = f'<path class="mark {name}" d="{shape}"/>'
        items.append(f'<li><svg viewBox="0 0 14 14" aria-hidden="true">{sign}</svg>{_MARK_WORDS[name]}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'
