"""Faults of the lab's processes."""

from __future__ import annotations

from fault_table import Fault

PROCESSES = "resilient_mw/lab/processes.py"
HERE = "tests/lab/test_processes.py::test_"

FAULTS = (
    Fault(
        "lab_server_that_nobody_reads",
        PROCESSES,
        "        if not says_more:\n            child.ignore()\n",
        "",
        (f"{HERE}a_server_that_talks_more_than_a_pipe_holds_goes_on_serving",),
    ),
    Fault(
        "lab_end_before_what_was_written",
        PROCESSES,
        "        with contextlib.suppress(TimeoutError):  # a process that it left",
        "        await self.process.wait()\n        with contextlib.suppress(TimeoutError):  # a process that it left",
        (f"{HERE}a_process_that_talks_to_nobody_is_ended_nevertheless",),
    ),
)
