"""Extras, entry points and the integrations' files say the same thing."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

from tests.architecture.source_tree import ROOT, shipped_modules

# Extras that are not for one integration: sets of them, and the project's own tools.
COLLECTIONS = {"all", "lab", "test", "dev"}
GROUPS_TO_RESOLVE = ("scripts", "entry-points")


def project(root: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return loaded


def faults(root: Path) -> list[str]:
    """Say where pyproject.toml and the shipped files disagree."""
    table = project(root)
    extras: dict[str, list[str]] = table["optional-dependencies"]
    modules = {module.name: module for module in shipped_modules(root)}
    integrations = {
        module.room
        for module in modules.values()
        if module.package == "resilient_mw_integrations" and not module.room.startswith("_") and module.room
    }
    single = set(extras) - COLLECTIONS
    found = [
        *(f"{name}: an integration without an extra" for name in sorted(integrations - single)),
        *(f"{name}: an extra without an integration" for name in sorted(single - integrations)),
        *(f"{name}: not in the extra 'all'" for name in sorted(single - _parts(extras["all"]))),
        *(f"{name}: a hard dependency" for name in table["dependencies"]),
    ]
    targets = [
        *table["scripts"].values(),
        *(target for group in table["entry-points"].values() for target in group.values()),
    ]
    for target in targets:
        name, _, attribute = target.partition(":")
        if name not in modules:
            found.append(f"{target}: there is no such module")
        elif attribute and attribute not in _top_level_names(modules[name].source()):
            found.append(f"{target}: the module does not define {attribute}")
    return found


def _parts(requirements: list[str]) -> set[str]:
    inside = [
        entry.partition("[")[2].rstrip("]") for entry in requirements if entry.startswith("resilient-mw[")
    ]
    return {part.strip() for entry in inside for part in entry.split(",")}


def _top_level_names(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def test_pyproject_and_the_files_agree() -> None:
    assert faults(ROOT) == []


def test_each_disagreement_is_seen(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        """
        [project]
        dependencies = ["attrs"]
        [project.optional-dependencies]
        flask = ["flask"]
        ghost = ["ghost"]
        all = ["resilient-mw[flask]"]
        dev = ["ruff"]
        [project.scripts]
        command = "resilient_mw.cli.main:main"
        [project.entry-points."resilient_mw.routes"]
        flask = "resilient_mw_integrations.flask:route_source"
        """,
        encoding="utf-8",
    )
    folder = tmp_path / "integrations" / "resilient_mw_integrations"
    folder.mkdir(parents=True)
    for name in ("__init__", "_shared", "flask", "django"):
        (folder / f"{name}.py").write_text("def other() -> None: ...\n", encoding="utf-8")
    assert faults(tmp_path) == [
        "django: an integration without an extra",
        "ghost: an extra without an integration",
        "ghost: not in the extra 'all'",
        "attrs: a hard dependency",
        "resilient_mw.cli.main:main: there is no such module",
        "resilient_mw_integrations.flask:route_source: the module does not define route_source",
    ]
