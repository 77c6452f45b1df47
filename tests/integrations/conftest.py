from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from weakref import WeakSet

import pytest

from resilient_mw.asgi import pages
from resilient_mw.core import marks, ports
from resilient_mw.runtime import protection
from tests.integrations.httpx_wires import wire

__all__ = ["wire"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks are global: those of one test must not be unreached ones of another."""
    monkeypatch.setattr(marks, "_marked", [])
    monkeypatch.setattr(protection, "_waiting_for_start", WeakSet())


@pytest.fixture
def own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has jobs or keys is seen by all exporters of a process: those of other tests must not be seen here."""
    monkeypatch.setattr(ports, "_jobs", WeakSet())
    monkeypatch.setattr(ports, "_idempotency", WeakSet())


@pytest.fixture(autouse=True)
def patient_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a page may take longer than half a second; what happens then has tests of its own."""
    monkeypatch.setattr(pages, "PAGE_WITHIN", 30.0)


@pytest.fixture
def entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the entry points of pyproject.toml known where the package is not installed; the folder they are in."""
    folder = write_entry_points(tmp_path)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


def write_entry_points(folder: Path) -> Path:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / "installed" / "resilient_mw-0.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: resilient-mw\nVersion: 0.0.0\n", encoding="utf-8"
    )
    lines = []
    for group in ("resilient_mw.routes", "resilient_mw.stores"):
        lines.append(f"[{group}]")
        lines += [f"{name} = {target}" for name, target in project["entry-points"][group].items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return info.parent
