"""The faults of the client half's machines and of what drives them."""

from __future__ import annotations

from fault_table import Fault

BREAKER = "resilient_mw/calls/breaker.py"
BREAKER_POLICY = "resilient_mw/calls/breaker_policy.py"
PACE = "resilient_mw/calls/breaker_pace.py"
TRIALS = "resilient_mw/calls/breaker_trials.py"
WINDOWS = "resilient_mw/calls/breaker_windows.py"
BUDGET = "resilient_mw/calls/budget.py"
BACKOFF = "resilient_mw/calls/backoff.py"
CALL = "resilient_mw/calls/call.py"
ATTEMPTS = "resilient_mw/calls/attempts.py"
ATTEMPT = "resilient_mw/calls/attempt.py"
CALL_STATE = "resilient_mw/calls/state.py"
CLASSIFY = "resilient_mw/calls/classify.py"
CONFIG = "resilient_mw/calls/config.py"
DEPENDENCY = "resilient_mw/calls/dependency.py"
MATCH = "resilient_mw/calls/match.py"
RETRY = "resilient_mw/calls/retry.py"
OWNER = "resilient_mw/runtime/dependency_owner.py"
DRIVE_SYNC = "resilient_mw/runtime/drive_sync.py"
DRIVE_ASYNC = "resilient_mw/runtime/drive_async.py"
CALLS = "tests/calls/"
OWNING = "tests/runtime/test_dependency_owner.py::"

