"""Plant known faults in a copy of the code, one at a time, and check that the tests notice each of them.

    python scripts/plant_faults.py                 # all of them
    python scripts/plant_faults.py late_tick ...   # some of them
    python scripts/plant_faults.py --list

Exit status 1: a fault survived its tests, or the tests fail without any fault. The tree itself is not touched.
"""
# ruff: noqa: S603, T201

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from fault_table import Fault

TABLES = sorted(Path(__file__).parent.glob("fault_table*.py"))
FAULTS: tuple[Fault, ...] = tuple(
    fault
    for table in TABLES
    for name, faults in vars(importlib.import_module(table.stem)).items()
    if name == "FAULTS" or name.endswith("_FAULTS")
    for fault in faults
)
"""The faults of all tables beside this file."""

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("resilient_mw", "integrations", "tests", "pyproject.toml")
LONGEST = 90
"""Seconds for the tests of one fault; a fault that makes them hang is noticed, too."""
LONGEST_TEST = 10
"""Seconds for one test while a fault is planted."""
LONGEST_WITHOUT = 3600
"""Seconds for the tests of all faults while none is planted, and for each of them."""


@dataclass(frozen=True)
class Outcome:
    """What the tests said.

    Attributes:
        failed: short names of the failed tests.
        broken: why the run says nothing about the fault; empty if it does.
        seconds: how long it took.
    """

    failed: tuple[str, ...]
    broken: str
    seconds: float


class Copy:
    """A copy of the tree in which faults are planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)
        # Before anything that is installed, also for plugins that are loaded before pytest reads its settings.
        paths = [str(folder), str(folder / "integrations")]
        self._environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip

    def imported_from(self) -> Path:
        """Return where Python finds the package when it runs here."""
        code = "import resilient_mw; print(resilient_mw.__file__)"
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=True
        )
        return Path(done.stdout.strip())

    def run(self, tests: Sequence[str], *, each: float = LONGEST_TEST, longest: float = LONGEST) -> Outcome:
        """Run some tests and stop at the first failure.

        Args:
            tests: their pytest node ids.
            each: seconds for one test.
            longest: seconds for all of them.
        """
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-rf", "--tb=no", "--no-header", "-p", "no:cacheprovider",
            f"--timeout={each}", "-p", "tests.admission.profiles", "--hypothesis-profile=faults", *tests,
        ]  # fmt: skip
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False,
                timeout=longest,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome(("(it hangs)",), "", time.monotonic() - began)
        failed = tuple(re.findall(r"^FAILED \S*::(\S+)", done.stdout, re.MULTILINE))
        # 0: all passed. 1: some failed. Everything else, an error at import for one, shows nothing about the tests.
        wrong = done.returncode not in {0, 1} or (done.returncode == 1 and not failed)
        if not wrong and "no tests ran" in done.stdout:
            wrong = True
        return Outcome(
            failed, done.stdout[-2000:] + done.stderr[-2000:] if wrong else "", time.monotonic() - began
        )

    def plant(self, fault: Fault) -> Outcome:
        """Plant one fault, run its tests, and take it out again."""
        path = self.folder / fault.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        try:
            return self.run(fault.tests)
        finally:
            path.write_text(text, encoding="utf-8")


def misplaced(faults: Sequence[Fault]) -> list[str]:
    """Return what is wrong with the table: texts that do not stand exactly once, names that stand twice."""
    wrong = []
    for fault in faults:
        count = (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old)
        if count != 1:
            wrong.append(
                f"{fault.name}: its text stands {count} times in {fault.file} and not once: {fault.old!r}"
            )
        if sum(other.name == fault.name for other in faults) > 1:
            wrong.append(f"{fault.name}: the name stands twice")
    return wrong


def verify(copy: Copy, faults: Sequence[Fault]) -> str:
    """Return why the tests could not tell anything; empty if they pass as long as nothing is planted."""
    if not copy.imported_from().is_relative_to(copy.folder):
        return f"the tests would run {copy.imported_from()} and not the copy in {copy.folder}"
    tests = sorted({test for fault in faults for test in fault.tests})
    outcome = copy.run(tests, each=LONGEST_WITHOUT, longest=LONGEST_WITHOUT)
    if outcome.failed:
        return f"{outcome.failed[0]} fails although nothing is planted"
    return outcome.broken


def plant_all(copies: Sequence[Copy], faults: Sequence[Fault]) -> list[Fault]:
    """Plant every fault, print what came of it, and return those that survived."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def plant(fault: Fault) -> Outcome:
        copy = free.get()
        try:
            return copy.plant(fault)
        finally:
            free.put(copy)

    width = max(len(fault.name) for fault in faults)
    survived = []
    with ThreadPoolExecutor(len(copies)) as pool:
        for number, (fault, outcome) in enumerate(zip(faults, pool.map(plant, faults), strict=True), 1):
            caught = bool(outcome.failed) and not outcome.broken
            said = f"caught by {outcome.failed[0]}" if caught else "SURVIVED"
            print(
                f"[{number:>2}/{len(faults)}] {fault.name:<{width}} {outcome.seconds:5.1f} s  {said}",
                flush=True,
            )
            if outcome.broken:
                print(outcome.broken)
            if not caught:
                survived.append(fault)
    return survived


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="name the faults and end")
    options = parser.parse_args()
    unknown = set(options.names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    faults = [fault for fault in FAULTS if not options.names or fault.name in options.names]
    if options.list:
        print("\n".join(f"{fault.name:<32} {fault.file}" for fault in faults))
        return 0
    wrong = misplaced(FAULTS)
    if wrong:
        print("\n".join(wrong))
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-faults-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(max(1, options.jobs))]
        print(f"==> {len(faults)} faults; first, their tests without any", flush=True)
        problem = verify(copies[0], faults)
        if problem:
            print(problem)
            return 1
        survived = plant_all(copies, faults)
    caught = len(faults) - len(survived)
    print(f"==> {caught} of {len(faults)} faults caught in {time.monotonic() - began:.0f} s")
    for fault in survived:
        print(f"    survived: {fault.name}")
    return 1 if survived else 0


if __name__ == "__main__":
    raise SystemExit(main())
