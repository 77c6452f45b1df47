"""The faults of the breaker's windows, of slowness, of the pace at which it comes back, and of its use by hand."""

from __future__ import annotations

from fault_table import Fault
from fault_table_machines import BREAKER, OWNER, PACE, WINDOWS

RECENT = "resilient_mw/calls/breaker_recent.py"
SLOWLY = "tests/calls/test_breaker_slow.py::test_"
CIRCUIT = "resilient_mw/runtime/circuit.py"
WRAPS = "resilient_mw/runtime/circuit_wraps.py"
ALONE = "tests/runtime/test_circuit.py::test_"
HAND = "tests/runtime/test_circuit_by_hand.py::test_"

FAULTS = (
    Fault("hang_not_seen_before_it_ends", BREAKER, "while slow_at is None:", "while False:", (
        SLOWLY + "a_hang_is_seen_before_it_ends",
    )),
    Fault("slow_attempt_counted_twice", RECENT,
        "self._window.mark_failed(place)", "self._window.bad(failed=True, slow=False)",
        (SLOWLY + "a_slow_attempt_counts_once_and_its_failure_is_added_to_the_same_outcome",)),
    Fault("slow_attempt_that_failed_is_good", RECENT, "self._window.mark_failed(place)", "pass", (SLOWLY + "a_slow_attempt_counts_once_and_its_failure_is_added_to_the_same_outcome",)),
    Fault("endless_attempts_pile_up", RECENT, "len(counted) > self.MOST_SLOW or", "False and", (
        SLOWLY + "attempts_that_never_end_are_forgotten",
    )),
    Fault("hanging_trial_is_waited_for", BREAKER,
        "self._slow_after is not None and self._trials.oldest + self._slow_after <= now", "False",
        (SLOWLY + "a_trial_that_hangs_opens_it_again",)),
    Fault("failures_in_a_row_overlooked", RECENT, "self._streak >= policy.consecutive_failures", "False", (
        SLOWLY + "failures_in_a_row_open_it_before_the_minimum",
    )),
    Fault("row_goes_on_after_a_success", RECENT,
        "            self._streak = 0\n            self.short += new\n", "            self.short += new\n",
        (SLOWLY + "a_success_of_the_short_way_ends_a_row",)),
    Fault("outcomes_do_not_age", WINDOWS, "                self._forget(each % STEPS)", "                pass", (
        SLOWLY + "outcomes_leave_a_window_of_time_by_their_age",
    )),
    Fault("old_slowness_stays", WINDOWS, "self.slow -= before >> 1", "pass", (SLOWLY + "slow_attempts_leave_the_window_like_others",)),
    Fault("open_time_grows_for_ever", PACE, ", policy.open_cap)", ", 86_400)", (SLOWLY + "the_open_time_grows_to_its_cap_and_begins_anew_after_a_time_of_health",)),
    Fault("open_time_forgets_too_early", PACE, "now - self._closed_at >= self._last", "True", (
        SLOWLY + "the_open_time_grows_to_its_cap_and_begins_anew_after_a_time_of_health",
    )),
    Fault("all_come_back_at_once", PACE, "if self._credit < 1.0:", "if False:", (
        SLOWLY + "traffic_comes_back_bit_by_bit",
    )),
    Fault("hand_let_go", BREAKER, "        self._open_until = math.inf\n", "", (
        SLOWLY + "opened_by_hand_it_stays_open_until_somebody_changes_that",
    )),
    Fault("opened_although_held_closed", BREAKER, "if failed and not self.held and", "if failed and", (
        SLOWLY + "closed_by_hand_nothing_opens_it",
    )),
    Fault("slow_opens_although_held_closed", BREAKER, "if not self.held and recent.too_many_slow()", "if recent.too_many_slow()", (
        SLOWLY + "closed_by_hand_nothing_opens_it",
    )),
    Fault("shadow_that_refuses", BREAKER, "            return SHADOW\n", "            return None\n", (
        SLOWLY + "the_shadow_refuses_nothing_and_counts_what_it_would_have_refused",
    )),
    Fault("ready_no_more_for_a_shadow", BREAKER,
        "        if self._policy.shadow:\n            return None\n", "", (SLOWLY + "the_shadow_refuses_nothing_and_counts_what_it_would_have_refused",)),
    Fault("older_period_joins_the_new_one", RECENT,
        "        self.running: dict[int, float] = {}\n", "        self.running: dict[int, float] = getattr(self, \"running\", {})\n",
        (SLOWLY + "late_results_of_an_older_period_change_nothing_where_attempts_have_numbers",)),
    # -- standing alone
    Fault("finalizer_waits_for_its_own_lock", CIRCUIT,
        "while self._ended and self._lock.acquire(blocking=False):", "while self._ended and self._lock.acquire():",
        (ALONE + "a_finalizer_that_ends_a_call_while_the_lock_is_held_waits_for_nothing",)),
    Fault("finalizer_asks_its_own_lock", CIRCUIT, "if self._decides == threading.get_ident():", "if False:", (
        ALONE + "a_finalizer_that_ends_a_call_while_the_lock_is_held_waits_for_nothing",
    )),
    Fault("outcome_left_behind", CIRCUIT,
        "                self._decides = 0\n        self._afterwards()\n\n    def _work_off",
        "                self._decides = 0\n\n    def _work_off",
        (ALONE + "what_is_done_by_hand_is_told_at_once",)),
    Fault("cancelled_block_blamed", "resilient_mw/calls/classify.py",
        "not isinstance(error, Exception) or isinstance(", "isinstance(",
        (ALONE + "b65_what_says_nothing_is_neutral_and_never_wedges",)),
    Fault("excluded_exception_blamed", "resilient_mw/calls/classify.py",
        "return None if isinstance(error, tuple(exclude)) else True", "return True",
        (ALONE + "b65_what_says_nothing_is_neutral_and_never_wedges",)),
    Fault("generator_held_to_its_first_item", WRAPS,
        "            result = yield from function(*args, **kwargs)\n",
        "            inner = function(*args, **kwargs)\n            first = next(inner)\n"
        "            breaker.end(permit, None)\n            yield first\n            result = yield from inner\n",
        (ALONE + "every_kind_of_function_is_guarded",)),
    Fault("thrown_error_kept_from_the_generator", WRAPS, "step = inner.athrow(error)", "raise error", (
        ALONE + "what_is_sent_and_thrown_reaches_an_async_generator",
    )),
    Fault("blocks_share_one_permit", CIRCUIT, "self._blocks.set(permits[:-1])", "pass", (
        ALONE + "blocks_of_tasks_and_inside_each_other_know_their_own_permits",
    )),
    Fault("broken_judge_replaces_the_error", CIRCUIT, "except Exception:  # noqa: BLE001  the caller", "except OSError:  # noqa: BLE001  the caller", (
        ALONE + "the_user_says_what_a_failure_is",
    )),
    Fault("broken_listener_ends_the_call", "resilient_mw/runtime/circuit_news.py", "except Exception:", "except OSError:", (
        ALONE + "a_listener_may_call_through_the_breaker_and_a_broken_one_changes_nothing", HAND + "listeners_hear_of_each_change_outside_the_lock",
    )),
    Fault("listener_told_by_nobody", OWNER,
        "        if self._untold:\n            self._tell()\n\n    def _wake(", "\n    def _wake(",
        (HAND + "listeners_hear_of_each_change_outside_the_lock",)),
    Fault("snapshot_blind_to_a_hang", OWNER, "                breaker.notice(now)\n", "                pass\n", (
        HAND + "a_snapshot_sees_calls_that_hang",
    )),
    Fault("short_way_into_a_new_period", WRAPS,
        "        if short and start < machine.quiet_until:", "        if short:",
        (ALONE + "every_kind_of_function_is_guarded",)),
)  # fmt: skip
