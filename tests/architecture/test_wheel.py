"""What is shipped is the tree: nothing lost, nothing added, and it works where nothing else is installed.

The wheel is built from the sdist, as an installer without wheels would do; a folder that one of the two
build tables forgets is silently not shipped, and no other test would notice.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGE_FOLDERS, ROOT

pytestmark = pytest.mark.slow

PROJECT_FILES = {
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml",
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    """The two archives of one build."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    run(
        [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        cwd=folder,
    )
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def bare_environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel, and nothing else, into an environment of its own; give that environment's folder."""
    folder = tmp_path_factory.mktemp("bare") / "env"
    venv.create(folder, with_pip=False)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "--disable-pip-version-check",
    ]
    run([*pip, "install", "--no-deps", "--no-index", str(built.wheel)], cwd=folder)
    return folder


def run(command: list[str], cwd: Path) -> str:
    finished = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=110, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def files_of_the_tree(root: Path) -> set[str]:
    """Name every file of the two packages as a wheel would: relative to the folder that is on the path."""
    return {
        (Path(package) / path.relative_to(root / folder)).as_posix()
        for package, folder in PACKAGE_FOLDERS.items()
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def files_of_the_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/") and ".dist-info/" not in name}


def files_of_the_sdist(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def differences(tree: Iterable[str], shipped: Iterable[str]) -> list[str]:
    lost, added = set(tree) - set(shipped), set(shipped) - set(tree)
    return [*(f"lost: {name}" for name in sorted(lost)), *(f"added: {name}" for name in sorted(added))]


def test_the_wheel_holds_the_tree(built: Built) -> None:
    assert differences(files_of_the_tree(ROOT), files_of_the_wheel(built.wheel)) == []


def test_both_packages_say_that_they_are_typed(built: Built) -> None:
    assert {"resilient_mw/py.typed", "resilient_mw_integrations/py.typed"} <= files_of_the_wheel(built.wheel)


def test_the_wheel_holds_the_licence(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_holds_what_the_tests_need(built: Built) -> None:
    shipped = files_of_the_sdist(built.sdist)
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*") if path.is_file()}
    wanted = PROJECT_FILES | {name for name in tests if "__pycache__" not in name}
    assert wanted - shipped == set()


def test_the_wheel_works_where_nothing_else_is_installed(bare_environment: Path) -> None:
    code = (
        "import resilient_mw, resilient_mw.asgi, resilient_mw.wsgi, resilient_mw_integrations\n"
        "from importlib.metadata import version, entry_points\n"
        "print(resilient_mw.__file__)\n"
        "print(version('resilient-mw') == resilient_mw.__version__)\n"
        "print(*sorted(entry_points(group='resilient_mw.routes').names))\n"
    )
    where, same_version, sources = run(
        [str(bare_environment / "bin" / "python"), "-I", "-c", code], cwd=bare_environment
    ).splitlines()
    assert Path(where).is_relative_to(bare_environment)
    assert same_version == "True"
    assert sources == "django flask litestar quart starlette"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert sources.split() == sorted(declared["resilient_mw.routes"])


def test_the_command_explains_itself_where_nothing_else_is_installed(bare_environment: Path) -> None:
    assert "lab" in run([str(bare_environment / "bin" / "resilient-mw"), "--help"], cwd=bare_environment)


def test_a_lost_and_an_added_file_are_seen(tmp_path: Path) -> None:
    for file in (
        "resilient_mw/core/kept.py",
        "resilient_mw/core/lost.py",
        "integrations/resilient_mw_integrations/flask.py",
    ):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    wheel = tmp_path / "planted.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (
            "resilient_mw/core/kept.py",
            "integrations/resilient_mw_integrations/flask.py",
            "x.dist-info/RECORD",
        ):
            archive.writestr(name, "")
    assert differences(files_of_the_tree(tmp_path), files_of_the_wheel(wheel)) == [
        "lost: resilient_mw/core/lost.py",
        "lost: resilient_mw_integrations/flask.py",
        "added: integrations/resilient_mw_integrations/flask.py",
    ]
