"""Each fault of `CASES.md` that this release answers for is named by the tests that cover it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
COVERED = [
    "B01",
    "B04",
    "B05",
    "B07",
    "B08",
    "B10",
    "B11",
    "B13",
    "B14",
    "B16",
    "B17",
    "B19",
    "B23",
    "B26",
    "B28",
    "B29",
    "B31",
    "B32",
    "B34",
    "B35",
    "B37",
    "B38",
    "B43",
    "B44",
    "B46",
    "B47",
    "B50",
    "B52",
    "B53",
    "B55",
    "B56",
    "B58",
    "B59",
    "B61",
    "B62",
    "B65",
    "B67",
    "B68",
    "B70",
    "B71",
    "B73",
    "B74",
    "B76",
    "B77",
    "B79",
    "B80",
    "B82",
    "B83",
    "B91",
    "B95",
    "B97",
    "B98",
]


def _tests_that_name(case: str) -> list[str]:
    """Return the test files whose text names a case."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        if re.search(rf"\b{case}\b|_{case.lower()}_", text):
            found.append(path.relative_to(TESTS).as_posix())
    return found


@pytest.mark.parametrize("case", COVERED)
def test_case_is_named_by_a_test(case: str) -> None:
    assert _tests_that_name(case), f"no test names {case}"


def test_every_covered_case_stands_in_the_table() -> None:
    table = (Path(__file__).parent / "CASES.md").read_text(encoding="utf-8")
    assert [case for case in COVERED if f"#### {case}" not in table] == []
