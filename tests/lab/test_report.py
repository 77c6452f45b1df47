from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from resilient_mw.lab.charts import nice_ticks
from resilient_mw.lab.charts_phases import served_per_second, table
from resilient_mw.lab.records import Record
from resilient_mw.lab.report import headline, render
from resilient_mw.lab.results import StepResult
from resilient_mw.lab.steps import STEPS

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Balance(HTMLParser):
    """Follows the tags of a page and keeps what is out of place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def page(results: list[StepResult]) -> str:
    return render(results, stack="Flask behind waitress", when="today")


def test_every_step_is_in_it(results: list[StepResult]) -> None:
    text = page(results).replace("&nbsp;", " ")
    for result in results:
        assert f"Step {result.step.name} &middot; " in text
        assert result.finding() in text
        assert result.step.story in text
        for verdict in result.verdicts():
            assert verdict.label in text
            assert verdict.published in text or "&gt;" in text


def test_it_needs_nothing_from_elsewhere(results: list[StepResult]) -> None:
    text = page(results)
    parser = Balance()
    parser.feed(text)
    assert {name for name, _ in parser.attributes} & {"src", "href", "srcset", "xlink:href", "data"} == set()
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<link", text)


def test_it_is_well_formed(results: list[StepResult]) -> None:
    text = page(results)
    parser = Balance()
    parser.feed(text)
    parser.close()
    assert (parser.open, parser.wrong) == ([], [])
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    for picture in pictures:
        ElementTree.fromstring(picture)
    # one overview, and for each step latency, one for each load, and for each dependency its calls and its circuit;
    # with phases and several loads besides health, who was served
    charts = [each for each in pictures if "aria-label" in each]
    assert len(charts) == 1 + sum(
        1 + len(r.step.loads) + len(r.dependencies) + len(r.changes) + bool(r.spans and len(r.step.loads) > 2)
        for r in results
    )
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_text_is_escaped(good_day: StepResult) -> None:
    hostile = '<b onclick="x">&'
    step = dataclasses.replace(STEPS[0], name=hostile, title=hostile, story=hostile, finding=hostile)
    broken = StepResult(step, 15.0, error=hostile)
    drawn = dataclasses.replace(good_day, step=step)
    text = render([broken, drawn], stack=hostile, when=hostile)
    assert "<b onclick" not in text
    assert "&lt;b onclick=&quot;x&quot;&gt;&amp;" in text


def test_marks_show_every_request(results: list[StepResult]) -> None:
    text = page(results)
    drawn = sum(
        len(re.findall(r"M[\d.]+ [\d.]+(?:h0|m)", path))
        for path in re.findall(r'class="mark[^>]* d="([^"]*)', text)
    )
    legends = len(re.findall(r'<li><svg[^>]*><path class="mark', text))
    assert drawn - legends == sum(len(result.records) for result in results)


def test_a_missed_expectation_is_said(results: list[StepResult]) -> None:
    text = page(results)
    missed = sum(not verdict.passed for result in results for verdict in result.verdicts())
    assert missed > 0
    assert text.count('<td class="verdict missed">missed</td>') == missed
    assert "not as expected" in text


def test_a_step_that_could_not_be_run_is_said() -> None:
    text = page([StepResult(STEPS[1], 15.0, error="no port")])
    assert "could not be run" in text
    assert "no port" in text
    assert "0 of 0 expectations met, could not be run: 1" in text


def test_the_headline_compares_the_pair_only_if_both_have_passed(results: list[StepResult]) -> None:
    assert "instead of" not in headline(results)


def phased(results: list[StepResult]) -> StepResult:
    (result,) = (each for each in results if each.step.name == "priority-a")
    return result


def test_phases_are_named_in_the_charts_and_have_a_row_each(results: list[StepResult]) -> None:
    result = phased(results)
    text = page([result])
    assert text.count('<text class="note"') - text.count("last user arrives") == 4 * (
        2 + len(result.step.loads)
    )
    for name, cell in (("1x", "125 of 125, 50&nbsp;ms"), ("10x", "0 of 250")):
        (row,) = re.findall(rf"<tr><td>{name}, .*?</tr>", text)
        assert f'<td class="n">{cell}</td>' in row


def test_a_load_that_does_not_come_in_a_phase_is_said(results: list[StepResult]) -> None:
    (result,) = (each for each in results if each.step.name == "priority-b")
    drawn = table(result.figures(), ["normal"], result.spans)
    assert drawn.count('<td class="n">none came</td>') == 1


def test_what_was_served_is_drawn_second_by_second(results: list[StepResult]) -> None:
    result = phased(results)
    served = [Record("critical", due, 0.0, 0.1, 200, None, None, False) for due in (0.0, 0.5, 1.0, 3.9, 4.0)]
    refused = [Record("critical", 2.5, 0.0, 0.1, 503, "1", "queue_full", False)]
    drawn = ElementTree.fromstring(
        served_per_second(
            [*served, *refused], ["critical", "normal"], 4.0, result.spans[:1], "who was served"
        )
    )
    assert [each.text for each in drawn.iter("title")] == [
        "critical: 2, 1, 0, 1 served in each second",
        "normal: 0, 0, 0, 0 served in each second",
    ]
    lines = [
        each.get("class") for each in drawn.iter("path") if (each.get("class") or "").startswith("line ")
    ]
    assert lines == ["line line-0", "line line-1"]


def test_a_short_run_says_so(good_day: StepResult) -> None:
    assert "A short run" not in page([good_day])
    assert "A short run" in page([dataclasses.replace(good_day, length=5.0)])


@pytest.mark.parametrize("top", [0.004, 0.06, 0.99, 1, 3, 5, 9.9, 10, 85, 1200])
def test_ticks_are_few_and_reach_the_top(top: float) -> None:
    ticks = nice_ticks(top)
    assert ticks[0] == 0
    assert ticks[-2] < top <= ticks[-1] * (1 + 1e-9)
    assert 3 <= len(ticks) <= 6


def test_ticks_of_nothing() -> None:
    assert nice_ticks(0) == [0, 1]
