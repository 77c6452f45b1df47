"""The faults of overload: the level, who looks when, shedding, cheaper variants and readiness."""

from __future__ import annotations

from fault_table import CONTROLLER, GUARD, Fault

CONFIG = "resilient_mw/admission/config.py"
LEVEL = "resilient_mw/admission/overload.py"
READINESS = "resilient_mw/admission/readiness.py"
WATCHED = "resilient_mw/runtime/overload.py"
PROCESS = "resilient_mw/runtime/process_readings.py"
LAG = "resilient_mw/runtime/loop_lag.py"
SUPERVISE = "resilient_mw/runtime/supervise.py"
CONTEXT = "resilient_mw/runtime/context.py"
DEGRADE = "resilient_mw/runtime/degrade.py"
EXCHANGE = "resilient_mw/asgi/exchange.py"
MARK = "resilient_mw/asgi/messages.py"
WSGI = "resilient_mw/wsgi/middleware.py"
WSGI_RUN = "resilient_mw/wsgi/run.py"
PROMETHEUS = "integrations/resilient_mw_integrations/_prometheus_sums.py"

UNIT = "tests/admission/test_controller.py::test_"
LEVELS = "tests/admission/test_overload.py"
LOOKS = "tests/runtime/test_overload.py::test_"
VARIANTS = "tests/runtime/test_degrade.py::test_"
ON_ASGI = "tests/asgi/test_overload.py::test_"
ON_WSGI = "tests/wsgi/test_overload.py::test_"
SHED = "return self.overloaded and state is self._lowest and len(state.queue) >= state.places"
THIN_OUT = "        if self.overload.crowded:\n            self.overload.thin_out()\n\n"

