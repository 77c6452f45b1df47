"""Importing the package is cheap and drags nothing in.

Each import runs in a fresh interpreter without site-packages: whatever needs a third-party package fails
there, and what the standard library was asked for can be counted.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT

# What makes a start slow, or opens something, and what only one half of the users needs.
HEAVY = {
    "asyncio",
    "concurrent.futures",
    "email",
    "http.client",
    "importlib.metadata",
    "logging",
    "multiprocessing",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "unittest",
    "urllib.request",
}


def loaded_by(module: str, *folders: Path) -> set[str]:
    """Import one module in an interpreter of its own and give the names of all modules that are loaded then."""
    code = f"import sys; sys.path[:0] = {[str(folder) for folder in folders]!r}; import {module}; print(*sys.modules)"
    finished = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.split())


@pytest.mark.parametrize("module", ["resilient_mw", "resilient_mw_integrations"])
def test_the_packages_load_nothing_heavy(module: str) -> None:
    loaded = loaded_by(module, ROOT, ROOT / "integrations")
    assert module in loaded
    assert loaded & HEAVY == set()


def test_the_wsgi_half_loads_no_event_loop() -> None:
    loaded = loaded_by("resilient_mw.wsgi", ROOT)
    assert "resilient_mw.wsgi" in loaded
    assert "asyncio" not in loaded


@pytest.mark.parametrize("module", ["resilient_mw.asgi", "resilient_mw.testing", "resilient_mw.simulation"])
def test_the_rest_needs_the_standard_library_alone(module: str) -> None:
    loaded = loaded_by(module, ROOT)
    assert module in loaded
    assert "sqlite3" not in loaded


def test_a_heavy_import_is_seen(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("import asyncio\n", encoding="utf-8")
    assert {"asyncio", "logging", "socket"} <= loaded_by("planted", tmp_path) & HEAVY


def test_a_third_party_import_is_seen(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("import pytest\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="No module named 'pytest'"):
        loaded_by("planted", tmp_path)
