"""The faults of what gives back and tells in the odd cases: collections, listeners, arguments and groups."""

from __future__ import annotations

from fault_table import Fault

OWNER = "resilient_mw/runtime/dependency_owner.py"
WAITS = "resilient_mw/runtime/slot_waits.py"
DRIVE = "resilient_mw/runtime/drive_async.py"
SYNC = "resilient_mw/transport/sync.py"
KEPT = "resilient_mw/runtime/fallbacks.py"
SPARE = "resilient_mw/transport/fallback.py"
GUARDED = "resilient_mw/runtime/guarded.py"
BREAKER = "resilient_mw/calls/breaker.py"
BODIES = "integrations/resilient_mw_integrations/_urllib3_bodies.py"
DATE = "resilient_mw/core/headers/http_date.py"

BACK = "tests/runtime/test_given_back.py::test_"
FORGOTTEN = "tests/transport/test_forgotten_calls.py::test_"
SPARES = "tests/runtime/test_guarded_fallbacks.py::test_"
HTTPX = "tests/integrations/test_httpx_fallbacks.py::test_"
HAND = "tests/calls/test_groups_by_hand.py::test_"

FAULTS = (
    Fault(
        "finalizer_left_unheard",
        OWNER,
        "        if self._abandoned:  # Since",
        "        if False:  # Since",
        (BACK + "each_step_clears_up_what_a_finalizer_has_left",),
    ),
    Fault(
        "look_wakes_nobody",
        OWNER,
        "        self._tell_and_wake()\n        return snapshot",
        "        return snapshot",
        (BACK + "whoever_clears_up_wakes_those_who_wait",),
    ),
    Fault(
        "collector_waits_for_the_lock",
        DRIVE,
        "isinstance(error, GeneratorExit)",
        "False",
        (FORGOTTEN + "a_call_whose_loop_is_gone_does_not_wait_for_the_lock",),
    ),
    Fault(
        "hidden_exit_forgotten",
        DRIVE,
        "        error = error.__context__",
        "        error = None",
        (FORGOTTEN + "what_breaks_on_the_way_out_does_not_hide_that_it_is_a_collection",),
    ),
    Fault(
        "forgotten_response_fails_the_next_call",
        SYNC,
        "            with suppress(Exception):  # This request",
        "            if self._lost:  # This request",
        (FORGOTTEN + "a_forgotten_response_that_cannot_be_closed_does_not_fail_the_next_call",),
    ),
    Fault(
        "value_lost_in_its_comparison",
        KEPT,
        "            with suppress(Exception):  # The comparison",
        "            if self._key:  # The comparison",
        (SPARES + "a_good_value_is_returned_whatever_its_arguments_do",),
    ),
    Fault(
        "spare_shared_by_all",
        SPARE,
        "            answer = self._copied(answer)",
        "            pass",
        (HTTPX + "each_request_gets_a_response_of_its_own",),
    ),
    Fault(
        "whole_answer_not_kept",
        SPARE,
        '            complete(b"".join(whole))',
        '            b"".join(whole)',
        (HTTPX + "an_answer_that_is_whole_from_the_beginning_is_kept",),
    ),
    Fault(
        "mistake_replaced_by_a_fallback",
        GUARDED,
        "            self.answered = True  # A mistake",
        "            self.answered = False  # A mistake",
        (SPARES + "nothing_stands_in_for_a_coroutine_function_that_is_called_in_a_thread",),
    ),
    Fault(
        "guard_hides_that_it_repeats",
        GUARDED,
        "if self._idempotent else None",
        "if False else None",
        ("tests/runtime/test_guarded.py::test_attempts_inside_a_function_that_runs_again_do_not_multiply",),
    ),
    Fault(
        "group_forgets_the_hand",
        BREAKER,
        "        self.held = other.held\n",
        "",
        (HAND + "each_group_obeys_the_hand_also_one_that_comes_later",),
    ),
    Fault(
        "group_tells_nobody",
        BREAKER,
        "        self.untold = other.untold\n",
        "",
        (HAND + "listeners_hear_of_each_group",),
    ),
    Fault(
        "pool_locked_by_a_collection",
        BODIES,
        "            if not delivery.closed and self._connection is not None:",
        "            if False:",
        (
            "tests/integrations/test_urllib3.py::test_a_forgotten_response_takes_no_lock_of_its_pool_and_leaves_its_place",
        ),
    ),
    Fault(
        "date_after_the_last_year",
        DATE,
        "    if leap_second and (year",
        "    if False and (year",
        (
            "tests/transport/test_hostile_heads.py::test_a_date_at_the_end_of_time_is_no_clock_for_another_one",
        ),
    ),
)