OVERLOAD_FAULTS = (
    # -- the level
    Fault("level_of_the_best_signal", LEVEL, "self._target = max(", "self._target = min(", (LEVELS,)),
    Fault("level_falls_as_fast_as_it_rises", LEVEL,
        "self._policy.rise if target > level else self._policy.fall", "self._policy.rise", (LEVELS,)),
    Fault("state_without_dwell", LEVEL, "elif self._at - self.since < policy.dwell:", "elif False:", (LEVELS,)),
    Fault("state_without_hysteresis", LEVEL,
        "elif level < policy.leave_overloaded and state", "elif level < policy.enter_overloaded and state", (LEVELS,)),
    Fault("stale_reading_kept", LEVEL, "if now >= self._stale_at:", "if False:", (LEVELS,)),
    Fault("one_late_callback_is_lag", LAG, "return min(lags, default=None)", "return max(lags, default=None)", (
        "tests/runtime/test_loop_lag.py",
    )),
    # -- shedding
    Fault("shed_without_overload", CONTROLLER, SHED, SHED.replace("self.overloaded and ", ""), (
        UNIT + "when_it_is_no_longer_overloaded_the_lowest_class_waits_as_before",
    )),
    Fault("shed_from_its_own_places", CONTROLLER, SHED, "return self.overloaded and state is self._lowest", (
        UNIT + "while_overloaded_the_lowest_class_waits_in_its_own_places_only",
        "tests/closed_loop/test_shedding.py::test_while_it_is_shed_a_class_still_gets_the_share_of_its_weight",
    )),
    Fault("shed_from_a_free_slot", CONTROLLER,
        "if not state.queue and self.slots.fits(state, cost):",
        "if not (self.overloaded and state is self._lowest) and not state.queue and self.slots.fits(state, cost):",
        (UNIT + "while_overloaded_a_reserved_slot_is_there_for_the_lowest_class",)),
    Fault("the_only_class_shed", CONTROLLER,
        "self.classes[-1] if len(self.classes) > 1 else None", "self.classes[-1]",
        (UNIT + "a_class_that_is_the_only_one_is_not_shed",)),
    Fault("highest_class_shed", CONTROLLER, "self.classes[-1] if", "self.classes[0] if", (
        UNIT + "while_overloaded_the_lowest_class_waits_in_its_own_places_only",
    )),
    Fault("controller_not_told", WATCHED,
        "self._controller.overloaded = after is OverloadState.OVERLOADED", "pass",
        (LOOKS + "a_full_service_is_overloaded_and_sheds_and_recovers",)),
    # -- who looks when
    Fault("crowd_not_seen_to_go", WATCHED,
        "if self._controller.slots.in_use <= self._calm and not self._controller.waiting:", "if False:",
        (LOOKS + "a_crowd_that_goes_between_two_looks_is_seen_to_go",)),
    Fault("crowd_not_seen_to_go_by_a_release", GUARD, THIN_OUT + "    def end(", "\n    def end(", (
        LOOKS + "a_crowd_that_goes_between_two_looks_is_seen_to_go",
    )),
    Fault("crowd_not_seen_to_go_by_an_end", GUARD, THIN_OUT + "    def finish(", "\n    def finish(", (
        LOOKS + "a_crowd_that_goes_between_two_looks_is_seen_to_go",
    )),
    Fault("crowd_not_seen_to_go_by_leaving", GUARD, THIN_OUT + "    def catch_up(", "\n    def catch_up(", (
        LOOKS + "a_crowd_of_waiters_that_leave_is_seen_to_go",
    )),
    Fault("every_end_looks", WATCHED,
        "self.crowded = controller.waiting > 0 or controller.slots.in_use > self._calm", "self.crowded = True",
        (LOOKS + "while_there_is_no_crowd_an_end_does_not_look",)),
    Fault("change_told_under_the_lock", WATCHED,
        "            change = self._publish(measure)\n        self._tell(change)",
        "            change = self._publish(measure)\n            self._tell(change)",
        (LOOKS + "a_change_of_the_state_is_told_once_and_outside_the_lock",)),
    Fault("change_by_a_report_not_told", WATCHED,
        "            change = self._publish(self._measure)\n        self._tell(change)",
        "            change = self._publish(self._measure)",
        (LOOKS + "a_report_that_changes_the_state_is_told",)),
    Fault("failing_look_fails_the_request", WATCHED,
        "except Exception as error:  # noqa: BLE001  whatever", "except ZeroDivisionError as error:  # whatever",
        (LOOKS + "a_look_that_fails_is_counted_and_hurts_nobody",)),
    Fault("tick_does_not_look", SUPERVISE, "watch.tick(self._tick_at, now)", "pass", (
        ON_ASGI + "the_tick_looks_while_a_request_is_in_flight_and_once_more_when_none_is",
    )),
    Fault("lag_of_a_tick_not_seen", SUPERVISE, "watch.tick(self._tick_at, now)", "watch.tick(now, now)", (
        ON_ASGI + "a_loop_that_is_always_late_is_seen_and_not_held_against_it_afterwards",
    )),
    Fault("last_tick_does_not_look", SUPERVISE, "watch.rest()", "pass", (
        ON_ASGI + "a_loop_that_is_always_late_is_seen_and_not_held_against_it_afterwards",
    )),
    Fault("lag_held_against_a_loop_at_rest", WATCHED, "(Signal.LOOP_LAG, 0.0, self._source)",
        "(Signal.LOOP_LAG, None, self._source)",
        (LOOKS + "a_loop_that_is_late_at_every_tick_is_seen_and_forgotten_when_nothing_is_in_flight",)),
    Fault("two_loops_taken_for_one", WATCHED, 'f"loop {next(_numbers)}"', '"loop"', (
        LOOKS + "two_loops_are_told_apart",
    )),
    Fault("storm_seen_after_a_quiet_time", SUPERVISE, "self._watch.begin()", "pass", (
        ON_ASGI + "who_comes_after_a_quiet_time_does_not_see_the_storm_before_it",
    )),
    Fault("wsgi_arrival_does_not_look", WSGI, "if now >= guard.overload.look_at:", "if False:", (
        ON_WSGI + "requests_look_when_they_come_and_go_at_most_every_50_ms",
    )),
    Fault("wsgi_every_arrival_looks", WSGI, "if now >= guard.overload.look_at:", "if True:", (
        ON_WSGI + "requests_look_when_they_come_and_go_at_most_every_50_ms",
    )),
    Fault("wsgi_end_does_not_look", WSGI_RUN, "if at >= guard.overload.look_at:", "if False:", (
        ON_WSGI + "an_end_that_is_no_usual_one_looks_too",
    )),
    # -- the process
    Fault("process_read_by_every_guard", PROCESS, "if known is None or now - known[0] >= EVERY:", "if True:", (
        LOOKS + "the_process_is_read_once_a_second_for_all_guards",
    )),
    Fault("collections_measured_for_ever", PROCESS, "            self._collections.stop()", "            pass", (
        LOOKS + "collections_are_measured_while_somebody_wants_it",
    )),
    Fault("collections_measured_for_nobody", WATCHED, "if Signal.GC in self._wanted:", "if True:", (
        LOOKS + "what_no_policy_wants_is_not_read",
    )),
    Fault("moment_of_collecting_believed", PROCESS,
        "self._known.setdefault(Signal.GC, (self._clock.now(), None))", "pass",
        (LOOKS + "a_moment_of_collecting_is_not_taken_for_the_share_of_all_time",)),
    Fault("lock_of_the_parent_inherited", PROCESS,
        "        self._lock = threading.Lock()\n        self._known.clear()", "        self._known.clear()",
        (LOOKS + "a_forked_child_reads_anew",)),
    # -- cheaper variants
    Fault("elevated_not_degraded", DEGRADE, "is OverloadState.NORMAL and", "is not OverloadState.OVERLOADED and", (
        VARIANTS + "the_state_decides_who_answers",
    )),
    Fault("cheaper_answer_not_noted", DEGRADE, "context.mark_degraded()", "pass", (
        VARIANTS + "the_state_decides_who_answers",
    )),
    Fault("variant_of_another_kind_accepted", DEGRADE,
        "if inspect.iscoroutinefunction(endpoint) is not inspect.iscoroutinefunction(variant):", "if False:",
        (VARIANTS + "a_variant_that_does_not_fit_is_an_error_at_once",)),
    Fault("variant_with_other_parameters_accepted", DEGRADE, "if list(wanted) != list(taken):", "if False:", (
        VARIANTS + "a_variant_that_does_not_fit_is_an_error_at_once",
    )),
    Fault("mark_lost_in_a_nested_scope", "resilient_mw/runtime/within.py", "self._outer.mark_degraded()", "self.degraded = True", (
        VARIANTS + "a_nested_scope_sees_the_overload_of_its_request_and_marks_its_answer",
    )),
    Fault("everybody_outside_a_request_degraded", CONTEXT,
        '"""Do nothing: there is no answer."""', '"""Do nothing."""\n        self.degraded = True',
        (VARIANTS + "outside_a_request_the_endpoint_answers",)),
    Fault("asgi_mark_lost", EXCHANGE, "if self.degraded:", "if False:", (
        ON_ASGI + "a_cheaper_answer_is_marked_and_the_applications_message_is_not_touched",
    )),
    Fault("asgi_mark_eats_headers", MARK, '[*message.get("headers", ()), DEGRADED]', "[DEGRADED]", (
        ON_ASGI + "a_cheaper_answer_is_marked_and_the_applications_message_is_not_touched",
    )),
    Fault("wsgi_mark_lost", WSGI_RUN, "if self.context.degraded:", "if False:", (
        ON_WSGI + "a_cheaper_answer_is_marked",
    )),
    # -- what is told
    Fault("readiness_falls_unasked", READINESS, "policy.readiness_falls_on_overload and ", "", (
        LOOKS + "readiness_tells_overload_and_does_not_fall",
    )),
    Fault("ready_while_draining", READINESS, '*(("draining",) if draining else ()), ', "", (
        LOOKS + "readiness_falls_while_draining",
    )),
    Fault("readiness_of_the_past", WATCHED, "        self.look()\n        with self._lock:\n            return readiness",
        "        with self._lock:\n            return readiness",
        (LOOKS + "readiness_tells_overload_and_does_not_fall",)),
    Fault("snapshot_of_the_past", GUARD, "            self.catch_up()\n        self.overload.look()\n",
        "            self.catch_up()\n",
        (LOOKS + "the_policy_takes_reports_of_what_only_others_can_measure",)),
    Fault("own_signal_reported", CONFIG, "if signal not in REPORTED:", "if False:", (
        LOOKS + "what_the_middleware_measures_itself_cannot_be_reported",
    )),
    Fault("levels_of_two_applications_added", PROMETHEUS, "max(values.get(labels, 0), value)",
        "values.get(labels, 0) + value",
        ("tests/integrations/test_prometheus.py::test_applications_of_one_name_are_added_up",)),
)  # fmt: skip
