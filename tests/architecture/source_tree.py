"""Read the two shipped packages as text: which modules there are, how long, and what each imports.

Nothing here imports the code it looks at, and every function takes the root of a tree, so that the tests can
plant a wrong file in a tree of their own and see it reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE_FOLDERS = {
    "resilient_mw": Path("resilient_mw"),
    "resilient_mw_integrations": Path("integrations/resilient_mw_integrations"),
}


@dataclass(frozen=True)
class Import:
    """One name that one module asks for, as a full dotted path (`resilient_mw.core.deadline.Deadline`)."""

    target: str
    line: int
    typing_only: bool
    relative: bool = False

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


@dataclass(frozen=True)
class Module:
    """One Python file of a tree, with the dotted name under which it is imported."""

    name: str
    path: Path
    is_package: bool

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def room(self) -> str:
        """Give the name of the folder or file directly under the package, "" for the package itself."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""

    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def imports(self) -> Iterator[Import]:
        """Yield every import of the file, wherever it stands, `importlib.import_module("x")` included."""
        yield from _walk(ast.parse(self.source(), str(self.path)), self, typing_only=False)


def shipped_modules(root: Path = ROOT) -> list[Module]:
    """List the modules of both packages under a root, in the order of their names."""
    found = []
    for package, folder in PACKAGE_FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = [package, *path.relative_to(root / folder).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            found.append(Module(".".join(parts[:-1] if is_package else parts), path, is_package))
    return found


def loose_modules(root: Path = ROOT) -> list[Module]:
    """List the Python files that are not shipped: tests, examples, benchmarks."""
    return [
        Module(".".join(path.relative_to(root).with_suffix("").parts), path, is_package=False)
        for folder in ("tests", "examples", "benchmarks")
        for path in sorted((root / folder).rglob("*.py"))
    ]


def _walk(node: ast.AST, module: Module, *, typing_only: bool) -> Iterator[Import]:
    yield from _asked_for_by(node, module, typing_only=typing_only)
    for child in ast.iter_child_nodes(node):
        guarded = isinstance(node, ast.If) and child in node.body and _name(node.test) == "TYPE_CHECKING"
        yield from _walk(child, module, typing_only=typing_only or guarded)


def _asked_for_by(node: ast.AST, module: Module, *, typing_only: bool) -> Iterator[Import]:
    match node:
        case ast.Import():
            for alias in node.names:
                yield Import(alias.name, node.lineno, typing_only)
        case ast.ImportFrom():
            base = _resolved(node, module)
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, typing_only, relative=node.level > 0)
        case ast.Call(func=function, args=[ast.Constant(value=str(target)), *_]):
            if _name(function) in {"import_module", "__import__"}:
                yield Import(target, node.lineno, typing_only)


def _resolved(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    climb = node.level - 1 if module.is_package else node.level
    return ".".join([*parts[: len(parts) - climb], *([node.module] if node.module else [])])


def _name(expression: ast.expr) -> str:
    """Give the last part of `name` or `module.name`, and nothing for other expressions."""
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
