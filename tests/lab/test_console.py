from __future__ import annotations

import io

import pytest

from resilient_mw.lab.console import PLAIN_EVERY, Console, bar, live_figures, table
from resilient_mw.lab.results import StepResult
from resilient_mw.lab.runner import Progress
from resilient_mw.lab.steps import STEPS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(elapsed: float = 5.0) -> Progress:
    loads = {"checkout": {"sent": 100, "served": 60, "refused": 20, "failed": 0, "gave_up": 5}}
    return Progress(STEPS[0], 10.0, elapsed, loads, {"prices": {"received": 70, "last_second": 9}})


def test_live_figures() -> None:
    assert live_figures(progress()) == (
        "checkout 60/100 served, 20 refused, 5 gave up, 15 waiting | prices 70 calls, 9/s"
    )


def test_bar_stays_within_its_ends() -> None:
    assert bar(progress(-1)) == "[" + "." * 20 + "]"
    assert bar(progress(5)) == "[" + "#" * 10 + "." * 10 + "]"
    assert bar(progress(25)) == "[" + "#" * 20 + "]"


def test_a_plain_stream_gets_few_lines_and_no_escapes() -> None:
    stream = io.StringIO()
    console = Console(stream, {})
    console.step_begins("Step 0", "20/s")
    for tenth in range(101):
        console.progress(progress(tenth / 10))
    lines = [line for line in stream.getvalue().splitlines() if "served" in line]
    assert len(lines) == 1 + 10 / PLAIN_EVERY
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_terminal_gets_one_line_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    console = Console(stream, {})
    console.progress(progress())
    console.progress(progress())
    assert "\n" not in stream.getvalue()
    shown = stream.getvalue().split("\r\x1b[2K")
    assert [len(text) for text in shown] == [0, 39, 39]


def test_no_color() -> None:
    stream = Terminal()
    Console(stream, {"NO_COLOR": "1"}).line("text", "red")
    assert stream.getvalue() == "text\n"
    stream = Terminal()
    Console(stream, {}).line("text", "red")
    assert stream.getvalue() == "\x1b[31mtext\x1b[0m\n"


def test_a_stream_that_cannot_say_a_sign_gets_another() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Console(stream, {}).line("\u2264 80 ms")
    assert raw.getvalue() == b"<= 80 ms\n"


def test_a_table_lines_up() -> None:
    assert table([["a", "long head"], ["wide cell", "b"]]) == [
        "a          long head",
        "---------  ---------",
        "wide cell  b",
    ]


def test_the_summary_names_every_step(results: list[StepResult]) -> None:
    stream = io.StringIO()
    Console(stream, {}).summary([*results, StepResult(STEPS[0], 15.0, error="no port")])
    text = stream.getvalue()
    for result in results:
        for verdict in result.verdicts():
            assert verdict.label in text
    assert "could not be run" in text
    assert "MISSED" in text


def test_what_a_step_missed_is_said_when_it_ends(results: list[StepResult], good_day: StepResult) -> None:
    stream = io.StringIO()
    console = Console(stream, {})
    console.step_ends(good_day)
    assert "as expected" in stream.getvalue()
    console.step_ends(results[0])
    assert "MISSED  checkouts served: 150, must be \u2265 298" in stream.getvalue()
