"""The code in the pages of the client half is Python, and what it imports exists."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT

SUBJECTS = (
    *("calls", "clients", "retries", "breaker", "bulkhead", "throttle", "timeouts", "groups"),
    *("guarding", "fallbacks", "propagation", "metrics"),
    *("jobs", "celery"),
    "idempotency",
    "idempotency-transactions",
)
BLOCK = re.compile(r"(?:^    .*\n(?:\n(?=    ))?)+", re.MULTILINE)
NO_PYTHON = re.compile(r"^(?:pip|python|curl|min|max)\b|[┌│]", re.MULTILINE)
"""Commands, formulas and drawings."""


def _code(subject: str) -> Iterator[str]:
    text = (ROOT / "docs" / f"{subject}.md").read_text(encoding="utf-8")
    for block in BLOCK.findall(text):
        for code in re.split(r"\n\n(?=\S)", textwrap.dedent(block)):
            if not NO_PYTHON.search(code):
                yield code


@pytest.mark.parametrize("subject", SUBJECTS)
def test_code_can_be_parsed_and_imports_what_there_is(subject: str) -> None:
    found = 0
    for code in _code(subject):
        tree = compile(code, f"{subject}.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(compile(ast.Module([node], []), f"{subject}.md", "exec"), {})
                found += 1
    assert found > 0 or subject in {"calls", "groups"}  # its names are said in the text around
