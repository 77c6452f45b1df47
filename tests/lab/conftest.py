"""What the tests of the lab share: made-up results, and a look at the processes that one has started."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from resilient_mw.lab.load import due_times
from resilient_mw.lab.records import Change, Record
from resilient_mw.lab.results import DependencyLog, Inside, Settled, StepResult
from resilient_mw.lab.step import Step
from resilient_mw.lab.steps import STEPS


def _children(parent: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since the listing
        if int(fields[1]) == parent:
            found.add(int(entry.name))
    return found


@pytest.fixture
def children() -> Callable[[int], set[int]]:
    """A function that returns the ids of the processes that one has started and that are still there."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    return _children


@pytest.fixture
def no_process_left(children: Callable[[int], set[int]]) -> Callable[[], None]:
    """A function that fails if this process has children that it did not have when the test began."""
    before = children(os.getpid())

    def check() -> None:
        assert children(os.getpid()) - before == set()

    return check


CHANGES = [
    Change(0.9, "closed", "open"),
    Change(5.9, "open", "half-open"),
    Change(6.0, "half-open", "closed"),
]


def made_up(step: Step, *, served: float = 1.0) -> StepResult:
    """Return a result of a step in which the first part of each load is served, and the rest is not."""
    records = []
    for load in step.loads:
        all_due = due_times(step.stretches(load, step.length))
        for number, due in enumerate(all_due):
            if number < served * len(all_due):
                records.append(Record(load.kind, due, 0.001, 0.05, 200, None, None, False))
            elif number % 3 == 0:
                records.append(Record(load.kind, due, 0.001, 0.004, 503, "2", "queue_full", False))
            elif number % 3 == 1:
                records.append(Record(load.kind, due, 0.001, 10.0, 0, None, None, True))
            else:
                records.append(Record(load.kind, due, 0.001, 0.2, 0, None, None, False))
    records.sort(key=lambda record: record.due)
    counts = {"received": 3, "answered": 2, "abandoned": 1, "in_flight": 0, "peak": 2}
    logs = {each.name: DependencyLog(counts, [0.1, 1.0, step.length + 41]) for each in step.dependencies}
    calls = {name: {"calls": 3, "errors": 1, "refused": 2} for name in step.app.calls}
    inside = Inside(dict.fromkeys(step.app.calls, CHANGES), calls, 0.5) if step.app.calls else None
    settled = None if step.settle is None else Settled(step.length + step.settle, 1, 2)
    return StepResult(step, step.length, records, logs, inside, settled)


@pytest.fixture
def results() -> list[StepResult]:
    """One made-up result for each step, with every outcome in it."""
    return [made_up(step, served=0.5) for step in STEPS]


@pytest.fixture
def good_day() -> StepResult:
    """A made-up result of step 0 that meets its expectations."""
    return made_up(STEPS[0])
