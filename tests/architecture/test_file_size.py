"""A file that wants to grow past 300 lines has two subjects."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.source_tree import ROOT, shipped_modules

LIMIT = 300


def too_long(root: Path) -> dict[str, int]:
    """Give the shipped files that do not stay under the limit, with their number of lines."""
    lengths = {
        str(module.path.relative_to(root)): len(module.source().splitlines())
        for module in shipped_modules(root)
    }
    return {file: lines for file, lines in lengths.items() if lines >= LIMIT}


def test_every_shipped_file_stays_under_the_limit() -> None:
    assert too_long(ROOT) == {}


def test_a_file_at_the_limit_is_reported(tmp_path: Path) -> None:
    for file, lines in {
        "resilient_mw/core/long.py": LIMIT,
        "resilient_mw/core/short.py": LIMIT - 1,
        "integrations/resilient_mw_integrations/long.py": LIMIT + 1,
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#\n" * lines, encoding="utf-8")
    assert too_long(tmp_path) == {
        "resilient_mw/core/long.py": LIMIT,
        "integrations/resilient_mw_integrations/long.py": LIMIT + 1,
    }
