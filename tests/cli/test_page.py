"""The page on `resilient-mw explain` shows what the command prints, and names every warning."""

from __future__ import annotations

import inspect
import re

from resilient_mw.cli import advice, advice_calls, advice_keys
from tests.cli.conftest import Explain
from tests.docs.pages import ROOT, code_blocks

PAGE = ROOT / "docs" / "explain.md"


def test_the_output_on_the_page_is_real(explain: Explain) -> None:
    (source,) = code_blocks(PAGE)
    (shown,) = code_blocks(PAGE, "text")
    command, _, output = shown.partition("\n")
    words = command.split()
    assert words[:4] == ["$", "resilient-mw", "explain", "shop:app"]
    assert explain(source, *words[4:]).out.strip() == output.strip()


def test_the_page_names_every_warning() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    sources = "".join(map(inspect.getsource, (advice, advice_calls, advice_keys)))
    made = set(re.findall(r'Warn\(\s*"(\w+)"', sources))
    assert len(made) == 24
    assert set(named) == made
    assert f"{advice.OPEN_TIMES} x `open_for`" in PAGE.read_text(encoding="utf-8")
