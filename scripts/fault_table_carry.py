"""Faults of carrying the context to threads, processes and queues."""

from __future__ import annotations

from fault_table import Fault

CARRY = "resilient_mw/runtime/carry.py"

FAULTS = (
    Fault(
        "carry_one_context",
        CARRY,
        "self._context.copy().run(self._function, *args, **kwargs)",
        "self._context.run(self._function, *args, **kwargs)",
        (
            "tests/runtime/test_carry.py::test_calls_of_one_carried_function_run_at_the_same_time_and_share_nothing",
        ),
    ),
    Fault(
        "carry_late_work",
        CARRY,
        "fn if self._begin_late else Timely(fn)",
        "fn",
        ("tests/runtime/test_carry.py::test_work_that_expires_in_the_queue_is_not_begun",),
    ),
    Fault(
        "carry_pickled_elsewhere",
        CARRY,
        "written(self._context.get(CURRENT, NO_REQUEST))",
        "export_context()",
        ("tests/runtime/test_carry.py::test_pickling_reads_the_request_it_was_bound_to",),
    ),
    Fault(
        "carry_cancelled_has_time",
        CARRY,
        "0.0 if context.cancelled else context.remaining()",
        "context.remaining()",
        ("tests/runtime/test_carry.py::test_a_cancelled_request_has_nothing_left_to_give",),
    ),
    Fault(
        "carry_foreign_clock",
        CARRY,
        "ours is None or name != ours or",
        "ours is None or",
        ("tests/runtime/test_carry.py::test_another_machines_clock_is_not_compared",),
    ),
    Fault(
        "carry_way_is_free",
        CARRY,
        "left - max(waited, _on_the_way(context, values.get(WRITTEN)))",
        "left - waited",
        (
            "tests/runtime/test_carry.py::test_time_in_the_queue_is_charged_by_the_clock_that_both_read",
            "tests/runtime/test_carry.py::test_a_queue_before_a_process_is_charged",
        ),
    ),
    Fault(
        "carry_slot_not_held",
        CARRY,
        "            current().hold(future)\n",
        "            pass\n",
        ("tests/runtime/test_carry.py::test_a_request_holds_its_slot_for_submitted_work_where_told_to",),
    ),
)
