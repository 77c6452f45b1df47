"""Faults of the request context for `plant_faults.py`: sections that must complete, callbacks, what comes after the answer."""

from __future__ import annotations

from fault_table import Fault

SHIELD = "resilient_mw/runtime/shield.py"
WITHIN = "resilient_mw/runtime/within.py"
SUPERVISED = "resilient_mw/runtime/supervised.py"
STOPPING = "resilient_mw/runtime/stopping.py"
CALLBACKS = "resilient_mw/runtime/callbacks.py"
ALARM = "resilient_mw/runtime/alarm.py"
THREAD_CONTEXT = "resilient_mw/runtime/thread_context.py"
EXCHANGE = "resilient_mw/asgi/exchange.py"
WSGI_BODY = "resilient_mw/wsgi/body.py"
IN_SHIELD = "tests/runtime/test_shield.py::test_"
IN_WITHIN = "tests/runtime/test_within.py::test_"
IN_CALLBACKS = "tests/runtime/test_callbacks.py::test_"
IN_ALARM = "tests/runtime/test_alarm.py::test_"
IN_FRAMEWORKS = "tests/integrations/test_current.py::test_"

CONTEXT_FAULTS = (
    Fault("shield_does_not_hold_the_request_back", SUPERVISED,
        "        return bool(self._held) and any(", "        return False and any(", (
        IN_SHIELD + "a_section_completes_while_the_caller_has_his_504_on_time_and_the_cancel_follows",
    )),
    Fault("shield_cancel_is_forgotten", SUPERVISED,
        "            call_in_loop(self.task.get_loop(), self.deliver)\n", "            pass\n", (
        IN_SHIELD + "a_section_completes_while_the_caller_has_his_504_on_time_and_the_cancel_follows",
    )),
    Fault("shield_leaves_no_place_for_the_cancel", SHIELD, "            await asyncio.sleep(ARRIVES_WITHIN if self._due else 0)", "            pass", (
        IN_SHIELD + "the_cancel_that_was_held_back_is_delivered_before_the_block_is_behind",
    )),
    Fault("shield_does_not_wait_for_a_cancel_that_goes_round", SHIELD, "ARRIVES_WITHIN if self._due else 0", "0", (
        IN_FRAMEWORKS + "a_section_in_a_quart_view_is_left_into_the_cancel",
    )),
    Fault("shield_of_a_clean_up_waits_for_another_cancel", SHIELD, "ARRIVES_WITHIN if self._due else 0", "ARRIVES_WITHIN", (
        IN_SHIELD + "a_clean_up_leaves_its_section_without_a_wait",
    )),
    Fault("shield_holds_no_slot", SUPERVISED, "        self.keep(section)\n", "        pass\n", (
        IN_SHIELD + "a_section_that_nobody_waits_for_holds_the_slot_and_has_its_time",
    )),
    Fault("shield_callbacks_are_not_held_back", SUPERVISED,
        "        if self.shielded or self.reason is None:", "        if self.reason is None:", (
        IN_SHIELD + "no_callback_closes_the_connection_under_a_commit",
    )),
    Fault("shield_has_no_end", SHIELD, "loop.call_later(delay, self._time_is_over,", "loop.call_later(delay + 60, self._time_is_over,", (
        IN_SHIELD + "a_section_that_takes_longer_than_its_time_is_cancelled_then_and_once",
    )),
    Fault("shield_cancels_a_second_time", SHIELD, "        if not self._end_hold():\n", "        if self._end_hold() is not None:\n", (
        IN_SHIELD + "what_a_section_waits_for_is_cancelled_once_when_its_time_is_over",
    )),
    Fault("shield_of_work_that_nobody_awaits_has_no_end", SHIELD,
        "            self._timer = self._loop.call_later(AGAIN_AFTER, self._interrupt, context=Context())", "            pass", (
        IN_SHIELD + "a_section_that_nobody_waits_for_is_cancelled_when_its_time_is_over",
    )),
    Fault("shield_tells_of_the_requests_end", SHIELD, "        if self._section.protects(now):\n            return None\n", "", (
        IN_SHIELD + "inside_only_the_sections_own_time_counts_and_outside_the_requests",
    )),
    Fault("shield_has_the_requests_time", SHIELD, " if self._section.left else self._until\n\n    def _interrupted", "\n\n    def _interrupted", (
        IN_SHIELD + "inside_only_the_sections_own_time_counts_and_outside_the_requests",
    )),
    Fault("shield_goes_on_after_it_was_left", SHIELD,
        "        return min(self._until, self._outer._ends_at()) if self._section.left else self._until", "        return self._until", (
        IN_SHIELD + "a_task_that_goes_on_after_its_section_is_told_of_the_request_again",
    )),
    Fault("shield_in_shield_grows", SHIELD, "min(clock.now() + self._seconds, outer._section_until())", "clock.now() + self._seconds", (
        IN_SHIELD + "a_section_inside_a_section_ends_with_it_at_the_latest",
        IN_WITHIN + "a_scope_never_grows_and_a_section_has_its_own_time_at_most",
    )),
    Fault("shield_without_a_bound", "resilient_mw/runtime/context.py", ", high=LONGEST_SECTION)", ")", (
        IN_SHIELD + "a_section_has_a_bound",
    )),
    Fault("shield_locks_in_the_collector", SUPERVISED, " and not collected and in_thread_of(loop)", " and in_thread_of(loop)", (
        IN_SHIELD + "the_collector_waits_for_no_lock",
    )),
    Fault("shield_keeps_the_slot", SUPERVISED, "            self.let_go(section)\n", "            pass\n", (
        IN_SHIELD + "a_section_shortens_what_the_request_has_left_to_its_own_time",
    )),
    Fault("shield_does_not_hold_the_outer_middleware_back", SUPERVISED,
        "            self._outer._hold_back(section)\n", "            pass\n", (
        IN_FRAMEWORKS + "a_section_in_an_inner_application_holds_both_middlewares_back",
    )),
    Fault("shield_of_a_clean_up_is_stepped_on", STOPPING, " or record.shielded:\n            return\n        self._check_later()", ":\n            return\n        self._check_later()", (
        IN_SHIELD + "a_section_of_a_clean_up_whose_sibling_ends_meanwhile",
    )),
    Fault("shield_uses_up_patience", STOPPING, "        self._patience -= not record.shielded", "        self._patience -= 1", (
        IN_SHIELD + "a_clean_up_after_the_cancel_can_have_its_own_section_and_no_nudge_disturbs_it",
        IN_SHIELD + "a_clean_up_has_its_patience_after_its_section_too",
    )),
    Fault("within_ends_a_section", WITHIN, "            self.timer.hold()\n", "            pass\n", (
        IN_SHIELD + "a_section_holds_a_scope_around_it_back_and_no_longer_than_it_takes",
    )),
    Fault("within_is_held_back_for_ever", WITHIN, "        mine = self.timer is not None and self.timer.let_go()\n", "        mine = False\n", (
        IN_SHIELD + "a_section_holds_a_scope_around_it_back_and_no_longer_than_it_takes",
    )),
    Fault("within_a_plain_scope_is_never_over", WITHIN,
        "watched = context.deadline_at >= self._outer._interrupted_at()", "watched = context.deadline_at >= self._outer.deadline_at", (
        IN_WITHIN + "a_scope_that_is_longer_than_the_plain_one_around_it_is_cancelled_with_that",
        IN_FRAMEWORKS + "an_async_flask_view_is_cancelled_by_a_scope_and_completes_its_section",
    )),
    Fault("within_the_request_is_cancelled_twice", WITHIN,
        "asyncio.timeout(None if watched else left)", "asyncio.timeout(left - 0.01)", (
        IN_WITHIN + "a_scope_that_is_longer_than_the_request_leaves_the_end_to_that",
    )),
    Fault("within_grows", WITHIN, "        return min(self._until, self._outer._ends_at())\n", "        return self._until\n", (
        IN_WITHIN + "a_scope_never_grows_and_a_section_has_its_own_time_at_most",
    )),
    Fault("within_a_request_that_has_ended", WITHIN,
        '        return bool(getattr(outer, "ended", False) or getattr(outer, "done", False))', "        return outer is None", (
        IN_WITHIN + "a_thread_that_was_started_in_a_scope_of_a_request_that_has_ended_does_not_belong_to_it",
    )),
    Fault("background_work_is_told_of_the_deadline", SUPERVISED,
        "        return FOREVER if self.reason is None and (self.complete or self.done) else self.deadline_at", "        return self.deadline_at", (
        IN_CALLBACKS + "after_a_complete_response_nothing_is_worthless",
        IN_FRAMEWORKS + "background_tasks_are_told_of_no_deadline_and_of_no_caller_who_left",
    )),
    Fault("flask_background_work_is_told_of_the_deadline", THREAD_CONTEXT,
        "        if self.ended and self.reason is None:\n            return FOREVER\n", "", (
        IN_FRAMEWORKS + "what_goes_on_after_a_flask_response_has_no_deadline",
    )),
    Fault("flask_response_is_never_complete", WSGI_BODY, "        self._run.context.complete(started=self._run.started)\n", "        pass\n", (
        IN_FRAMEWORKS + "what_goes_on_after_a_flask_response_has_no_deadline",
    )),
    Fault("callback_of_a_thread_blocks_the_loop", SUPERVISED,
        "        if not in_thread_of(self.task.get_loop()):\n", "        if False:\n", (
        IN_CALLBACKS + "what_was_registered_in_a_worker_thread_may_block_and_the_loop_goes_on",
    )),
    Fault("callback_has_all_the_time", CALLBACKS, "timeout=CALLBACK_WITHIN)", "timeout=None)", (
        IN_CALLBACKS + "a_thread_that_hangs_in_a_callback_holds_the_slot_for_one_second_only",
    )),
    Fault("callback_holds_no_slot", SUPERVISED, "                self.keep(task)\n", "", (
        IN_CALLBACKS + "what_was_registered_in_a_worker_thread_may_block_and_the_loop_goes_on",
    )),
    Fault("callback_that_keeps_the_loop_is_not_reported", CALLBACKS, "    if took >= LONG:\n", "    if False:\n", (
        IN_CALLBACKS + "a_callback_that_keeps_the_loop_is_reported",
    )),
    Fault("callback_errors_are_not_counted", SUPERVISED,
        '            self._guard.listeners.guest_failed("on_cancel callback", error)', "            pass", (
        IN_CALLBACKS + "errors_of_callbacks_are_counted_and_the_slot_comes_back",
    )),
    Fault("callbacks_only_when_we_notice_the_end", EXCHANGE, "                self.run_callbacks()\n", "                pass\n", (
        IN_CALLBACKS + "callbacks_are_called_too_when_the_application_notices_the_deadline_before_we_do",
    )),
    Fault("alarm_is_blocked_by_a_callback", ALARM,
        "                    self._thread = None\n                    if self._watched:\n                        self._start()\n", "", (
        IN_ALARM + "a_callback_that_hangs_keeps_nobody_elses_from_running",
    )),
    Fault("alarm_blocks_the_server", ALARM,
        "            threading.Thread(target=self._fire, args=(context, hooks), name=NAME, daemon=True).start()", "            self._fire(context, hooks)", (
        IN_ALARM + "what_hangs_in_a_callback_holds_the_end_of_a_cancelled_request_for_its_second_only",
    )),
    Fault("alarm_callback_errors_are_not_counted", THREAD_CONTEXT,
        '            listeners.guest_failed("on_cancel callback", error)', "            pass", (
        IN_ALARM + "what_a_callback_raises_is_counted",
    )),
    Fault("alarm_does_not_wait_for_sections", ALARM, "        return max(left, self._section_left(context))", "        return left", (
        IN_FRAMEWORKS + "a_commit_in_a_flask_view_has_its_time_and_the_callbacks_wait_for_it",
    )),
    Fault("alarm_gives_the_slot_of_a_section_on", ALARM, "            while wait and self._shielded(context):", "            while False:", (
        IN_FRAMEWORKS + "a_section_in_a_thread_that_a_view_has_left_behind_holds_the_slot",
    )),
)  # fmt: skip
