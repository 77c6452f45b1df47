"""Run the tests on each version of Python that is here: `make test-all`, or `python scripts/test_all.py 3.11 3.12`.

An interpreter is found by its name (python3.12) or among those of pyenv. Each gets a virtual environment of its own.
"""
# ruff: noqa: S603, T201

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION_OF = "import sys; print('%d.%d' % sys.version_info[:2])"


def find(version: str) -> str | None:
    """Return an interpreter of a version ("3.12"), or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted(pyenv.glob(f"versions/{version}.*/bin/python3"), reverse=True)
    for candidate in [f"python{version}", *map(str, kept)]:
        try:
            told = subprocess.run([candidate, "-c", VERSION_OF], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if told.returncode == 0 and told.stdout.strip() == version:
            return candidate
    return None


def main(versions: list[str]) -> int:
    """Run `make test` for each version; return the status for the shell."""
    found = {version: find(version) for version in versions}
    failed = []
    for version, python in found.items():
        if python is None:
            print(f"==> Python {version} is not here: left out", flush=True)
            continue
        print(f"==> Python {version}", flush=True)
        command = ["make", "--no-print-directory", "test", f"PYTHON={python}", f"VENV=.venv-{version}"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(version)
    if failed:
        print("Tests failed on Python " + ", ".join(failed))
    if not any(found.values()):
        print("None of these versions of Python is here: " + ", ".join(versions))
    return 1 if failed or not any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["3.11", "3.12", "3.13"]))