MACHINE_FAULTS = (
    # -- calls: the breaker
    Fault("place_kept_by_a_trial_without_a_verdict", BREAKER,
        "if not self._trials.end(permit):", "if failed is None or not self._trials.end(permit):",
        (CALLS + "test_breaker.py::test_b65_a_trial_without_a_verdict_gives_its_place_back",)),
    Fault("lost_trial_wedges", TRIALS, "sum(start + self._lease > now for start in self._begun.values())", "len(self)", (
        CALLS + "test_breaker_machine.py",
    )),
    Fault("lost_trial_not_believed", TRIALS,
        "self._begun[number] = now",
        "self._begun[number] = now\n"
        "        for lost in [each for each, at in self._begun.items() if at + self._lease <= now]:\n"
        "            del self._begun[lost]",
        (CALLS + "test_breaker.py::test_what_the_holder_of_a_lost_trial_saw_is_still_true",)),
    Fault("crowd_let_through", BREAKER, "        return self._trials.has_place(now)\n", "        return True\n", (
        OWNING + "test_b67_a_crowd_of_threads_at_the_end_of_the_open_time",
    )),
    Fault("late_result_of_an_older_state", BREAKER, "if permit == self.closed_permit or", "if permit < SHADOW or", (
        CALLS + "test_breaker.py::test_late_results_of_the_closed_state_change_nothing",
    )),
    Fault("trial_counted_twice", BREAKER,
        "if not self._trials.end(permit):\n            return", "self._trials.end(permit)",
        (CALLS + "test_breaker.py::test_dependencies_slower_than_the_lease_still_close_it",)),
    Fault("jitter_shortens_the_open_time", PACE, "(1.0 + policy", "(1.0 - policy", (
        CALLS + "test_breaker.py::test_the_jitter_only_lengthens_the_open_time",
    )),
    Fault("old_failures_stay", WINDOWS, "self.failures -= before & FAILED", "pass", (
        CALLS + "test_breaker_machine.py",
    )),
    # -- calls: the retry budget and the back-off
    Fault("one_retry_too_many", BUDGET, "return retries + price <= ", "return retries <= ", (
        CALLS + "test_budget_machine.py",
    )),
    Fault("later_retries_overlooked", BUDGET,
        "(begin, *retries[place:last])", "(begin,)",
        (CALLS + "test_budget.py::test_a_retry_is_reserved_for_the_end_of_its_back_off",)),
    Fault("late_retry_counted_too_early", BUDGET,
        "self.give_back(reserved, price)\n            place = bisect_right(self._retries, now)\n"
        "            self._retries[place:place] = [now] * price", "pass",
        (CALLS + "test_budget.py::test_one_that_begins_late_counts_where_it_began",)),
    Fault("calls_are_never_forgotten", BUDGET,
        "del self._calls[: bisect_right(self._calls, now - WINDOW)]", "pass",
        (CALLS + "test_budget.py::test_memory_is_that_of_the_window",)),
    Fault("refused_calls_counted_as_traffic", CALL_STATE,
        "self.calls += 1", "self.calls += 1\n        if self.budget is not None:\n            self.budget.call(0.0)",
        (CALLS + "test_call.py::test_calls_that_were_refused_are_no_traffic_that_retries_may_be_a_share_of",)),
    Fault("place_kept_by_a_cancelled_back_off", CALL,
        "        self._forgo()\n        self._stage = OVER\n\n    def budget", "        self._stage = OVER\n\n    def budget",
        (CALLS + "test_call_machine.py",)),
    Fault("clients_return_together", BACKOFF, "random.uniform(1.0, 1.0 + SPREAD)", "1.0", (
        CALLS + "test_backoff.py::test_b56_clients_that_were_told_the_same_do_not_come_back_together",
    )),
    Fault("retry_after_ignored", RETRY, "max(delay, state.spread(tried.retry_after))", "delay", (
        CALLS + "test_call.py::test_b55_retry_after_is_obeyed_and_never_shortened",
    )),
    Fault("jitter_lost_at_the_bound", RETRY,
        "max(delay, state.spread(tried.retry_after))",
        "max(delay, min(policy.max_retry_after, state.spread(tried.retry_after)))",
        (CALLS + "test_call.py::"
         "test_b56_a_thousand_clients_that_were_told_5_s_come_back_spread_out_or_not_at_all",)),
    Fault("retry_after_shortened", RETRY,
        "max(delay, state.spread(tried.retry_after))", "max(delay, 0.9 * tried.retry_after)",
        (CALLS + "test_schedules.py",)),
    Fault("retry_after_waited_for_ever", RETRY,
        "if tried.retry_after is not None and tried.retry_after > policy.max_retry_after:", "if False:",
        (CALLS + "test_call.py::test_b55_too_long_a_wait_is_given_up",)),
    # -- calls: what may be repeated, and what counts
    Fault("unsafe_method_repeated", RETRY, "if tried.verdict.acted and not tried.safe:", "if False:", (
        CALLS + "test_call.py::test_others_are_repeated_only_if_the_dependency_cannot_have_acted",
    )),
    Fault("spent_body_sent_again", RETRY, "if not tried.resendable:", "if False:", (
        CALLS + "test_call.py::test_b52_a_body_that_cannot_be_sent_again_is_not_but_one_that_was_never_sent_is",
    )),
    Fault("retry_that_cannot_finish", RETRY, "< max(state.typical(), state.least)", "< 0", (
        CALLS + "test_call.py::test_only_if_back_off_typical_attempt_and_reserve_fit",
    )),
    Fault("slept_through_an_open_circuit", CALL, "if verdict.failed:", "if False:", (
        CALLS + "test_call.py::test_b71_when_the_circuit_opens_the_remaining_retries_are_not_slept_through",
    )),
    Fault("refusals_open_the_circuit", CLASSIFY,
        "NOT_BEGUN = Verdict(failed=None,", "NOT_BEGUN = Verdict(failed=True,",
        (CALLS + "test_call.py::test_refusals_of_a_trusted_dependency_never_open_the_circuit",)),
    Fault("callers_mistakes_open_the_circuit", CLASSIFY,
        "True if status in failures else", "True if status >= 400 else",
        (CALLS + "test_call.py::test_b70_what_the_caller_did_wrong_never_opens_the_circuit",)),
    Fault("small_budgets_open_the_circuit", ATTEMPTS,
        "attempt.cut_short = left < min(state.fair, FAIR * limit)", "attempt.cut_short = False",
        (CALLS + "test_call.py::test_the_callers_budget_ends_an_attempt_with_the_phase_and_blames_nobody",)),
    Fault("connect_timeout_called_deadline", ATTEMPT,
        "return failure.timed_out and self.by_budget and not in_time",
        "return failure.timed_out and self.by_budget",
        (CALLS + "test_call.py::test_a_connect_timeout_is_not_the_callers_budget_however_small_that_is",)),
    # -- calls: what is held
    Fault("slot_kept_when_no_trial_is_free", ATTEMPTS,
        "state.give_slot()\n                return self._refuse(Reason.CIRCUIT_OPEN)",
        "return self._refuse(Reason.CIRCUIT_OPEN)",
        (CALLS + "test_call_machine.py",)),
    Fault("slot_given_back_at_the_head", CALL,
        "self._stage = BODY\n", "self._stage = BODY\n            self._state.give_slot()\n",
        (CALLS + "test_call.py::test_slot_and_permit_are_held_to_the_end_of_the_body",)),
    Fault("slot_kept_by_a_cancelled_attempt", CALL,
        "for attempt in self._flying:\n            self._settle(now, attempt, None, \"lost\" if", "for attempt in ():\n            self._settle(now, attempt, None, \"lost\" if",
        (CALLS + "test_schedules.py",)),
    Fault("news_taken_twice", ATTEMPTS, "if self._stage is not stage:", "if False:", (
        CALLS + "test_call.py::test_a_step_that_does_not_belong_there_is_an_error_and_changes_nothing",
    )),
    Fault("error_lost_in_the_back_off", ATTEMPTS, "if self._raised:", "if False:", (
        CALLS + "test_call.py::test_a_bulkhead_that_filled_up_in_the_back_off_does_the_same",
    )),
    Fault("slot_of_a_leaver_lost", CALL,
        "        if self._leave():\n            self._state.give_slot()\n", "        self._leave()\n",
        (CALLS + "test_bulkhead.py::test_b76_a_slot_granted_in_the_instant_of_the_end_is_not_lost",)),
    Fault("line_without_bound", "resilient_mw/calls/bulkhead.py", "if self.waiting >= self._places:", "if False:",
        (CALLS + "test_bulkhead.py::test_b77_more_than_the_line_holds_are_refused_at_once",)),
    Fault("slot_given_to_who_has_left", "resilient_mw/calls/bulkhead.py", "if not waiter.left:", "if True:",
        (CALLS + "test_bulkhead.py::test_who_has_left_is_passed_over",)),
    Fault("nothing_left_is_enough", CALL_STATE,
        "max(dependency.smallest_budget, math.ulp(0.0))", "dependency.smallest_budget",
        (CALLS + "test_call.py::test_below_the_smallest_useful_budget_nothing_is_sent",)),
    # -- calls: owner and drivers
    Fault("lock_held_over_an_attempt", DRIVE_SYNC,
        "actions = owner.tell(call, action.number, attempts.attempt(action))",
        "with owner._lock:\n                        outcome = attempts.attempt(action)\n"
        "                    actions = owner.tell(call, action.number, outcome)",
        (OWNING + "test_b68_the_lock_is_held_over_no_attempt_and_no_body",)),
    Fault("interrupt_keeps_the_slot", DRIVE_SYNC, "except BaseException:", "except Exception:", (
        "tests/runtime/test_drive.py::test_b79_what_interrupts_passes_at_once_and_nothing_is_held",
    )),
    Fault("cancel_keeps_the_slot", DRIVE_ASYNC,
        "except BaseException as error:", "except Exception as error:", (
        "tests/runtime/test_drive.py::test_b79_what_interrupts_passes_at_once_and_nothing_is_held",
    )),
    Fault("discarded_response_left_open", DRIVE_ASYNC,
        "elif isinstance(action, Discard):\n                    await attempts.discard(action.number)",
        "elif isinstance(action, Discard):\n                    pass",
        ("tests/parity/test_drivers.py",)),
    Fault("finalizer_waits_for_the_lock", OWNER, "self._lock.acquire(blocking=False)", "self._lock.acquire()", (
        OWNING + "test_a_finalizer_that_runs_while_its_own_thread_holds_the_lock_does_not_hang",
    )),
    Fault("forgotten_body_keeps_its_slot", OWNER,
        "        while self._abandoned:\n            self._abandoned.popleft()", "        while False:\n            self._abandoned.popleft()",
        (OWNING + "test_a_call_that_was_abandoned_while_others_held_the_lock_is_cleared_up_by_the_next",)),
    Fault("forks_share_their_jitter", OWNER, "rng or random.SystemRandom()", "rng or random.Random()", (
        OWNING + "test_b67_processes_that_were_forked_after_the_first_call_have_jitter_of_their_own",
    )),
    # -- calls: configuration
    Fault("two_spellings_two_hosts", MATCH, "host = host.lower().removesuffix(\".\")", "host = host.lower()", (
        CALLS + "test_match.py::test_b74_one_host_is_one_whatever_its_spelling",
    )),
    Fault("hidden_rule_accepted", DEPENDENCY, "if before.covers(rule):", "if False:", (
        CALLS + "test_dependency.py::test_a_rule_that_can_never_match_is_an_error_that_says_what_to_do",
    )),
    Fault("breaker_that_cannot_open", BREAKER_POLICY, "self.minimum_calls > self.window:", "False:", (
        CALLS + "test_dependency.py::test_bad_values_are_refused_with_field_value_and_range",
    )),
)  # fmt: skip
